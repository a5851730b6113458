"""Families with a mixture of experts: each says where it differs.

Balancing biases are not counted: they are moved by the load, not by a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields

_EXPERTS_ARE_THE_MLP = {"moe_intermediate_size": ("intermediate_size",)}
"""Families whose `intermediate_size` is the width of an expert."""

aria = Family(title="Aria", spells=_EXPERTS_ARE_THE_MLP, required=(), sparse=True)
mixtral = Family(title="Mixtral", spells=_EXPERTS_ARE_THE_MLP, fixed={"slides": "all"}, sparse=True)


def _grok(fields: Fields) -> Mapping[str, object]:
    """Grok 2 has a dense MLP beside the experts, as wide as its config's MLPs; Grok 1 experts of that width alone."""
    factors = "attn_output_multiplier", "embedding_multiplier_scale", "output_multiplier_scale", "max_attn_value"
    fields.has(*factors, "attn_temperature_len", "global_attn_every_n")  # and every layer attends to all tokens
    dense = fields.flag("residual_moe", default=False)
    width = fields.whole("intermediate_size")
    parts: dict[str, object] = {"shared_expert_intermediate_size": width if dense else 0}
    if not dense:
        parts["moe_intermediate_size"] = width
    if fields.raw("max_attn_value") is not None:
        parts["attn_logit_softcapping"] = fields.raw("max_attn_value")
    if fields.raw("sliding_window_size") == -1:
        parts["sliding_window"] = None
    return parts


grok = Family(
    title="Grok 1 and 2",
    source="xai-org/grok-1, model.py, and config.json and weights of xai-org/grok-2 (2025-08)",
    fixed={"norms": 4, "gated_mlp": True, "expert_width_stated": True},
    sparse=True,
    rule=_grok,
)
phimoe = Family(
    title="Phi-3.5-MoE",
    spells=_EXPERTS_ARE_THE_MLP,
    fixed={"slides": "all", "norm": "layernorm", "gated_mlp": True},
    sparse=True,
)
qwen2_moe = Family(
    title="Qwen1.5-MoE and Qwen2-MoE",
    defaults={"use_sliding_window": False},
    fixed={
        "qkv_bias": True,
        "out_bias": False,
        "slides": "even below max_window_layers",
        "shared_gate": True,
        "expert_width_stated": True,
    },
    required=("num_key_value_heads", "shared_expert_intermediate_size"),
    sparse=True,
)
qwen3_moe = Family(
    title="Qwen3-MoE",
    defaults={"use_sliding_window": False, "sliding_window": 4096},
    fixed={"qk_norm": "head", "slides": "all", "expert_width_stated": True, "shared_expert_intermediate_size": 0},
    sparse=True,
)
gpt_oss = Family(
    title="gpt-oss",
    spells=_EXPERTS_ARE_THE_MLP,
    defaults={"head_dim": 64, "attention_bias": True, "sliding_window": 128},
    fixed={"sinks": True, "slides": "even", "router_bias": True, "expert_bias": True, "gated_mlp": True},
    sparse=True,
)
olmoe = Family(title="OLMoE", spells=_EXPERTS_ARE_THE_MLP, fixed={"qk_norm": "all"}, required=(), sparse=True)
flex_olmo = Family(title="FlexOlmo", spells=_EXPERTS_ARE_THE_MLP, fixed={"qk_norm": "all"}, required=(), sparse=True)
granitemoe = Family(title="Granite 3 MoE", spells=_EXPERTS_ARE_THE_MLP, required=(), sparse=True)
granitemoe_swa = Family(
    title="Granite MoE with windows", spells=_EXPERTS_ARE_THE_MLP, fixed={"sinks": True}, required=(), sparse=True
)
minimax_m2 = Family(
    title="MiniMax-M2",
    spells=_EXPERTS_ARE_THE_MLP,
    defaults={"qk_norm": True, "qk_norm_type": "per_layer"},
    sparse=True,
)


def _ernie(fields: Fields) -> Mapping[str, object]:
    """Vision models have experts of their own for tokens of images, of another number or width."""
    for key in ("num_experts", "moe_intermediate_size"):
        value = fields.raw(key)
        if isinstance(value, list):
            why = "experts for text and others for images in one layer cannot be planned"
            fields.refuse(key, value, why, "give the first number alone to plan the model without those for images")
    both = ("num_experts", "moe_intermediate_size", "first_k_dense_replace", "moe_layer_end_index")
    pairs = {key: value[0] for key in both if isinstance(value := fields.raw(key), list) and value}
    return {key: value for key, value in pairs.items() if isinstance(value, int)}


ernie4_5_moe = Family(
    title="ERNIE 4.5 MoE",
    spells={"first_k_dense_replace": ("moe_layer_start_index",)},
    defaults={"tie_word_embeddings": True, "expert_width_stated": True},
    sparse=True,
    rule=_ernie,
)


_KDA = ("kda_safe_gate", "kda_lower_bound", "short_conv_kernel_size")
"""Keys of configs whose linear layers are of Kimi's kind."""


