"""Families of Llama's layers, RMSNorm and a gated MLP: Llama, Mistral, Qwen, Gemma, Phi-3."""

from __future__ import annotations

from meshwright.formats.huggingface.decoder import DecoderFamily, sliding_window
from meshwright.formats.huggingface.fields import Fields


def llama(fields: Fields) -> DecoderFamily:
    """Llama 1 to 3.3, and the many models that share its layers."""
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(
        kv_heads="optional", qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", default=False)
    )


def mistral(fields: Fields) -> DecoderFamily:
    """Mistral: every layer has the same window; null means none, a missing key the 4,096 of the first release."""
    return DecoderFamily(window=sliding_window(fields, 4096))


def qwen2(fields: Fields) -> DecoderFamily:
    """Qwen 2 and 2.5: biases on the query, key and value projections, never on the output."""
    window, sliding = qwen_window(fields)
    return DecoderFamily(qkv_bias=True, window=window, sliding=sliding)


def qwen3(fields: Fields) -> DecoderFamily:
    """Qwen 3: norms on queries and keys; head size 128 unless given."""
    window, sliding = qwen_window(fields)
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(
        defaults={"head_dim": 128}, qkv_bias=bias, out_bias=bias, qk_norm=True, window=window, sliding=sliding
    )


def gemma(fields: Fields) -> DecoderFamily:
    """Gemma 1: head size 256 and tied embeddings unless given."""
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(defaults={"head_dim": 256}, tied=True, qkv_bias=bias, out_bias=bias)


def gemma2(fields: Fields) -> DecoderFamily:
    """Gemma 2: four norms a layer; even layers see a window of 4,096, odd ones everything."""
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(
        defaults={"head_dim": 256},
        tied=True,
        qkv_bias=bias,
        out_bias=bias,
        norms=4,
        window=sliding_window(fields, 4096),
        sliding=fields.sliding(fields.layers(), lambda number: number % 2 == 0),
    )


def gemma3(fields: Fields) -> DecoderFamily:
    """Gemma 3: as Gemma 2 with query and key norms and five window layers to a full one.

    Published configs leave out what equals the defaults of `Gemma3TextConfig`, so these defaults are taken here too.
    """
    pattern = fields.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    bias = fields.flag("attention_bias", default=False)
    return DecoderFamily(
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        },
        tied=True,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        norms=4,
        window=sliding_window(fields, 4096),
        sliding=fields.sliding(fields.layers(), lambda number: (number + 1) % pattern != 0),
    )


def phi3(fields: Fields) -> DecoderFamily:
    """Phi-3 and Phi-4."""
    return DecoderFamily(
        kv_heads="optional",
        window=sliding_window(fields, None),
        sliding=fields.sliding(fields.layers(), lambda number: True),
        dropout=fields.dropout("attention_dropout", "resid_pdrop", "embd_pdrop"),
    )


def qwen_window(fields: Fields) -> tuple[int | None, list[bool]]:
    """Qwen's window, off unless `use_sliding_window`, and the layers that have it: from `max_window_layers` on."""
    on = fields.flag("use_sliding_window", default=False)
    first = fields.whole("max_window_layers", default=28, low=0)
    window = sliding_window(fields, 4096) if on else None
    return window, fields.sliding(fields.layers(), lambda number: on and number >= first)
