"""Families whose layers are not all attention: state-space layers, linear attention and convolutions beside it."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields

_STATE_SPACE = {"every_layer": "linear", "no_mlp": True}
_NO_LIMIT = {"max_position_embeddings": 2**20}
"""A recurrent layer has no longest sequence."""

nemotron_h = Family(
    title="Nemotron-H and Nemotron 3",
    defaults={"head_dim": 128, "tie_word_embeddings": False},
    fixed={"gated_mlp": False, "slides": "all", "linear_kind": "mamba2"},
    spells={"head_dim": ("attention_head_dim", "head_dim")},
    required=("num_key_value_heads", "ssm_state_size"),
    dropouts=("attention_dropout", "hidden_dropout"),
)
_DELTA = {"qk_norm": "head", "output_gate": True, "linear_kind": "delta-net"}
qwen3_next = Family(
    title="Qwen3-Next",
    defaults={"head_dim": 256, "full_attention_interval": 4},
    fixed={**_DELTA, "shared_gate": True, "expert_width_stated": True},
    sparse=True,
)
_APART = {**_DELTA, "delta_apart": True}
qwen3_5 = Family(title="Qwen 3.5 and 3.6 dense", defaults={"head_dim": 256, "full_attention_interval": 4}, fixed=_APART)
qwen3_5_moe = Family(
    title="Qwen 3.5 and 3.6 MoE",
    defaults={"head_dim": 256, "full_attention_interval": 4},
    fixed={**_APART, "shared_gate": True, "expert_width_stated": True},
    sparse=True,
)
olmo_hybrid = Family(
    title="OLMo hybrid",
    fixed={"qk_norm": "all", "linear_kind": "delta-net", "delta_apart": True, "delta_keys_apart": True},
    required=(),
)
jamba = Family(
    title="Jamba",
    spells={"moe_intermediate_size": ("intermediate_size",)},
    defaults={
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "ssm_state_size": 16,
    },
    fixed={"mamba_inner_norms": True, "linear_kind": "mamba"},
)


def _bamba(fields: Fields) -> Mapping[str, object]:
    """Bamba: no layer has attention where no list names those that do."""
    return {} if fields.given("attn_layer_indices") else {"every_layer": "linear"}


bamba = Family(title="Bamba", fixed={"linear_kind": "mamba2"}, rule=_bamba)


def _granite(fields: Fields) -> Mapping[str, object]:
    """Granite: without experts, what would be the shared one is the MLP."""
    width = fields.maybe("shared_expert_intermediate_size", low=0)
    return {"intermediate_size": width} if width and not fields.experts(required=False) else {}


granitemoehybrid = Family(
    title="Granite 4 (dense, MoE, hybrid)",
    spells={"moe_intermediate_size": ("intermediate_size",)},
    fixed={"linear_kind": "mamba2"},
    required=(),
    rule=_granite,
)


def _falcon_h1(fields: Fields) -> Mapping[str, object]:
    return {"mamba_proj_bias": fields.flag("projectors_bias", "mamba_proj_bias", default=False)}


falcon_h1 = Family(
    title="Falcon-H1",
    defaults={"mamba_rms_norm": False},
    fixed={"every_layer": "both", "linear_kind": "mamba2"},
    rule=_falcon_h1,
)


def _mamba(fields: Fields) -> Mapping[str, object]:
    """Mamba: `intermediate_size` is the width of the mixer."""
    width = fields.maybe("intermediate_size")
    return {} if width is None else {"mamba_width": width}


mamba = Family(
    title="Mamba",
    defaults={**_NO_LIMIT, "tie_word_embeddings": True, "ssm_state_size": 16},
    fixed={**_STATE_SPACE, "linear_kind": "mamba", "gated_mlp": False},
    required=(),
    dropouts=(),
    rule=_mamba,
)


def _mamba2(fields: Fields) -> Mapping[str, object]:
    """Mamba-2: its classes take no other number of heads than the width of a mixer gives."""
    width = fields.whole("expand", default=2) * fields.whole("hidden_size")
    head = fields.whole("mamba_head_dim", default=64)
    return {} if fields.given("mamba_num_heads") or width % head else {"mamba_num_heads": width // head}


mamba2 = Family(
    title="Mamba-2",
    spells={"mamba_num_heads": ("num_heads",), "mamba_head_dim": ("head_dim",)},
    rule=_mamba2,
    defaults=_NO_LIMIT,
    fixed={**_STATE_SPACE, "linear_kind": "mamba2", "gated_mlp": False},
    required=("ssm_state_size",),
    dropouts=(),
)


def _lfm2(fields: Fields) -> Mapping[str, object]:
    """The width of its MLPs is two thirds of the one stated, rounded up, unless that is switched off.

    Published configs state the widths of blocks and convolutions, too; the classes read the hidden size alone.
    """
    hidden = fields.maybe("hidden_size")
    for key in ("block_dim", "conv_dim", "conv_dim_out"):
        width = fields.maybe(key)
        if width not in (None, hidden):
            fields.refuse(key, width, f"its layers are as wide as hidden_size = {hidden}")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return {}
    key = "block_ff_dim" if fields.given("block_ff_dim") else "intermediate_size"
    width = 2 * fields.whole(key) // 3
    factor = fields.raw("block_ffn_dim_multiplier")
    width = int(factor * width) if isinstance(factor, (int, float)) and 0 < factor <= 64 else width
    step = fields.whole("block_multiple_of", default=256)
    return {"intermediate_size": -(-width // step) * step}


_RWKV = {
    "every_layer": "linear",
    "norm": "layernorm",
    "embedding_norm": True,
    "tie_word_embeddings": False,
}
"""Head and embedding are apart, and a norm follows the embedding, in all of BlinkDL's checkpoints."""
_RWKV_SOURCE = "github.com/BlinkDL/RWKV-LM, and configuration files of RWKV on Hugging Face"
_RWKV_LENGTH = {"max_position_embeddings": ("context_length",)}