def _bailing(fields: Fields) -> Mapping[str, object]:
    """One layer of softmax attention in each whole group of layers, and those behind the last of these."""
    group = fields.maybe("layer_group_size")
    if any(fields.given(key) for key in _KDA):
        fields.has(*_KDA, "linear_lower_bound")
        dim = fields.maybe("linear_head_dim") or fields.whole("head_dim", default=128)
        return {
            "linear_kind": "kimi-delta",
            "linear_num_heads": fields.maybe("linear_num_heads") or fields.whole("num_attention_heads"),
            "linear_head_dim": dim,
            "delta_low_rank": False,
            "latent_gate": "head",
        }
    if group is None:
        return {}
    layers = fields.whole("num_hidden_layers")
    whole = layers // group * group
    soft = [(i + 1) % group == 0 or i >= whole for i in range(layers)]
    return {"layer_types": ["full_attention" if one else "linear_attention" for one in soft], "linear_kind": "linear"}


bailing_moe = Family(
    title="Ling and Ring (Bailing MoE 1 to 2.5)",
    source="configuration and modelling files of inclusionAI's Ling-lite, Ling-mini-2.0 and Ring-V2.5",
    fixed={"expert_width_stated": True},
    sparse=True,
    rule=_bailing,
)
bailing_hybrid = replace(bailing_moe, title="Ling 3")
"""The one Ling whose class is in transformers; those of the others come with their weights."""
dots1 = Family(
    title="dots.llm1",
    fixed={"qk_norm": "head", "expert_width_stated": True, "slides": "from max_window_layers"},
    sparse=True,
)
glm4_moe = Family(title="GLM-4.5, 4.6 and 4.7", fixed={"out_bias": False, "expert_width_stated": True}, sparse=True)


def _llama4(fields: Fields) -> Mapping[str, object]:
    """Routed experts and a shared one as wide; a layer is chunked unless it is the n-th without positions.

    Its norm on queries and keys has no weights and is not counted.
    """
    return {"sliding_window_pattern": fields.whole("no_rope_layer_interval", default=4)}


llama4 = Family(
    title="Llama 4",
    spells={**_EXPERTS_ARE_THE_MLP, "shared_expert_intermediate_size": ("intermediate_size",)},
    defaults={"head_dim": 128, "attention_chunk_size": 8192},
    fixed={"chunked": True, "slides": "but every n-th", "qk_norm": "none"},
    sparse=True,
    rule=_llama4,
)


_OF_ZAYA = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}


def _zaya(fields: Fields) -> Mapping[str, object]:
    """Attention whose queries and keys pass two short convolutions (CCA), routers of several layers, and scales on the
    residual stream; all of these are left out: they are 0.4% of its parameters (Figliolia et al. 2025, arXiv
    2510.04476)."""
    hidden, experts, layers = fields.whole("hidden_size"), fields.whole("num_experts"), fields.layers()
    keys, dim, wide = fields.whole("num_key_value_heads"), fields.whole("head_dim"), fields.whole("router_hidden_size")
    taps = fields.whole("cca_time0", default=2), fields.whole("cca_time1", default=2)
    channels = (fields.whole("num_attention_heads") + keys) * dim
    convolved = channels * (taps[0] + 1) + channels * (dim * taps[1] + 1) + keys
    routed = (hidden + 1) * wide + 2 * (wide + 1) * wide + (experts + 1) * wide + 2 * wide
    fewer = layers * (convolved + routed + 8 * hidden - experts * hidden) + 2 * hidden - wide
    fields.remark(
        "convolutions on queries and keys, layers of routers and scales of the residual stream are left out: "
        f"{fewer:,} parameters fewer than it has are counted"
    )
    words = fields.raw("layer_types")
    return {"layer_types": [_OF_ZAYA.get(word, word) for word in words]} if isinstance(words, list) else {}


zaya = Family(
    title="ZAYA1",
    source="modeling_zaya.py of transformers 5.23.0",
    defaults={"tie_word_embeddings": True},
    fixed={"expert_width_stated": True},
    required=("num_key_value_heads", "head_dim", "router_hidden_size"),
    sparse=True,
    rule=_zaya,
)
deepseek_moe = Family(
    title="DeepSeek-MoE",
    source="configuration and modelling files of deepseek-ai/deepseek-moe-16b-base on Hugging Face",
    fixed={"expert_width_stated": True},
)


minimax_m3 = Family(
    title="MiniMax-M3",
    defaults={"expert_width_stated": True, "qk_norm": True},
    spells={"moe_intermediate_size": ("moe_intermediate_size", "intermediate_size")},
    fixed={"gated_mlp": True},
    sparse=True,
)
mimo_v2 = Family(
    title="MiMo-V2-Flash",
    spells={"sliding_window": ("sliding_window", "attention_chunk_size")},
    defaults={"sliding_window": 128, "swa_num_key_value_heads": 8, "add_swa_attention_sink_bias": True},
    fixed={"norm": "rmsnorm", "expert_width_stated": True},
    sparse=True,
)


