"""Layers of virtual stages as layout text, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.megatron.layout import read_layout, write_layout


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(0, 2))
def test_a_layout_survives_its_text(layers: list[int], mtp: int) -> None:
    assert read_layout(write_layout(layers, mtp)) == (tuple(layers), mtp)


@pytest.mark.parametrize(
    ("text", "layers", "mtp"),
    [
        ("Ettt|(tt|)*29,m|L", (3, *[2] * 29, 0, 0), 1),
        ("Et*3|(tt|)*2t*3L", (3, 2, 2, 3), 0),
        ("E|t|L", (0, 1, 0), 0),
    ],
)
def test_layouts_of_the_wild_are_read(text: str, layers: tuple[int, ...], mtp: int) -> None:
    assert read_layout(text) == (layers, mtp)


@pytest.mark.parametrize(
    "text", ["", "tL", "Et", "EtLt", "EtxL", "E(tL", "Et)L", "Et*L", "EmtL", "E(((t)*99999)*99999)L"]
)
def test_wrong_layouts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="pipeline-model-parallel-layout"):
        read_layout(text)


@given(st.text(alphabet="EtmL|()*123", max_size=30))
def test_junk_layouts_are_an_error_of_ours(text: str) -> None:
    try:
        layers, _ = read_layout(text)
    except InputError:
        layers = (0,)
    assert layers
