"""The mixer of each layer of a decoder: which kind, from the patterns that configs have, and its sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.formats.huggingface.attention import read_attention, sliding_layers
from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers.base import Mixer

WORDS: dict[str, str] = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "linear": "linear",
    "mamba": "linear",
    "conv": "linear",
    "short_conv": "linear",
    "hybrid": "both",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "minimax_m3_sparse": "full",
    "none": "none",
    "mlp": "none",
    "moe": "none",
    "M": "linear",
    "*": "full",
    "-": "none",
    "E": "none",
}
"""What configs call a layer's mixer, in lists and in letters (Nemotron-H), and what it is."""

PARTS = {"mlp": "dense", "moe": "sparse", "-": "dense", "E": "sparse"}
"""Letters and words that name a feed-forward part, and its kind."""

PATTERNS = ("layers_block_type", "layer_types", "hybrid_override_pattern", "block_types")
"""Keys of patterns, the most telling first."""

NUMBERS = {"attn_type_list": ("full", "linear"), "hybrid_layer_pattern": ("sliding", "full")}
"""Keys of lists of 1 and 0, and what each is (MiniMax, MiMo-V2)."""
ATTENTION_LISTS = ("full_attn_idxs", "attn_layer_indices")
LISTED = (*ATTENTION_LISTS, *NUMBERS, "full_attention_interval", "layer_group_size", "attn_layer_period")
LINEAR: dict[str, tuple[str, str]] = {
    "delta-net": ("linear_num_value_heads", "read_delta_net"),
    "kimi-delta": ("linear_num_heads", "read_kimi_delta"),
    "kimi-delta-inside": ("linear_attn_config", "read_kimi_delta"),
    "mamba2": ("mamba_num_heads", "read_mamba2"),
    "mamba": ("ssm_state_size", "read_mamba"),
    "convolution": ("conv_L_cache", "read_convolution"),
    "linear": ("num_attention_heads", "read_linear"),
}
"""Layers that are no attention: the key that tells which they are, and who reads them; the first whose key is there."""


def read_mixers(fields: Fields, hidden: int, layers: int) -> list[Mixer]:
    """The mixer of each layer; where a config states them apart, those of modules for more tokens come behind.

    Args:
        fields: the config.
        hidden: width of the residual stream.
        layers: how many there are.
    """
    if fields.given("compress_ratios"):
        from meshwright.formats.huggingface.compressed import read_compressed

        return [*read_compressed(fields, layers)]
    words = layer_words(fields, layers)
    if words is None:
        words = ["sliding" if slides else "full" for slides in sliding_layers(fields, layers)]
    kinds: dict[str, Sequence[Mixer]] = {}
    if {"full", "sliding", "both"} & set(words):
        attention = read_attention(fields, hidden, layers)
        kinds |= {"full": attention.full, "sliding": attention.narrow}
    if {"linear", "both"} & set(words):
        kinds["linear"] = _recurrent(fields, hidden, layers)
    if "none" in words:
        from meshwright.specs.layers.absent import NoMixer

        kinds["none"] = [NoMixer()] * layers
    if "both" in words:
        from meshwright.specs.layers.side_by_side import SideBySide

        pairs = zip(kinds["full"], kinds["linear"], strict=True)
        kinds["both"] = [SideBySide(mixers=pair) for pair in pairs]
    return [kinds[word][i] for i, word in enumerate(words)]


def _recurrent(fields: Fields, hidden: int, layers: int) -> Sequence[Mixer]:
    from meshwright.formats.huggingface import recurrent

    if fields.given("rwkv_version"):
        return recurrent.read_rwkv(fields, hidden, layers)
    said = fields.word("linear_kind", tuple(LINEAR), "")
    name = said or next(kind for kind, (key, _) in LINEAR.items() if fields.given(key) or kind == "linear")
    if not said and name == "linear":
        why = "no key says what kind of linear attention it is"
        keys = ", ".join(key for kind, (key, _) in LINEAR.items() if kind != "linear")
        fix = f"add the keys of its kind: one of {keys}"
        fields.refuse("layer_types", "linear_attention", why, fix)
    read: Callable[[Fields, int], Mixer] = getattr(recurrent, LINEAR[name][1])
    return [read(fields, hidden)] * layers


def layer_words(fields: Fields, layers: int) -> list[str] | None:
    """What each layer's mixer is, None where all are attention: full | sliding | linear | both | none."""
    every = fields.raw("every_layer")
    words = [every] * layers if isinstance(every, str) else _from_lists(fields, layers)
    for listed in (_from_numbers, _from_period):
        words = listed(fields, layers) if words is None else words
    if words is not None:
        # What one key says, others may say again; and sizes of kinds that no layer has say nothing.
        fields.has(*PATTERNS, *LISTED, "sliding_window_pattern", *(key for key, _ in LINEAR.values()))
    return words


def _from_lists(fields: Fields, layers: int) -> list[str] | None:
    """A word or a letter a layer."""
    for key in PATTERNS:
        value = fields.raw(key)
        if isinstance(value, str) and not set(value) & {word for word in WORDS if len(word) == 1}:
            fields.problem(
                key, value, "must be a list of words, one a layer", f'write ["{value}", ...], {layers} of them'
            )
            return None
        letters = isinstance(value, str)
        value = list(value) if isinstance(value, str) else value
        known = tuple(word for word in WORDS if (len(word) == 1) is letters)
        words = fields.pattern(key, layers, known, value=value)
        if words is not None:
            return [WORDS[word] for word in words]
    return None


def _from_numbers(fields: Fields, layers: int) -> list[str] | None:
    """Lists of 0 and 1 a layer, and lists of the layers with attention."""
    for key, (one, zero) in NUMBERS.items():
        switches = fields.switches(key, layers)
        if switches is not None:
            return [one if switch else zero for switch in switches]
    inside = fields.raw("linear_attn_config")
    if isinstance(inside, dict) and "full_attn_layers" in inside:
        chosen = fields.inside("linear_attn_config").positions("full_attn_layers", layers + 1)
        return None if chosen is None else ["full" if i + 1 in chosen else "linear" for i in range(layers)]
    for key in ATTENTION_LISTS:
        chosen = fields.positions(key, layers)
        if chosen is not None:
            return ["full" if i in chosen else "linear" for i in range(layers)]
    return None


def _from_period(fields: Fields, layers: int) -> list[str] | None:
    """One layer of attention in so many."""
    interval = fields.maybe("full_attention_interval", "layer_group_size")
    if interval is not None:
        return ["full" if (i + 1) % interval == 0 else "linear" for i in range(layers)]
    period = fields.maybe("attn_layer_period")
    if period is not None:
        offset = fields.whole("attn_layer_offset", low=0, default=0)
        return ["full" if i % period == offset else "linear" for i in range(layers)]
    return None


def without_mlp(fields: Fields, layers: int) -> list[str] | None:
    """What each layer's feed-forward part is where layers have one part only (Nemotron-H): none | dense | sparse."""
    for key in PATTERNS[:3]:
        value = fields.raw(key)
        listed: Sequence[object] = list(value) if isinstance(value, (str, list, tuple)) else ()
        if len(listed) == layers and any(isinstance(word, str) and word in PARTS for word in listed):
            return [
                "dense" if word in ("mlp", "-") else "sparse" if word in ("moe", "E") else "none" for word in listed
            ]
    return None
