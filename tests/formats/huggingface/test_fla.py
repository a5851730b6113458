"""Families of flash-linear-attention: the numbers of parameters that their layers add up to."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import UnsupportedError
from meshwright.formats.huggingface import read_config

TRANSFORMER: dict[str, Any] = {
    "model_type": "transformer",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_heads": 32,
    "num_kv_heads": None,
    "intermediate_size": None,
    "hidden_ratio": 4,
    "hidden_act": "swish",
    "elementwise_affine": True,
    "fuse_norm": True,
    "fuse_swiglu": True,
    "tie_word_embeddings": False,
}
DELTA: dict[str, Any] = {
    "model_type": "gated_deltanet",
    "hidden_size": 1024,
    "num_hidden_layers": 21,
    "num_heads": 6,
    "head_dim": 256,
    "expand_v": 2,
    "conv_size": 4,
    "use_gate": True,
    "use_short_conv": True,
    "vocab_size": 32_000,
    "intermediate_size": None,
    "hidden_ratio": 4,
    "hidden_act": "swish",
    "tie_word_embeddings": False,
}


def test_a_transformer_is_as_wide_as_its_ratio_says() -> None:
    width = 5632  # 2048 x 4 x 2 / 3 in whole 256
    layer = 4 * 2048**2 + 3 * 2048 * width + 2 * 2048
    assert read_config(TRANSFORMER, "m").parameters == 24 * layer + 2 * 32_000 * 2048 + 2048
    with pytest.raises(UnsupportedError, match="attnres_block_size"):
        read_config({**TRANSFORMER, "attnres_block_size": 1}, "m")


def test_a_delta_net_has_values_wider_than_keys() -> None:
    keys, values, width, heads = 1536, 3072, 2816, 6
    mixer = 2 * 1024 * keys + 3 * 1024 * values + 2 * 1024 * heads + 2 * heads + 4 * (2 * keys + values) + 512
    layer = mixer + 3 * 1024 * width + 2 * 1024
    assert read_config(DELTA, "m").parameters == 21 * layer + 2 * 32_000 * 1024 + 1024
    with pytest.raises(UnsupportedError, match="use_gate"):
        read_config({**DELTA, "use_gate": False}, "m")


def test_the_heads_of_mamba_2_follow_from_its_width() -> None:
    stated = {"model_type": "mamba2", "hidden_size": 2048, "num_hidden_layers": 2, "state_size": 128, "head_dim": 64}
    config = {**stated, "expand": 2, "n_groups": 1, "vocab_size": 32_000}
    assert read_config(config, "m").parameters == read_config({**config, "num_heads": 64}, "m").parameters
