"""Layers whose sizes differ by `per_layer_config`."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.formats.huggingface.configs import LLAMA, MOE


def test_a_changed_layer_is_one_of_a_config_with_that_value() -> None:
    change = {"intermediate_size": 4096, "num_key_value_heads": 4, "head_dim": 64}
    model = read_config(LLAMA | {"per_layer_config": {"3": change, "07": change}}, "m")
    changed, plain = (read_config(config, "m").kinds()[0] for config in (LLAMA | change, LLAMA))
    assert [layer == changed for layer in model.layers()] == [i in (3, 7) for i in range(32)]
    assert [layer == plain for layer in model.layers()] == [i not in (3, 7) for i in range(32)]


def test_rules_of_the_family_hold_for_changed_layers() -> None:
    """As Gemma 4 of transformers 5.24.0 is saved: wide heads in its full layers."""
    gemma = LLAMA | {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "head_dim": 256}
    kinds = {"layer_types": ["sliding_attention"] * 31 + ["full_attention"]}
    saved = read_config(gemma | kinds | {"per_layer_config": {"31": {"head_dim": 512}}}, "m")
    published = read_config(gemma | kinds | {"global_head_dim": 512}, "m")
    assert saved.runs == published.runs


def test_experts_may_differ_by_layer() -> None:
    model = read_config(MOE | {"per_layer_config": {"0": {"moe_intermediate_size": 64}}}, "m")
    first, second, *_ = model.layers()
    assert first.mlp != second.mlp


def test_skipped_parts_are_absent() -> None:
    model = read_config(LLAMA | {"per_layer_config": {"5": {"skip": ["attention"]}, "6": {"skip": ["mlp"]}}}, "m")
    layers = list(model.layers())
    assert [i for i in range(32) if layers[i].attention.absent] == [5]
    assert [i for i in range(32) if layers[i].mlp.absent] == [6]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"32": {"head_dim": 64}}, "must name layers from 0 to 31"),
        ({"first": {"head_dim": 64}}, "must name layers from 0 to 31"),
        ({"1": [64]}, "layer 1 must have an object"),
        ([{"head_dim": 64}], "must be an object of layers"),
        ({"1": {"num_key_value_heads": 5}}, "must divide num_attention_heads = 32"),
    ],
)
def test_wrong_changes(changes: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_config(LLAMA | {"per_layer_config": changes}, "m")


@pytest.mark.parametrize("change", [{"lookahead_width": 7}, {"skip": ["norm"]}])
def test_what_no_reader_understands_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UnsupportedError, match=r"lookahead_width|only attention and mlp"):
        read_config(LLAMA | {"per_layer_config": {"1": change}}, "m")
