"""Families with a mixture of experts: each says where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields

_EXPERTS_ARE_THE_MLP = {"moe_intermediate_size": ("intermediate_size",)}
"""Families whose `intermediate_size` is the width of an expert."""

aria = Family(title="Aria", spells=_EXPERTS_ARE_THE_MLP, required=(), sparse=True)
mixtral = Family(title="Mixtral", spells=_EXPERTS_ARE_THE_MLP, fixed={"slides": "all"}, sparse=True)
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
# Balancing biases are not counted: they are moved by the load, not by a gradient.


def _deepseek_v2(fields: Fields) -> Mapping[str, object]:
    """Plain attention in the smallest DeepSeek-VL2, whose ranks and sizes of latent attention are null or 0."""
    if fields.flag("use_mla", default=True):
        return {}
    fields.has("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    return {"kv_lora_rank": None, "v_head_dim": None}


deepseek_v2 = Family(
    title="DeepSeek-V2 and V2-Lite",
    fixed={"expert_width_stated": True},
    required=("q_lora_rank", "kv_lora_rank"),
    rule=_deepseek_v2,
)
deepseek_v3 = Family(
    title="DeepSeek-V3, V3.1, R1 and Kimi K2",
    fixed={"expert_width_stated": True},
    required=("q_lora_rank", "kv_lora_rank"),
)
deepseek_moe = Family(
    title="DeepSeek-MoE",
    source="configuration and modelling files of deepseek-ai/deepseek-moe-16b-base on Hugging Face",
    fixed={"expert_width_stated": True},
)
deepseek_v32 = Family(
    title="DeepSeek-V3.2",
    fixed={"expert_width_stated": True},
    required=("q_lora_rank", "kv_lora_rank", "index_topk"),
)
_RATES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens of an entry by the word of a layer, unless `compress_rates` says otherwise."""


def _deepseek_v4(fields: Fields) -> Mapping[str, object]:
    """Files saved by transformers 5 have a word a layer and a rate a word; published ones a rate a layer."""
    words, stated = fields.raw("layer_types"), fields.raw("compress_rates")
    parts: dict[str, object] = {}
    if fields.raw("compress_ratios") is None and isinstance(words, list):
        rates = {**_RATES, **(stated if isinstance(stated, Mapping) else {})}
        strange = [word for word in words if not isinstance(word, str) or word not in rates]
        if strange:
            fields.refuse("layer_types", strange[0], f"only {', '.join(rates)} can be planned")
        parts["compress_ratios"] = [rates.get(word, 0) if isinstance(word, str) else 0 for word in words]
    if isinstance(kinds := fields.raw("mlp_layer_types"), list):
        # Experts chosen by a hash of the token are as many and as wide as those that a router chooses.
        parts["mlp_layer_types"] = ["moe" if kind == "hash_moe" else kind for kind in kinds]
    return parts


deepseek_v4 = Family(
    title="DeepSeek-V4",
    fixed={"expert_width_stated": True},
    required=("q_lora_rank", "compress_ratios", "hc_mult"),
    sparse=True,
    rule=_deepseek_v4,
)
glm_moe_dsa = Family(
    title="GLM-5, 5.1 and 5.2",
    fixed={"expert_width_stated": True},
    required=("q_lora_rank", "kv_lora_rank", "index_topk"),
)
glm4_moe_lite = Family(
    title="GLM-4.7-Flash", fixed={"expert_width_stated": True}, required=("q_lora_rank", "kv_lora_rank")
)


def _longcat(fields: Fields) -> Mapping[str, object]:
    """Two attentions and two dense MLPs a layer, the experts beside the first MLP as if it were their shared one."""
    layers, width = fields.whole("num_hidden_layers"), fields.whole("intermediate_size")
    idle = fields.whole("zero_expert_num", default=0, low=0)
    if idle:
        extra = idle * layers * 2 * fields.whole("hidden_size") * fields.whole("moe_intermediate_size")
        fields.remark(
            f"the class of transformers 5.23 also allocates gate and up matrices of its {idle} experts without work: "
            f"{extra / 1e9:.3g}B parameters that nothing reads, left out as published weights leave them out"
        )
    return {
        "num_hidden_layers": 2 * layers,
        "expert_layer_period": 2,
        "shared_expert_intermediate_size": width,
        "intermediate_size": width,
    }


