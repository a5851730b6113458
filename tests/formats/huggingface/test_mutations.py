"""Any change of a config gives a model or an error that people can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.formats.huggingface import FAMILIES, read_config
from tests.counts import FAMILIES as ONE_EACH
from tests.formats.huggingface.configs import CONFIGS

VALID: list[dict[str, Any]] = [*CONFIGS.values(), *(entry["config"] for entry in ONE_EACH.values())]
KEYS = sorted({key for config in VALID for key in (*config, *config.get("text_config", {}))})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(2**40, 2**70),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["mamba", "full_attention", "M*-E", "silu", "relu2", "auto", "sparse", "gelu"]),
    st.lists(st.one_of(st.integers(-1, 5), st.sampled_from(["full_attention", "moe", "x"]), st.none()), max_size=5),
    st.dictionaries(st.sampled_from(["num_heads", "head_dim", "full_attn_layers", "x"]), st.integers(0, 9), max_size=3),
)


@given(data=st.data())
@settings(max_examples=150)
def test_any_change_gives_a_model_or_an_error_that_people_can_read(data: st.DataObject) -> None:
    config: dict[str, Any] = json.loads(json.dumps(data.draw(st.sampled_from(VALID))))
    part = config.get("text_config", config)
    for key in data.draw(st.lists(st.sampled_from([*part, *KEYS]), max_size=4, unique=True)):
        part[key] = data.draw(VALUES)
    for key in data.draw(st.lists(st.sampled_from([*part]), max_size=2, unique=True)):
        del part[key]
    if data.draw(st.booleans()):
        part["model_type"] = data.draw(st.sampled_from([*FAMILIES, "unheard-of"]))
    if data.draw(st.booleans()):
        wrapper = data.draw(st.sampled_from(["text_config", "llm_config", "model_config"]))
        config = {"model_type": "wrapper", wrapper: part}
    problems: Sequence[Problem] = ()
    try:
        model = read_config(config, "m")
    except (InputError, UnsupportedError) as error:
        problems = error.problems
    else:
        assert model.parameters >= model.active_parameters > 0
        return
    assert problems
    assert all(problem.what and problem.why for problem in problems)
