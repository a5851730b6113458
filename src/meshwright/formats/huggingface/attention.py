"""Attention from the fields of a config: grouped with its windows, and latent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers.attention import Attention

if TYPE_CHECKING:
    from meshwright.specs.layers.indexer import Indexer
    from meshwright.specs.layers.latent_attention import LatentAttention

SLIDES: dict[str, Callable[[int, Fields], bool]] = {
    "all": lambda number, fields: True,
    "even": lambda number, fields: number % 2 == 0,
    "odd": lambda number, fields: number % 2 == 1,
    "but every n-th": lambda number, fields: (number + 1) % fields.whole("sliding_window_pattern", default=6) != 0,
    "from max_window_layers": lambda number, fields: number >= fields.whole("max_window_layers", default=28, low=0),
    "even below max_window_layers": lambda number, fields: (
        number % 2 == 0 and number < fields.whole("max_window_layers", default=28, low=0)
    ),
}
"""Which layers have the window where `layer_types` does not say."""
LATENT_GATES = ("none", "head", "wide", "latent")
"""Gates on the output of latent attention, which a family has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKinds:
    """Attention of the full layers and of those with a window or chunks, for each layer where layers differ."""

    full: tuple[Attention | LatentAttention, ...]
    narrow: tuple[Attention | LatentAttention, ...]


def read_attention(fields: Fields, hidden: int, layers: int) -> AttentionKinds:
    """Attention of a decoder: latent where its ranks are given, else grouped.

    Args:
        fields: the config.
        hidden: width of the residual stream.
        layers: how many there are.
    """
    indexers: list[Indexer | None] = [None] * layers
    if any(fields.given(key) for key in ("index_topk", "sparse_attention_config", "index_topk_blocks")):
        from meshwright.formats.huggingface.indexers import read_indexers

        indexers = read_indexers(fields, layers)
    if fields.given("kv_lora_rank"):
        latent = _latent(fields)
        latents = tuple(replace(latent, indexer=indexer) for indexer in indexers)
        words = fields.raw("layer_types")
        near = fields.maybe("sliding_window") if isinstance(words, list) and "sliding_attention" in words else None
        return AttentionKinds(
            full=latents, narrow=latents if near is None else (replace(latent, window=near),) * layers
        )
    grouped = _grouped(fields, hidden)
    groups = fields.wholes("num_key_value_heads", layers)
    full = _with_groups(fields, _full(fields, grouped), groups or [None] * layers)
    narrow = _with_groups(fields, _narrow(fields, grouped), groups or [None] * layers)
    heads = fields.wholes("num_attention_heads_per_layer", layers)
    full, narrow = _with_heads(fields, full, heads), _with_heads(fields, narrow, heads)
    full = tuple(replace(kind, indexer=indexer) for kind, indexer in zip(full, indexers, strict=True))
    cut = any(kind.window or kind.chunk for kind in narrow)
    return AttentionKinds(full=full, narrow=narrow if cut or not any(indexers) else full)


def _with_groups(fields: Fields, kind: Attention, groups: Sequence[int | None]) -> tuple[Attention, ...]:
    """One kind of attention with the key and value heads of each layer, its own where None."""
    wrong = next((number for number in groups if number and kind.heads % number), None)
    if wrong is not None and not fields.bad("num_attention_heads", "num_key_value_heads"):
        fields.problem("num_key_value_heads", wrong, f"must divide num_attention_heads = {kind.heads}")
    return tuple(replace(kind, kv_heads=number) if number and kind.heads % number == 0 else kind for number in groups)


def _with_heads(fields: Fields, kinds: tuple[Attention, ...], heads: Sequence[int] | None) -> tuple[Attention, ...]:
    """Attention with the query heads of each layer, where a list says them."""
    if heads is None:
        return kinds
    pairs = list(zip(kinds, heads, strict=True))
    wrong = next((number for kind, number in pairs if number % kind.kv_heads), None)
    if wrong is not None and not fields.bad("num_attention_heads_per_layer", "num_key_value_heads"):
        fields.problem("num_attention_heads_per_layer", wrong, "must be a multiple of num_key_value_heads")
    return tuple(replace(kind, heads=number) if number % kind.kv_heads == 0 else kind for kind, number in pairs)


