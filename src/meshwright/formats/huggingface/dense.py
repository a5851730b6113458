"""Families with RMSNorm, rotary positions and a gated MLP: Llama, Mistral, Qwen, Gemma, Phi-3."""

from __future__ import annotations

from meshwright.formats.huggingface.fields import Fields, fold
from meshwright.specs.layers import Attention, DenseMlp
from meshwright.specs.model import LayerSpec, ModelSpec


def read_llama(fields: Fields) -> ModelSpec:
    """Llama 1 to 3.3, and the many models that share its layers."""
    return _read(
        fields,
        "llama",
        kv_required=False,
        qkv_bias=fields.flag("attention_bias", default=False),
        out_bias=fields.flag("attention_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


def read_mistral(fields: Fields) -> ModelSpec:
    """Mistral: every layer has the same window; null means none, a missing key the 4,096 of the first release."""
    window = fields.maybe("sliding_window") if fields.has("sliding_window") else 4096
    return _read(fields, "mistral", window=window, sliding=[True] * fields.layers())


def read_qwen2(fields: Fields) -> ModelSpec:
    """Qwen 2 and 2.5: biases on the query, key and value projections, never on the output."""
    window, sliding = qwen_window(fields)
    return _read(fields, "qwen2", qkv_bias=True, window=window, sliding=sliding)


def read_qwen3(fields: Fields) -> ModelSpec:
    """Qwen 3: norms on queries and keys; head size 128 unless given."""
    window, sliding = qwen_window(fields)
    bias = fields.flag("attention_bias", default=False)
    return _read(
        fields, "qwen3", qkv_bias=bias, out_bias=bias, qk_norm=True, head_dim=128, window=window, sliding=sliding
    )


def read_gemma(fields: Fields) -> ModelSpec:
    """Gemma 1: head size 256 and tied embeddings unless given."""
    bias = fields.flag("attention_bias", default=False)
    return _read(fields, "gemma", head_dim=256, tied=True, qkv_bias=bias, out_bias=bias)


def read_gemma2(fields: Fields) -> ModelSpec:
    """Gemma 2: four norms a layer; even layers see a window of 4,096, odd ones everything."""
    bias = fields.flag("attention_bias", default=False)
    return _read(
        fields,
        "gemma2",
        head_dim=256,
        tied=True,
        qkv_bias=bias,
        out_bias=bias,
        norms=4,
        window=_window(fields, 4096),
        sliding=fields.sliding(fields.layers(), lambda number: number % 2 == 0),
    )


def read_gemma3(fields: Fields) -> ModelSpec:
    """Gemma 3: as Gemma 2 with query and key norms and five window layers to a full one.

    Published configs leave out what equals the defaults of `Gemma3TextConfig`, so these defaults are taken here too.
    """
    pattern = fields.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    bias = fields.flag("attention_bias", default=False)
    return _read(
        fields,
        "gemma3",
        heads=8,
        kv_heads=4,
        head_dim=256,
        vocab=262_208,
        max_seq_len=131_072,
        tied=True,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        norms=4,
        window=_window(fields, 4096),
        sliding=fields.sliding(fields.layers(), lambda number: (number + 1) % pattern != 0),
    )


def read_phi3(fields: Fields) -> ModelSpec:
    """Phi-3 and Phi-4."""
    return _read(
        fields,
        "phi3",
        kv_required=False,
        window=_window(fields, None),
        sliding=fields.sliding(fields.layers(), lambda number: True),
        dropout=fields.dropout("resid_pdrop", "embd_pdrop"),
    )


def _window(fields: Fields, default: int | None) -> int | None:
    """`sliding_window`; null switches windows off, a missing key is the default."""
    return fields.maybe("sliding_window") if fields.has("sliding_window") else default


def qwen_window(fields: Fields) -> tuple[int | None, list[bool]]:
    """Qwen's window, off unless `use_sliding_window`, and the layers it holds in: from `max_window_layers` on."""
    layers = fields.layers()
    on = fields.flag("use_sliding_window", default=False)
    first = fields.whole("max_window_layers", default=28, low=0)
    window = _window(fields, 4096) if on else None
    return window, fields.sliding(layers, lambda number: on and number >= first)


def _read(
    fields: Fields,
    family: str,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    kv_required: bool = True,
    head_dim: int | None = None,
    vocab: int | None = None,
    max_seq_len: int | None = None,
    tied: bool = False,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    norms: int = 2,
    window: int | None = None,
    sliding: list[bool] | None = None,
    dropout: bool = False,
) -> ModelSpec:
    """The keys all these families share; the arguments are what a missing key means."""
    hidden = fields.whole("hidden_size")
    layers = fields.layers()
    query_heads = fields.whole("num_attention_heads", default=heads)
    groups = fields.kv_heads(query_heads, required=kv_required, default=kv_heads)
    size = fields.head_dim(hidden, query_heads, default=head_dim)
    ffn_hidden = fields.whole("intermediate_size")
    rows = fields.vocab(vocab)
    longest = fields.max_seq_len(default=max_seq_len)
    tie = fields.flag("tie_word_embeddings", default=tied)
    drop = fields.dropout("attention_dropout") or dropout
    fields.done()

    def layer(view: int | None) -> LayerSpec:
        return LayerSpec(
            attention=Attention(
                heads=query_heads,
                kv_heads=groups,
                head_dim=size,
                window=view,
                qkv_bias=qkv_bias,
                out_bias=out_bias,
                qk_norm=qk_norm,
            ),
            mlp=DenseMlp(ffn_hidden=ffn_hidden, gated=True, bias=mlp_bias),
            norms=norms,
            dropout=drop,
        )

    full, narrow = layer(None), layer(window)
    return ModelSpec(
        name=fields.name,
        family=family,
        hidden=hidden,
        vocab=rows,
        max_seq_len=longest,
        runs=fold([narrow if slides else full for slides in sliding or [False] * layers]),
        tied_embeddings=tie,
    )
