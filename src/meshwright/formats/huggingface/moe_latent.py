"""Families with latent attention, most of them with experts: each says where it differs."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields


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
axk1 = Family(title="A.X K1", fixed={"expert_width_stated": True}, required=("q_lora_rank", "kv_lora_rank"))


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


def _mistral_large4(fields: Fields) -> Mapping[str, object]:
    """Layers without rotary positions have heads as wide; those that take the keys of others cannot be planned."""
    sources = fields.raw("kv_source_layers")
    if isinstance(sources, list) and sources != list(range(len(sources))):
        why = "layers that share the keys and values of others cannot be planned"
        fields.refuse("kv_source_layers", sources, why, "leave it out to plan the model with those of each layer")
    turned, turns = fields.raw("no_rope_layers"), fields.whole("qk_rope_head_dim", low=0)
    if not isinstance(turned, list) or not turns:
        return {}
    still = {"qk_nope_head_dim": fields.whole("qk_nope_head_dim") + turns, "qk_rope_head_dim": 0}
    return {"per_layer_config": {str(number): still for number, one in enumerate(turned) if not one}}


mistral_large4 = Family(
    title="Mistral Large 4",
    fixed={"expert_width_stated": True},
    required=("kv_lora_rank", "index_topk"),
    sparse=True,
    rule=_mistral_large4,
)
dots3_note = Family(
    title="dots3.note",
    spells={"shared_expert_intermediate_size": ("shared_experts_intermediate_size",)},
    fixed={"expert_width_stated": True, "latent_gate": "head"},
    required=("q_lora_rank", "kv_lora_rank"),
    sparse=True,
)
mistral4 = Family(
    title="Mistral Small 4", fixed={"expert_width_stated": True}, required=("q_lora_rank", "kv_lora_rank"), sparse=True
)
