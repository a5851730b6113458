"""T5Gemma: an encoder and a decoder of Gemma 2's layers, those of the decoder with cross attention between their parts.

Source: arXiv 2504.06225, and the classes of transformers 5.23.0.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.encoders import ENCODER
from meshwright.formats.huggingface.fields import MAX_VOCAB, Fields
from meshwright.specs.layer_spec import LayerRun, layer_runs
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.cross_attention import CrossAttention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.streams import Stream

_WORDS = ("full_attention", "sliding_attention")


def t5gemma(fields: Fields) -> ModelSpec:
    """Both sides, each with a table of its own; the decoder's predicts words, too.

    Args:
        fields: the fields of the config, which nests both sides.
    """
    encoder, decoder = fields.inside("encoder"), fields.inside("decoder")
    hidden, read = decoder.whole("hidden_size"), encoder.whole("hidden_size")
    vocab = decoder.whole("vocab_size", default=fields.whole("vocab_size", default=256_000), high=MAX_VOCAB)
    tied = fields.flag("tie_word_embeddings", default=True)
    longest = decoder.whole("max_position_embeddings", default=8192)
    runs = (*_runs(encoder, stream=ENCODER), *_runs(decoder, reads=read))
    fields.done()
    own = Stream(
        name=ENCODER,
        hidden=read,
        tower=False,
        sequences=1.0,
        embedded=True,
        tables=read + encoder.whole("vocab_size") * read,
    )
    return ModelSpec(
        name=fields.name,
        family="t5gemma",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=longest,
        runs=runs,
        tied_embeddings=tied,
        streams=(own,),
    )


def _runs(fields: Fields, *, stream: str = "", reads: int = 0) -> tuple[LayerRun, ...]:
    """The layers of a side; those that read another have cross attention, with norms before and behind it."""
    heads, layers = fields.whole("num_attention_heads"), fields.layers()
    head_dim, window = fields.whole("head_dim", default=256), fields.whole("sliding_window", default=4096)
    full = Attention(heads=heads, kv_heads=fields.kv_heads(heads), head_dim=head_dim, causal=not stream)
    words = fields.pattern("layer_types", layers, _WORDS) or [_WORDS[number % 2 == 0] for number in range(layers)]
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", True, "only attention without biases can be planned here", "set it to false")
    layer = LayerSpec(
        attention=full,
        cross=_reading(full, reads) if reads else None,
        mlp=DenseMlp(ffn_hidden=fields.whole("intermediate_size"), gated=True),
        norm="rmsnorm",
        norms=6 if reads else 4,
        dropout=fields.dropout("dropout_rate", "attention_dropout"),
        stream=stream,
    )
    near = replace(layer, attention=replace(full, window=window))
    return layer_runs([near if word == "sliding_attention" else layer for word in words])


def _reading(own: Attention, width: int) -> CrossAttention:
    """Cross attention with the heads of the layer's own, to an encoder of this width."""
    return CrossAttention(
        memory=ENCODER, memory_width=width, heads=own.heads, kv_heads=own.kv_heads, head_dim=own.head_dim
    )
