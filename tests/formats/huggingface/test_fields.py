"""Fields of a config: checks, and all problems together."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.formats.huggingface.configs import LLAMA, MOE


def test_all_problems_together() -> None:
    wrong: dict[str, Any] = LLAMA | {
        "hidden_size": "4096",
        "num_hidden_layers": -32,
        "num_key_value_heads": 5,
        "vocab_size": float("nan"),
        "max_position_embeddings": 8192.0,
        "tie_word_embeddings": "no",
        "attention_dropout": 7,
    }
    del wrong["intermediate_size"]
    wrong["intermediate_sise"] = 14336
    with pytest.raises(InputError) as caught:
        read_config(wrong, "m")
    by_field = {problem.field: problem for problem in caught.value.problems}
    assert len(by_field) == len(caught.value.problems) == 8
    assert by_field["hidden_size"].fix == "write it without quotes: 4096"
    assert by_field["max_position_embeddings"].fix == "write 8192"
    assert by_field["intermediate_size"].fix == "rename 'intermediate_sise' to 'intermediate_size'"
    assert "must divide num_attention_heads = 32" in by_field["num_key_value_heads"].why
    assert all(problem.why for problem in caught.value.problems)


def test_heads_must_divide_hidden_unless_the_head_size_is_given() -> None:
    with pytest.raises(InputError, match="must divide hidden_size = 4096"):
        read_config(LLAMA | {"num_attention_heads": 24}, "m")
    assert read_config(LLAMA | {"num_attention_heads": 24, "head_dim": 128}, "m").kinds()[0].attention.heads == 24


@pytest.mark.parametrize("huge", [2**31, 10**30, 10**6000], ids=["2**31", "10**30", "10**6000"])
def test_huge_numbers(huge: int) -> None:
    with pytest.raises(InputError) as caught:
        read_config(LLAMA | {"num_hidden_layers": huge, "hidden_size": huge}, "m")
    assert len(caught.value.problems) == 2
    assert len(caught.value.render()) < 1000


def test_layer_lists_are_checked() -> None:
    gemma = LLAMA | {"model_type": "gemma2"}
    with pytest.raises(InputError, match="as many layers as num_hidden_layers = 32"):
        read_config(gemma | {"layer_types": ["full_attention"] * 31}, "m")
    with pytest.raises(InputError, match="list of words"):
        read_config(gemma | {"layer_types": [1] * 32}, "m")
    with pytest.raises(UnsupportedError, match="linear_attention"):
        read_config(gemma | {"layer_types": ["linear_attention"] * 32}, "m")
    with pytest.raises(InputError, match="layer numbers from 0 to 31"):
        read_config(MOE | {"model_type": "qwen3_moe", "mlp_only_layers": [32]}, "m")


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"vocab_size": -5}, "write that of the published config"),
        ({"num_key_value_heads": -1.0}, "write that of the published config"),
        ({"layer_types": ["sliding_atention"] * 32}, "did you mean sliding_attention?"),
        ({"layer_types": ["of another world"] * 32}, "name such layers by the nearest of these words"),
        ({"layer_types": ["full_attention"] * 30}, "give one word a layer, or set num_hidden_layers to 30"),
        ({"layer_types": "full_attention"}, 'write ["full_attention", ...], 32 of them'),
        ({"layer_types": ["linear_attention"] * 32}, "add the keys of its kind: one of linear_num_value_heads"),
    ],
)
def test_what_is_refused_of_a_config_comes_with_a_remedy(change: dict[str, Any], remedy: str) -> None:
    with pytest.raises((InputError, UnsupportedError)) as caught:
        read_config(LLAMA | change, "m")
    assert any(problem.fix.startswith(remedy) for problem in caught.value.problems)