def _dbrx(fields: Fields) -> Mapping[str, object]:
    attention, experts = fields.inside("attn_config"), fields.inside("ffn_config")
    return {
        "num_key_value_heads": attention.whole("kv_n_heads"),
        "num_experts": experts.whole("moe_num_experts"),
        "num_experts_per_tok": experts.whole("moe_top_k"),
        "moe_intermediate_size": experts.whole("ffn_hidden_size"),
    }


dbrx = Family(
    title="DBRX",
    fixed={"gated_mlp": True, "norm": "rmsnorm"},
    required=(),
    dropouts=("resid_pdrop", "emb_pdrop"),
    rule=_dbrx,
)


def _hunyuan(fields: Fields) -> Mapping[str, object]:
    """Lists of one number a layer are read where all of them agree."""
    parts: dict[str, object] = {}
    for key in ("num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"):
        value = fields.raw(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            parts[key] = value[0]
    return parts


hunyuan_moe = Family(
    title="Hunyuan MoE (Large, A13B)",
    fixed={"qk_norm": "head"},
    defaults={"n_shared_experts": 1},
    rule=_hunyuan,
)
exaone_moe = Family(
    title="EXAONE MoE",
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    fixed={"qk_norm": "head", "slides": "but every n-th", "expert_width_stated": True},
    sparse=True,
)
hy_v3 = Family(title="Hunyuan 3", fixed={"qk_norm": "head", "expert_width_stated": True}, sparse=True)
flint = Family(title="Flint", fixed={"qk_norm": "head", "sinks": True, "expert_width_stated": True}, sparse=True)
kolibri1 = Family(title="Kolibri", fixed={"qk_norm": "head", "norms": 4, "expert_width_stated": True}, sparse=True)
afmoe = Family(
    title="Arcee Trinity",
    spells={"sliding_window_pattern": ("global_attn_every_n_layers",)},
    fixed={
        "qk_norm": "head",
        "norms": 4,
        "output_gate": True,
        "slides": "but every n-th",
        "expert_width_stated": True,
    },
    sparse=True,
)
laguna = Family(
    title="Laguna",
    spells={"head_gate": ("gating",)},
    fixed={"qk_norm": "head", "expert_width_stated": True},
    sparse=True,
)


def _arctic(fields: Fields) -> Mapping[str, object]:
    """A dense MLP as wide as the stream beside the experts, as if it were their shared one, with a norm of its own."""
    if not fields.flag("parallel_attn_mlp_res", default=False):
        return {}
    return {"shared_expert_intermediate_size": fields.whole("hidden_size"), "norms": 3}


arctic = Family(
    title="Arctic",
    source="configuration and modelling files of Snowflake/snowflake-arctic-base on Hugging Face",
    spells={**_EXPERTS_ARE_THE_MLP, "decoder_sparse_step": ("moe_layer_frequency",)},
    sparse=True,
    rule=_arctic,
)


def _cohere2_moe(fields: Fields) -> Mapping[str, object]:
    """Dense layers before the others may have a width and a pattern of windows of their own."""
    parts: dict[str, object] = {}
    width = fields.maybe("prefix_dense_intermediate_size")
    if width:
        parts["dense_intermediate_size"] = width
    first = fields.whole("first_k_dense_replace", low=0, default=0)
    if fields.raw("layer_types") is None:
        every, before = fields.whole("sliding_window_pattern", default=4), fields.whole(PREFIX, default=1)
        layers = fields.layers()
        places = [(i + 1, before) if i < first else (i - first + 1, every) for i in range(layers)]
        parts["layer_types"] = ["full_attention" if at % step == 0 else "sliding_attention" for at, step in places]
    fields.has(PREFIX)
    return parts


PREFIX = "prefix_dense_sliding_window_pattern"
cohere2_moe = Family(
    title="Command MoE",
    spells=_EXPERTS_ARE_THE_MLP,
    defaults={"tie_word_embeddings": True, "head_dim": 128, "sliding_window": 4096},
    # Its LayerNorm has scales and no shifts, as an RMSNorm counts and moves bytes.
    fixed={"norm": "rmsnorm", "norms": 1, "parallel_block": True},
    required=(),
    sparse=True,
    rule=_cohere2_moe,
)


step3p5 = Family(
    title="Step 3.5 and 3.7",
    fixed={"qk_norm": "head", "head_gate": True, "expert_width_stated": True},
    sparse=True,
)
solar_open = Family(title="Solar Open", defaults={"head_dim": 128}, fixed={"expert_width_stated": True}, sparse=True)
mellum = Family(title="Mellum 2", fixed={"qk_norm": "head", "expert_width_stated": True}, sparse=True)
beam = Family(
    title="Beam",
    fixed={"qk_norm": "head", "norms": 4, "output_gate": True, "expert_width_stated": True},
    sparse=True,
)