def _grouped(fields: Fields, hidden: int) -> Attention:
    heads = fields.whole("num_attention_heads")
    if fields.flag("multi_head", default=False):
        kv_heads = heads
    elif fields.flag("multi_query", default=False):
        kv_heads = 1
    elif isinstance(fields.raw("num_key_value_heads"), (list, tuple)):
        kv_heads = heads
    else:
        kv_heads = fields.kv_heads(heads)
    bias = fields.flag("attention_bias", default=fields.flag("bias", default=False))
    head_dim = fields.head_dim(hidden, heads)
    value_dim = fields.maybe("v_head_dim")
    scales = _qk_scales(fields)
    return Attention(
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        head_dim=head_dim,
        value_dim=None if value_dim == head_dim else value_dim,
        causal=not _sees_later(fields),
        qkv_bias=fields.flag("qkv_bias", default=bias),
        out_bias=fields.flag("out_bias", default=bias),
        qk_norm=scales is not None,
        qk_scales="all" if scales == "all" else "head",
        gate=fields.flag("output_gate", default=False),
        head_gate=fields.flag("head_gate", default=False),
        sinks=fields.flag("sinks", default=False),
        softcap=fields.raw("attn_logit_softcapping") not in (None, 0),
    )


def _sees_later(fields: Fields) -> bool:
    """Whether tokens of the text see later ones, as in diffusion models and models of embeddings."""
    return fields.flag("bidirectional", default=False) or fields.raw("use_bidirectional_attention") in (True, "all")


def _qk_scales(fields: Fields) -> str | None:
    """Norms on queries and keys: as wide as a `head`, as `all` of them, or None."""
    if fields.fixed("qk_norm"):
        said = fields.word("qk_norm", ("none", "head", "all"), "none")
        return None if said == "none" else said
    if not fields.flag("qk_norm", default=False):
        return None
    return "all" if fields.raw("qk_norm_type") == "per_layer" else "head"


def _full(fields: Fields, attention: Attention) -> Attention:
    """Attention of the full layers, whose heads may have sizes of their own (Gemma 4)."""
    kv_heads = fields.maybe("num_global_key_value_heads")
    if kv_heads is not None and attention.heads % kv_heads:
        fields.problem("num_global_key_value_heads", kv_heads, f"must divide the heads = {attention.heads}")
        kv_heads = None
    return replace(
        attention,
        kv_heads=kv_heads or attention.kv_heads,
        head_dim=fields.maybe("global_head_dim") or attention.head_dim,
        value_is_key=fields.flag("attention_k_eq_v", default=False),
        sinks=fields.flag("add_full_attention_sink_bias", default=attention.sinks),
    )


def _narrow(fields: Fields, attention: Attention) -> Attention:
    """Attention of the layers with a window or chunks, whose heads may have sizes of their own (MiMo-V2)."""
    if not fields.flag("use_sliding_window", default=True):
        return attention
    heads = fields.maybe("swa_num_attention_heads") or attention.heads
    kv_heads = fields.maybe("swa_num_key_value_heads") or attention.kv_heads
    if heads % kv_heads:
        fields.problem("swa_num_key_value_heads", kv_heads, f"must divide the heads = {heads}")
        kv_heads = heads
    head_dim = fields.maybe("swa_head_dim") or attention.head_dim
    value_dim = fields.maybe("swa_v_head_dim") or attention.value_dim
    narrow = replace(
        attention,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=None if value_dim == head_dim else value_dim,
        sinks=fields.flag("add_swa_attention_sink_bias", default=attention.sinks),
    )
    if fields.flag("chunked", default=False):
        return replace(narrow, chunk=fields.nullable("attention_chunk_size", low=0) or None)
    return replace(narrow, window=fields.nullable("sliding_window", low=0) or None)


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
    from meshwright.specs.layers.latent_attention import LatentAttention

    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", True, "latent attention with biases cannot be planned", "set it to false")
    nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim", low=0)
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
        gate=cast(Literal["none", "head", "wide", "latent"], fields.word("latent_gate", LATENT_GATES, "none")),
        sinks=fields.flag("sinks", default=False),
    )