longcat_flash = Family(
    title="LongCat-Flash",
    spells={"num_hidden_layers": ("num_layers",)},
    fixed={"expert_width_stated": True},
    required=("q_lora_rank", "kv_lora_rank"),
    sparse=True,
    rule=_longcat,
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


def _minicpm3(fields: Fields) -> Mapping[str, object]:
    """Values as wide as a share of the hidden size where nothing is said."""
    width = fields.whole("hidden_size") // fields.whole("num_attention_heads")
    return {"v_head_dim": fields.whole("v_head_dim", default=max(1, width))}


minicpm3 = Family(
    title="MiniCPM3",
    required=("q_lora_rank", "kv_lora_rank"),
    defaults={"tie_word_embeddings": True},
    rule=_minicpm3,
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
axk1 = Family(title="A.X K1", fixed={"expert_width_stated": True}, required=("q_lora_rank", "kv_lora_rank"))
mellum = Family(title="Mellum 2", fixed={"qk_norm": "head", "expert_width_stated": True}, sparse=True)
beam = Family(
    title="Beam",
    fixed={"qk_norm": "head", "norms": 4, "output_gate": True, "expert_width_stated": True},
    sparse=True,
)


def _axk2(fields: Fields) -> Mapping[str, object]:
    """Norms before attention and experts have gates of low rank, which are left out."""
    rank, layers = fields.whole("gated_norm_rank", low=0, default=0), fields.layers()
    words = fields.raw("mlp_layer_types")
    listed = words if isinstance(words, list) else ()
    dense = listed.count("dense") if listed else fields.whole("first_k_dense_replace", low=0, default=1)
    if rank:
        fewer = 2 * rank * fields.whole("hidden_size") * (2 * layers - dense)
        fields.remark(f"gates of rank {rank} on norms are left out: {fewer:,} parameters fewer than it has are counted")
    return {}


axk2 = Family(
    title="A.X K2",
    fixed={"expert_width_stated": True, "latent_gate": "latent"},
    required=("q_lora_rank", "kv_lora_rank", "index_topk"),
    sparse=True,
    rule=_axk2,
)


def _glm5_next(fields: Fields) -> Mapping[str, object]:
    """Kimi's linear attention in three layers of four, latent attention without rotary parts in the others."""
    fields.has("index_kpool_always_select_tail", "head_dim", "linear_lower_bound", "index_topk_pattern")
    if fields.maybe("index_kpool"):
        fields.remark("the indexer's keys are pooled, which is left out: 0.002% of the parameters of GLM-5.3-Flash")
    pattern = fields.raw("index_topk_pattern")
    words = {"F": "full", "S": "shared"}
    parts: dict[str, object] = {}
    if isinstance(pattern, str) and set(pattern) <= set(words):
        parts["indexer_types"] = [words[letter] for letter in pattern]
    if fields.raw("layer_types") is None and fields.raw("linear_attn_config") is None:
        layers = fields.layers()
        parts["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    return parts


glm5_next = Family(
    title="GLM-5.3-Flash",
    fixed={"expert_width_stated": True, "hyper_connections": True, "linear_kind": "kimi-delta"},
    required=("q_lora_rank", "kv_lora_rank", "index_topk"),
    sparse=True,
    rule=_glm5_next,
)
hy_v4 = Family(
    title="Hunyuan 4",
    fixed={
        "expert_width_stated": True,
        "hyper_connections": True,
        "residual_mixing": False,
        "latent_gate": "wide",
        "sinks": True,
    },
    required=("q_lora_rank", "kv_lora_rank", "index_topk"),
    sparse=True,
)