rwkv5 = Family(
    title="RWKV-5 (Eagle)",
    source=_RWKV_SOURCE,
    spells=_RWKV_LENGTH,
    fixed={**_RWKV, "rwkv_version": 5},
    required=(),
    dropouts=(),
)
rwkv6 = Family(
    title="RWKV-6 (Finch)",
    source=_RWKV_SOURCE,
    spells=_RWKV_LENGTH,
    fixed={**_RWKV, "rwkv_version": 6},
    required=(),
    dropouts=(),
)
rwkv7 = Family(
    title="RWKV-7 (Goose)",
    source="configuration files of github.com/fla-org/flash-linear-attention, fla/models/rwkv7",
    spells=_RWKV_LENGTH,
    fixed={**_RWKV, "rwkv_version": 7},
    required=("decay_low_rank_dim",),
    dropouts=(),
)
lfm2 = Family(
    title="LFM2",
    defaults={"tie_word_embeddings": True, "conv_L_cache": 3},
    fixed={"qk_norm": "head", "linear_kind": "convolution", "gated_mlp": True},
    dropouts=(),
    rule=_lfm2,
)
lfm2_moe = Family(
    title="LFM2 MoE",
    defaults={"tie_word_embeddings": True, "conv_L_cache": 3},
    fixed={"qk_norm": "head", "linear_kind": "convolution", "gated_mlp": True, "expert_width_stated": True},
    dropouts=(),
    sparse=True,
)


def _lfm3(fields: Fields) -> Mapping[str, object]:
    """Norms behind each part, and a gate a head, unless switched off."""
    return {
        "norms": 4 if fields.flag("use_sandwich_norm", default=True) else 2,
        "head_gate": fields.flag("use_attention_gate", default=True),
    }


lfm3 = Family(
    title="LFM3",
    defaults={"tie_word_embeddings": True, "conv_L_cache": 7},
    fixed={"qk_norm": "head", "linear_kind": "convolution", "gated_mlp": True},
    dropouts=(),
    rule=_lfm3,
)


def _kimi_linear(fields: Fields) -> Mapping[str, object]:
    """Latent attention with an output gate as wide as its values, and a gated activation of its own, in Kimi K3."""
    fields.has("activation_situ_beta", "activation_situ_linear_beta", "mla_use_nope")  # factors, and positions
    parts: dict[str, object] = {"gated_mlp": True}
    if fields.flag("mla_use_output_gate", default=False):
        parts["latent_gate"] = "wide"
    if fields.raw("linear_attn_config") is not None:
        parts["linear_kind"] = "kimi-delta-inside"
    return parts


kimi_linear = Family(
    title="Kimi Linear and K3",
    fixed={"expert_width_stated": True},
    required=("kv_lora_rank",),
    rule=_kimi_linear,
)
minimax = Family(
    title="MiniMax-Text-01 and M1",
    spells={"moe_intermediate_size": ("intermediate_size",)},
    fixed={"linear_kind": "linear", "shared_expert_intermediate_size": 0},
    sparse=True,
)
