"""Families with experts: what their configs mean."""

from __future__ import annotations

import re

import pytest

from meshwright.errors import InputError
from meshwright.formats.huggingface import read_config
from meshwright.library.models import spec
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.linear_attention import LinearAttention
from meshwright.specs.layers.moe import MoeMlp
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
    assert last.mlp == MoeMlp(
        experts=256, top_k=8, groups=8, groups_per_token=4, ffn_hidden=2048, gated=True, shared_ffn_hidden=2048
    )
    assert model.mtp_layers == 1


def test_deepseek_without_query_latent_and_every_other_layer_sparse() -> None:
    config = CONFIGS["deepseek-v2-lite"] | {"moe_layer_freq": 2}
    model = read_config(config, "m")
    assert isinstance(model.kinds()[0].attention, LatentAttention)
    assert model.kinds()[0].attention.q_rank is None
    assert [isinstance(layer.mlp, MoeMlp) for layer in model.layers()][:5] == [False, False, True, False, True]
    del config["q_lora_rank"]
    with pytest.raises(InputError, match="q_lora_rank is missing") as caught:
        read_config(config, "m")
    assert caught.value.problems[0].fix == "add 'q_lora_rank' to the config"


def test_llama_4_maverick_alternates_dense_and_sparse() -> None:
    model = read_config(CONFIGS["llama-4-maverick"], "m")
    layers = list(model.layers())
    assert [isinstance(layer.mlp, MoeMlp) for layer in layers[:4]] == [False, True, False, True]
    chunks = [layer.attention.chunk for layer in layers[:5] if isinstance(layer.attention, Attention)]
    assert chunks == [8192, 8192, 8192, None, 8192]
    assert isinstance(layers[1].mlp, MoeMlp)
    assert layers[1].mlp.shared_ffn_hidden == 8192
    assert layers[0].mlp == DenseMlp(ffn_hidden=16384, gated=True)
    assert len(model.notes) == 1


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


