"""Attention from the fields of a config: grouped with its windows, and latent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers import Attention, LatentAttention

SLIDES: dict[str, Callable[[int, Fields], bool]] = {
    "all": lambda number, fields: True,
    "even": lambda number, fields: number % 2 == 0,
    "but every n-th": lambda number, fields: (number + 1) % fields.whole("sliding_window_pattern", default=6) != 0,
    "from max_window_layers": lambda number, fields: number >= fields.whole("max_window_layers", default=28, low=0),
    "even below max_window_layers": lambda number, fields: (
        number % 2 == 0 and number < fields.whole("max_window_layers", default=28, low=0)
    ),
}
"""Which layers have the window where `layer_types` does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKinds:
    """Attention of the full layers and of those with a window."""

    full: Attention | LatentAttention
    narrow: Attention | LatentAttention


def read_attention(fields: Fields, hidden: int) -> AttentionKinds:
    """Attention of a decoder: latent where its ranks are given, else grouped.

    Args:
        fields: the config.
        hidden: width of the residual stream.
    """
    if fields.given("kv_lora_rank"):
        latent = _latent(fields)
        return AttentionKinds(full=latent, narrow=latent)
    full = _grouped(fields, hidden)
    window = _window(fields)
    return AttentionKinds(full=full, narrow=replace(full, window=window) if window else full)


def _grouped(fields: Fields, hidden: int) -> Attention:
    heads = fields.whole("num_attention_heads")
    if fields.flag("multi_head", default=False):
        kv_heads = heads
    elif fields.flag("multi_query", default=False):
        kv_heads = 1
    else:
        kv_heads = fields.kv_heads(heads)
    bias = fields.flag("attention_bias", default=fields.flag("bias", default=False))
    qk_norm = fields.word("qk_norm", ("none", "head", "all"), "none") if fields.fixed("qk_norm") else _qk_norm(fields)
    return Attention(
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        head_dim=fields.head_dim(hidden, heads),
        qkv_bias=fields.flag("qkv_bias", default=bias),
        out_bias=fields.flag("out_bias", default=bias),
        qk_norm=qk_norm != "none",
        gate=fields.flag("output_gate", default=False),
        sinks=fields.flag("sinks", default=False),
    )


def _qk_norm(fields: Fields) -> str:
    if not fields.flag("qk_norm", default=False):
        return "none"
    return "all" if fields.raw("qk_norm_type") == "per_layer" else "head"


def _window(fields: Fields) -> int | None:
    """Keys that a query of a sliding layer sees; None where it is null or switched off."""
    key = "attention_chunk_size" if fields.flag("chunked", default=False) else "sliding_window"
    return (fields.nullable(key, low=0) or None) if fields.flag("use_sliding_window", default=True) else None


def sliding_layers(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer has the window, where no list says.

    Args:
        fields: the config.
        layers: how many there are.
    """
    rule = SLIDES[fields.word("slides", tuple(SLIDES), _usual(fields))]
    on = fields.flag("use_sliding_window", default=True)
    return [on and rule(number, fields) for number in range(layers)]


def _usual(fields: Fields) -> str:
    """Where no family says which layers have the window."""
    return "but every n-th" if fields.given("sliding_window_pattern") else "all"


def _latent(fields: Fields) -> LatentAttention:
    """Multi-head latent attention; a null query rank projects queries directly."""
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", True, "latent attention with biases cannot be planned", "set it to false")
    nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
    head = fields.maybe("qk_head_dim")
    if head not in (None, nope + rope) and not fields.bad("qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"):
        fields.problem("qk_head_dim", head, f"qk_nope_head_dim + qk_rope_head_dim is {nope + rope}", "leave it out")
    return LatentAttention(
        heads=fields.whole("num_attention_heads"),
        q_rank=fields.maybe("q_lora_rank"),
        kv_rank=fields.whole("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=rope,
        value_dim=fields.whole("v_head_dim"),
    )
