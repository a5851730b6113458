"""Mixers of a decoder from the fields of its config: grouped attention with its windows, and latent attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers import Attention, LatentAttention
from meshwright.specs.layers import MixerKind as MixerKind

SLIDING = frozenset({"sliding_attention", "chunked_attention", "sliding", "local"})
FULL = frozenset({"full_attention", "attention", "full", "global"})
LAYER_TYPES = (*sorted(SLIDING), *sorted(FULL))

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


def read_mixers(fields: Fields, hidden: int, layers: int) -> list[MixerKind]:
    """The mixer of each layer.

    Args:
        fields: the config.
        hidden: width of the residual stream.
        layers: how many there are.
    """
    if fields.given("kv_lora_rank"):
        return [_latent(fields)] * layers
    full = _grouped(fields, hidden)
    sliding, window = _windows(fields, layers)
    narrow = replace(full, window=window) if window else full
    return [narrow if slides else full for slides in sliding]


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


def _windows(fields: Fields, layers: int) -> tuple[list[bool], int | None]:
    """Whether each layer sees a window only, and the window; no layer does where it is null or switched off."""
    key = "attention_chunk_size" if fields.flag("chunked", default=False) else "sliding_window"
    on = fields.flag("use_sliding_window", default=True)
    rule = SLIDES[fields.word("slides", tuple(SLIDES), _usual(fields))]
    words = fields.pattern("layer_types", layers, LAYER_TYPES)
    window = fields.nullable(key, low=0) if on else None
    sliding = [word in SLIDING for word in words] if words else [on and rule(i, fields) for i in range(layers)]
    return sliding, window or None


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