def test_deepseek_v32_has_an_indexer_in_every_layer_and_glm_52_takes_some_over() -> None:
    sizes = {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    model = read_config(CONFIGS["deepseek-v3"] | sizes, "m")
    indexers = [layer.attention.indexer for layer in model.layers() if isinstance(layer.attention, LatentAttention)]
    assert indexers == [Indexer(heads=64, dim=128, top_k=2048)] * 61
    config = CONFIGS["deepseek-v3"] | sizes | {"model_type": "glm_moe_dsa", "num_hidden_layers": 9}
    every = config | {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    listed = config | {"indexer_types": ["full"] * 3 + ["shared"] * 3 + ["full"] + ["shared"] * 2}
    for shared in (every, listed):
        layers = [layer.attention for layer in read_config(shared, "m").layers()]
        own = [layer.indexer.own for layer in layers if isinstance(layer, LatentAttention) and layer.indexer]
        assert own == [True, True, True, False, False, False, True, False, False]


def test_experts_of_nemotron_3_work_on_a_projection_of_the_stream() -> None:
    config = MOE | {"model_type": "nemotron_h", "layers_block_type": ["attention", "moe"] * 16, "ssm_state_size": 128}
    mlp = list(read_config(config | {"moe_latent_size": 512}, "m").layers())[1].mlp
    assert isinstance(mlp, MoeMlp)
    assert (mlp.latent, mlp.gated) == (512, False)


def test_longcat_has_two_attentions_a_layer_and_choices_that_compute_nothing() -> None:
    config = {key: value for key, value in CONFIGS["deepseek-v3"].items() if key not in ("num_hidden_layers",)}
    config |= {"model_type": "longcat_flash", "num_layers": 4, "zero_expert_num": 128, "n_shared_experts": None}
    model = read_config(config | {"moe_layer_freq": None, "first_k_dense_replace": None}, "m")
    assert [isinstance(layer.mlp, MoeMlp) for layer in model.layers()] == [True, False] * 4
    assert isinstance(model.kinds()[0].mlp, MoeMlp)
    assert model.kinds()[0].mlp.null_experts == 128


def test_arctic_has_a_dense_mlp_beside_its_experts() -> None:
    """480 B parameters, 17 B active: github.com/Snowflake-Labs/snowflake-arctic, README, as of 2026-11."""
    sizes = {"hidden_size": 7168, "intermediate_size": 4864, "num_hidden_layers": 35, "num_attention_heads": 56}
    sizes |= {"num_key_value_heads": 8, "num_local_experts": 128, "num_experts_per_tok": 2, "vocab_size": 32000}
    sizes |= {"max_position_embeddings": 4096, "moe_layer_frequency": 1}
    model = read_config({"model_type": "arctic", "parallel_attn_mlp_res": True} | sizes, "m")
    assert model.parameters == pytest.approx(480e9, rel=5e-3)
    assert model.active_parameters == pytest.approx(17e9, rel=2e-2)
    assert model.kinds()[0].norms == 3


def test_groups_of_experts_are_read_where_the_router_chooses_among_them() -> None:
    """DeepSeek-V3: 4 of 8 groups; one group, or a greedy choice among all, is none."""
    assert spec("deepseek-v3").last_layer().mlp.router_groups == (8, 4)
    assert spec("deepseek-v2").last_layer().mlp.router_groups == (8, 3)
    assert spec("kimi-k2").last_layer().mlp.router_groups == (0, 0)


def test_ring_groups_linear_layers_before_one_of_softmax_attention() -> None:
    """Ring-V2.5: the last layer of each whole group of four, and what is left behind the groups."""
    latent = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    hybrid = {"model_type": "bailing_hybrid", "num_hidden_layers": 22, "layer_group_size": 4, "v_head_dim": 128}
    model = read_config(CONFIGS["ling-mini-2.0"] | latent | hybrid, "m")
    kinds = [layer.attention for layer in model.layers()]
    soft = [i for i, kind in enumerate(kinds) if isinstance(kind, LatentAttention)]
    assert soft == [3, 7, 11, 15, 19, 20, 21]
    assert kinds[0] == LinearAttention(heads=16, head_dim=128, qk_norm=True)
    # Queries, keys, values, gate and output; the norm over all heads and those of queries and keys.
    assert kinds[0].parameters(2048) == 5 * 2048 * 2048 + 2048 + 2 * 128
    assert not model.notes


def test_zaya_says_how_many_parameters_it_counts_too_few() -> None:
    """Convolutions on queries and keys and routers of several layers, of a class that has 8,840,488,784 parameters."""
    config = {
        "model_type": "zaya",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "num_experts": 16,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 2048,
        "router_hidden_size": 256,
        "vocab_size": 262272,
        "layer_types": ["hybrid", "hybrid_sliding"] * 20,
        "sliding_window": 1024,
    }
    model = read_config(config, "zaya")
    told = next(note for note in model.notes if "are left out" in note)
    fewer = int(re.sub(r"\D", "", told.partition(":")[2]))
    assert model.parameters + fewer == 8_840_488_784


def test_grok_has_four_norms_and_grok_2_a_dense_mlp_beside_its_experts() -> None:
    """Weights of xai-org/grok-2 by their shapes; its config.json says `git`, the name of another model, as its type."""
    first, second = spec("grok-1"), spec("grok-2")
    (old,), (new,) = first.kinds(), second.kinds()
    assert (old.norms, new.norms) == (4, 4)
    assert (old.mlp.expert_width, old.mlp.tensor_width) == (32768, 0)
    assert (new.mlp.expert_width, new.mlp.tensor_width, new.attention.window) == (16384, 32768, None)
    experts = 8 * 3 * 8192 * 16384 + 3 * 8192 * 32768 + 8192 * 8
    attention = 2 * 8192 * (64 + 8) * 128
    assert second.parameters == 64 * (experts + attention + 4 * 8192) + 2 * 131072 * 8192 + 8192
    assert first.parameters == pytest.approx(314e9, rel=6e-3)
