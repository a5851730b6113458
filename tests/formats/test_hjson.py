"""HJSON, as DeepSpeed loads its configuration."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.formats.hjson import parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.sampled_from([None, 2]))
def test_json_is_read_as_it_is(value: dict[str, Any], indent: int | None) -> None:
    assert parse(json.dumps(value, indent=indent)) == value


@given(st.text(alphabet="{}[]:,\"' \n#/*ab1e-.'", max_size=60))
def test_any_text_is_a_value_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text)


def test_what_people_write() -> None:
    text = """
    // the engine
    {
      # stage of ZeRO
      zero_optimization: { stage: 2, 'overlap_comm': true, }
      train_batch_size: 64   /* of all
                                devices */
      optimizer: {
        type: AdamW
        params: { betas: [0.9
          0.95], lr: 3e-4 }
      }
      note: '''
      two
      lines'''
      "steps": -1.5,
    }
    """
    assert parse(text) == {
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "train_batch_size": 64,
        "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95], "lr": 3e-4}},
        "note": "      two\n      lines",
        "steps": -1.5,
    }
    assert parse("stage: 2\nname: zero two") == {"stage": 2, "name": "zero two"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{\n"a" 1}', "line 2: a colon is missing"),
        ("{a: [1, 2", r"\] is missing"),
        ("{a: 1", "} is missing"),
        ('{a: "x', "a quote has no end"),
        ("{a: 1} b", "more text follows the end"),
        ("[" * 100 + "]" * 100, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)
