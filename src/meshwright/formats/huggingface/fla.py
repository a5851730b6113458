"""Families of flash-linear-attention, as its trainer flame has them: a transformer and gated delta nets."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields

_SOURCE = "configuration and modelling files of github.com/fla-org/flash-linear-attention, fla/models, 2026-11"
_KERNELS = ("elementwise_affine", "use_l2warp", "fuse_swiglu", "fuse_linear_cross_entropy", "fuse_norm", "attn_mode")


def _width(fields: Fields) -> dict[str, object]:
    """Width of the MLPs: two thirds of `hidden_ratio` times the hidden size, in whole 256, unless stated."""
    ratio = fields.whole("hidden_ratio", default=4, high=64)
    wide = -(-int(fields.whole("hidden_size") * ratio * 2 / 3) // 256) * 256
    return {} if fields.given("intermediate_size") else {"intermediate_size": wide}


def _only(fields: Fields, plain: Mapping[str, object]) -> None:
    """Note settings that change the layers, and refuse them where they do."""
    fields.has(*_KERNELS)
    for key, usual in plain.items():
        if (said := fields.raw(key)) not in (None, usual):
            fields.refuse(key, said, f"only {usual} can be planned")


def _transformer(fields: Fields) -> Mapping[str, object]:
    """Llama's layers."""
    _only(fields, {"attnres_block_size": "none"})
    return _width(fields)


transformer = Family(
    title="transformers of flash-linear-attention",
    source=_SOURCE,
    spells={"sliding_window": ("window_size",)},
    defaults={"vocab_size": 32_000, "max_position_embeddings": 2048},
    fixed={"slides": "all", "out_bias": False},
    required=(),
    dropouts=(),
    rule=_transformer,
)


def _gated_deltanet(fields: Fields) -> Mapping[str, object]:
    """Gated delta net in every layer, of values `expand_v` times as wide as keys."""
    _only(fields, {"attn": "none", "attnres_block_size": "none", "use_gate": True, "use_short_conv": True})
    fields.has("allow_neg_eigval")
    heads, head, wider = fields.whole("num_attention_heads"), fields.whole("head_dim", default=256), 2.0
    if isinstance(stated := fields.raw("expand_v"), (int, float)) and 0 < stated <= 64:
        wider = float(stated)
    return {
        **_width(fields),
        "every_layer": "linear",
        "linear_num_key_heads": heads,
        "linear_num_value_heads": fields.whole("num_v_heads", default=heads),
        "linear_key_head_dim": head,
        "linear_value_head_dim": max(1, int(head * wider)),
        "linear_conv_kernel_dim": fields.whole("conv_size", default=4),
    }


gated_deltanet = Family(
    title="Gated DeltaNet",
    source=_SOURCE,
    defaults={"vocab_size": 32_000, "max_position_embeddings": 2048},
    fixed={"linear_kind": "delta-net", "delta_apart": True, "delta_keys_apart": True},
    required=(),
    dropouts=(),
    rule=_gated_deltanet,
)
