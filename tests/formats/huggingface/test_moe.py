"""Families with experts: what their configs mean."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.formats.huggingface import read_config
from meshwright.specs.layers import Attention, DenseMlp, LatentAttention, MoeMlp
from tests.formats.huggingface.configs import CONFIGS, MOE


def test_gpt_oss_layer() -> None:
    layer = read_config(CONFIGS["gpt-oss-120b"], "m").kinds()[0]
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, MoeMlp)
    assert layer.attention.sinks
    assert layer.attention.qkv_bias
    assert layer.attention.out_bias
    assert layer.mlp.router_bias
    assert layer.mlp.bias
    assert (layer.mlp.experts, layer.mlp.top_k) == (128, 4)


def test_deepseek_v3() -> None:
    model = read_config(CONFIGS["deepseek-v3"], "deepseek-v3")
    first, *_, last = model.layers()
    assert [(len(run.layers), run.repeats) for run in model.runs] == [(1, 3), (1, 58)]
    assert first.attention == LatentAttention(
        heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    assert first.mlp == DenseMlp(ffn_hidden=18432, gated=True)
    assert last.mlp == MoeMlp(experts=256, top_k=8, ffn_hidden=2048, gated=True, shared_ffn_hidden=2048)
    assert model.mtp_layers == 1


def test_deepseek_without_query_latent_and_every_other_layer_sparse() -> None:
    config = CONFIGS["deepseek-v2-lite"] | {"moe_layer_freq": 2}
    model = read_config(config, "m")
    assert isinstance(model.kinds()[0].attention, LatentAttention)
    assert model.kinds()[0].attention.q_rank is None
    assert [isinstance(layer.mlp, MoeMlp) for layer in model.layers()][:5] == [False, False, True, False, True]
    del config["q_lora_rank"]
    with pytest.raises(InputError, match="q_lora_rank is missing"):
        read_config(config, "m")


def test_llama_4_maverick_alternates_dense_and_sparse() -> None:
    model = read_config(CONFIGS["llama-4-maverick"], "m")
    layers = list(model.layers())
    assert [isinstance(layer.mlp, MoeMlp) for layer in layers[:4]] == [False, True, False, True]
    assert [layer.attention.window for layer in layers[:5]] == [8192, 8192, 8192, None, 8192]
    assert isinstance(layers[1].mlp, MoeMlp)
    assert layers[1].mlp.shared_ffn_hidden == 8192
    assert layers[0].mlp == DenseMlp(ffn_hidden=16384, gated=True)
    assert len(model.notes) == 2


def test_qwen_moe_layers_without_experts() -> None:
    config = MOE | {"model_type": "qwen3_moe", "mlp_only_layers": [0, 1], "decoder_sparse_step": 1}
    sparse = [isinstance(layer.mlp, MoeMlp) for layer in read_config(config, "m").layers()]
    assert sparse == [False, False] + [True] * 30
    config = MOE | {"model_type": "qwen3_moe", "decoder_sparse_step": 4}
    sparse = [isinstance(layer.mlp, MoeMlp) for layer in read_config(config, "m").layers()]
    assert sparse == [False, False, False, True] * 8


def test_qwen2_moe_has_a_gated_shared_expert() -> None:
    mlp = read_config(CONFIGS["qwen2-57b-a14b"], "m").kinds()[0].mlp
    assert isinstance(mlp, MoeMlp)
    assert (mlp.shared_ffn_hidden, mlp.shared_gate) == (20480, True)


def test_experts_are_checked() -> None:
    with pytest.raises(InputError, match="must not exceed the number of experts = 2"):
        read_config(MOE | {"model_type": "mixtral", "num_local_experts": 2, "num_experts": 2}, "m")
