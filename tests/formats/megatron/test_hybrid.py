"""Patterns of Mamba, attention, MLP and experts, as the models that they make."""

from __future__ import annotations

import pytest

from meshwright.formats.megatron.described import described_model, describes
from meshwright.formats.megatron.read import MegatronFlags, read_flags
from meshwright.library import models

DENSE = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"
SPARSE = "MEMEM*E" + "MEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME"
HEAD = (
    "pretrain_mamba.py --normalization RMSNorm --squared-relu --disable-bias-linear --position-embedding-type none "
    "--untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --vocab-size 131072 --bf16 "
    "--group-query-attention --kv-channels 128 --seq-length 4096 --max-position-embeddings 8192 "
    "--micro-batch-size 1 --global-batch-size 16"
)
BIG = (
    f"--hybrid-override-pattern {DENSE} --num-layers 118 --hidden-size 8192 --ffn-hidden-size 32768 "
    "--num-attention-heads 64 --num-query-groups 8 --mamba-state-dim 256 --mamba-num-heads 256"
)
SMALL = (
    f"--hybrid-layer-pattern {SPARSE} --hidden-size 2688 --ffn-hidden-size 1856 --num-attention-heads 32 "
    "--num-query-groups 2 --mamba-num-heads 64 --num-experts 128 --moe-router-topk 6 --moe-ffn-hidden-size 1856 "
    "--moe-shared-expert-intermediate-size 3712"
)


def read(options: str) -> MegatronFlags:
    """Reads options on eight devices."""
    return read_flags(f"python {HEAD} {options}\n", devices=8)


@pytest.mark.parametrize(("options", "model"), [(BIG, "nemotron-h-56b"), (SMALL, "nemotron-3-nano-30b-a3b")])
def test_a_pattern_is_the_published_model(options: str, model: str) -> None:
    found = read(options)
    assert not found.problems
    assert describes(found.model)
    described = described_model(found.model, name="script", vocab=131_072)
    published = models.spec(model)
    assert described.parameters == published.parameters
    assert [layer.attention.kind for layer in described.layers()] == [
        layer.attention.kind for layer in published.layers()
    ]


def test_widths_that_no_option_says_follow_from_the_hidden_size() -> None:
    found = read("--hybrid-override-pattern M*- --num-layers 3 --hidden-size 1024 --num-attention-heads 8").model[
        "hybrid"
    ]
    assert (found["mamba_num_heads"], found["ssm_state_size"], found["intermediate_size"]) == (32, 128, 4096)


@pytest.mark.parametrize("more", ["--swiglu", "--add-qkv-bias", "--normalization LayerNorm", "--mtp-num-layers 1"])
def test_layers_of_other_kinds_are_described_by_their_config_alone(more: str) -> None:
    found = read(f"--hybrid-override-pattern M*- --hidden-size 1024 --num-attention-heads 8 {more}")
    assert not describes(found.model)
    assert any("config.json" in note for note in found.notes)


def test_stages_in_a_pattern_are_left_to_the_config() -> None:
    assert not describes(read("--hybrid-layer-pattern M*-|M*- --hidden-size 1024 --num-attention-heads 8").model)


def test_a_pattern_has_as_many_layers_as_are_said() -> None:
    found = read("--hybrid-override-pattern M*- --num-layers 4 --hidden-size 1024 --num-attention-heads 8")
    assert [one.what for one in found.problems] == ["--num-layers is 4"]
