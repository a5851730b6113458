"""Encoder-decoders and encoders of images: T5, BART, Whisper, ViT.

Sizes that a config leaves out are those of its configuration class, where the class states one shape for all models.
Source: configuration and modelling classes of transformers 5.23.0, read 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.formats.huggingface.fields import MAX_LAYERS, MAX_VOCAB, Fields
from meshwright.formats.huggingface.tower import frames_of_sound, patch_matrix
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.cross_attention import CrossAttention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.streams import Images, Stream

ENCODER = "encoder"
T5_BUCKETS = 32
"""Buckets of relative positions, one bias each per head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers of one side of an encoder-decoder, or of an encoder alone."""

    hidden: int
    heads: int
    head_dim: int
    width: int
    gated: bool = False
    bias: bool = True
    mlp_bias: bool = True
    """Where `bias` is set."""
    norm: str = "layernorm"
    dropout: bool = False

    def layer(self, *, stream: str = "", causal: bool = False, reads: int = 0) -> LayerSpec:
        """A layer of the stack.

        Args:
            stream: the stream whose tokens it works on.
            causal: whether tokens see earlier ones only.
            reads: width of the encoder that its cross attention reads; 0 for none.
        """
        attention = Attention(
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            causal=causal,
            qkv_bias=self.bias,
            out_bias=self.bias,
        )
        cross = reads and CrossAttention(
            memory=ENCODER,
            memory_width=reads,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            q_bias=self.bias,
            k_bias=self.bias,
            v_bias=self.bias,
            out_bias=self.bias,
        )
        return LayerSpec(
            attention=attention,
            cross=cross or None,
            mlp=DenseMlp(ffn_hidden=self.width, gated=self.gated, bias=self.bias and self.mlp_bias),
            norm=self.norm,  # type: ignore[arg-type]
            norms=3 if reads else 2,
            dropout=self.dropout,
            stream=stream,
        )

    def runs(self, layers: int, *, stream: str = "", causal: bool = False, reads: int = 0) -> LayerRun:
        """A run of so many equal layers; arguments as `layer`."""
        return LayerRun(layers=(self.layer(stream=stream, causal=causal, reads=reads),), repeats=layers)


def umt5(fields: Fields) -> ModelSpec:
    """umT5: mT5 with a table of relative positions in every layer (Chung et al. 2023, arXiv 2304.09151)."""
    return t5(fields, each=True)


def t5(fields: Fields, *, each: bool = False) -> ModelSpec:
    """T5 and its variants: RMS norms, no biases, relative positions, one table for both sides (Raffel et al. 2019).

    Args:
        fields: the fields of the config.
        each: whether every layer has its own biases of relative positions.
    """
    hidden = fields.whole("d_model")
    heads, head_dim = fields.whole("num_heads"), fields.whole("d_kv")
    width = fields.whole("d_ff")
    layers = fields.whole("num_layers", high=MAX_LAYERS)
    behind = fields.whole("num_decoder_layers", default=layers, high=MAX_LAYERS)
    vocab = fields.whole("vocab_size", high=MAX_VOCAB)
    buckets = fields.whole("relative_attention_num_buckets", default=T5_BUCKETS)
    known = ("relu", "gated-gelu", "gated-silu", "gelu")
    act = fields.word("feed_forward_proj", known, "relu")
    # Files saved by transformers 5 say by the scale of the decoder's outputs what older ones say by the tie.
    tied = fields.flag("scale_decoder_outputs", "tie_word_embeddings", default=True)
    dropout = fields.dropout("dropout_rate", default=0.1)
    longest = fields.whole("n_positions", default=512)
    fields.done()
    stack = Stack(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        width=width,
        gated=act.startswith("gated"),
        bias=False,
        norm="rmsnorm",
        dropout=dropout,
    )
    # The final norm of the encoder, and the biases of relative positions: one table of each side, or of each layer.
    tables = hidden + (layers + behind if each else 2) * buckets * heads
    return ModelSpec(
        name=fields.name,
        family="t5",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=longest,
        runs=(stack.runs(layers, stream=ENCODER), stack.runs(behind, causal=True, reads=hidden)),
        tied_embeddings=tied,
        streams=(Stream(name=ENCODER, hidden=hidden, tower=False, sequences=1.0, embedded=True, tables=tables),),
    )


def longt5(fields: Fields) -> ModelSpec:
    """LongT5: T5 whose encoder sees windows, and sums of blocks where it says so (Guo et al. 2022, arXiv 2112.07916).

    Of the sums of blocks the parameters are counted, and not the attention to them.
    """
    radius, heads = fields.whole("local_radius", default=127), fields.whole("num_heads")
    buckets = fields.whole("relative_attention_num_buckets", default=T5_BUCKETS)
    sums = fields.word("encoder_attention_type", ("local", "transient-global"), "local") == "transient-global"
    model = t5(fields)
    encoder, decoder = model.runs
    (plain,) = encoder.layers
    assert isinstance(plain.attention, Attention)
    narrow = replace(plain, attention=replace(plain.attention, window=radius + 1))
    (stream,) = model.streams
    more = buckets * heads + encoder.repeats * model.hidden if sums else 0
    return replace(
        model,
        family="longt5",
        runs=(replace(encoder, layers=(narrow,)), decoder),
        streams=(replace(stream, tables=stream.tables + more),),
    )


def bart(fields: Fields) -> ModelSpec:
    """BART: LayerNorm, biases, learned positions on both sides (Lewis et al. 2019, arXiv 1910.13461)."""
    return _two_sides(fields, "bart", offset=2, normed=True)


def mbart(fields: Fields) -> ModelSpec:
    """mBART: BART with norms before its parts, and one more behind each side (Liu et al. 2020, arXiv 2001.08210)."""
    return _two_sides(fields, "mbart", offset=2, normed=True, last=True)


def pegasus(fields: Fields) -> ModelSpec:
    """PEGASUS: fixed positions, norms before its parts (Zhang et al. 2019, arXiv 1912.08777)."""
    return _two_sides(fields, "pegasus", offset=0, last=True)


def marian(fields: Fields) -> ModelSpec:
    """Marian: translation models of OPUS-MT, fixed positions, norms behind the parts."""
    return _two_sides(fields, "marian", offset=0)


def m2m_100(fields: Fields) -> ModelSpec:
    """M2M-100 and NLLB: positions computed, norms before the parts (NLLB team 2022, arXiv 2207.04672)."""
    return _two_sides(fields, "m2m_100", offset=None, last=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """An encoder and a decoder of one width; pairs are of both, in that order."""

    hidden: int
    vocab: int
    layers: tuple[int, int]
    heads: tuple[int, int]
    widths: tuple[int, int]
    dropout: bool

    def runs(self) -> tuple[LayerRun, LayerRun]:
        """The layers of both; those of the decoder read the encoder."""
        encoder, decoder = (
            Stack(hidden=self.hidden, heads=count, head_dim=self.hidden // count, width=width, dropout=self.dropout)
            for count, width in zip(self.heads, self.widths, strict=True)
        )
        layers, behind = self.layers
        return encoder.runs(layers, stream=ENCODER), decoder.runs(behind, causal=True, reads=self.hidden)


def _sides(fields: Fields) -> _Sides:
    """The sizes of both, by the names that BART gave them."""
    hidden, vocab = fields.whole("d_model"), fields.whole("vocab_size", high=MAX_VOCAB)
    layers = fields.whole("encoder_layers", high=MAX_LAYERS), fields.whole("decoder_layers", high=MAX_LAYERS)
    heads = fields.whole("encoder_attention_heads"), fields.whole("decoder_attention_heads")
    widths = fields.whole("encoder_ffn_dim"), fields.whole("decoder_ffn_dim")
    dropout = fields.dropout("dropout", "attention_dropout", "activation_dropout")
    for count in heads:
        if hidden % count:
            fields.problem("encoder_attention_heads", count, f"must divide d_model = {hidden}")
    return _Sides(hidden=hidden, vocab=vocab, layers=layers, heads=heads, widths=widths, dropout=dropout)


def _two_sides(
    fields: Fields, family: str, *, offset: int | None, normed: bool = False, last: bool = False
) -> ModelSpec:
    """An encoder and a decoder with LayerNorm, biases and a shared table.

    Args:
        fields: the fields of the config.
        family: its name.
        offset: rows of the table of positions beyond the longest sequence; None for no table.
        normed: whether embeddings are normalised.
        last: whether a norm stands behind each side.
    """
    sides = _sides(fields)
    longest = fields.whole("max_position_embeddings", default=1024)
    tied = fields.flag("tie_word_embeddings", default=True)
    fields.done()
    hidden = sides.hidden
    rows = 0 if offset is None else longest + offset
    tables = rows * hidden + 2 * hidden * (normed + last)
    return ModelSpec(
        name=fields.name,
        family=family,
        hidden=hidden,
        vocab=sides.vocab,
        max_seq_len=longest,
        runs=sides.runs(),
        tied_embeddings=tied,
        learned_positions=rows,
        embedding_norm=normed,
        final_norm="layernorm" if last else None,
        streams=(Stream(name=ENCODER, hidden=hidden, tower=False, sequences=1.0, embedded=True, tables=tables),),
    )


def whisper(fields: Fields) -> ModelSpec:
    """Whisper: two convolutions over frames of 10 ms, one of stride 2 (Radford et al. 2022, arXiv 2212.04356)."""
    sides = _sides(fields)
    mel = fields.whole("num_mel_bins", default=80)
    frames = fields.whole("max_source_positions", default=1500)
    longest = fields.whole("max_target_positions", default=448)
    fields.done()
    hidden = sides.hidden
    audio = Stream(
        name=ENCODER,
        hidden=hidden,
        tower=False,
        sequences=1.0,
        length=frames,
        stem=frames_of_sound(mel, hidden),
        tables=frames * hidden + 2 * hidden,
    )
    return ModelSpec(
        name=fields.name,
        family="whisper",
        hidden=hidden,
        vocab=sides.vocab,
        max_seq_len=longest,
        runs=sides.runs(),
        tied_embeddings=True,
        learned_positions=longest,
        final_norm="layernorm",
        streams=(audio,),
        notes=("biases of keys, which Whisper leaves out, are counted: 0.01% of its parameters",),
    )


def must_divide(fields: Fields, key: str, value: int, of: str, whole: int) -> None:
    """Note that a size does not divide another one."""
    if whole % value:
        fields.problem(key, value, f"must divide {of} = {whole}", "use a divisor")


def vit(fields: Fields) -> ModelSpec:
    """Vision transformer: patches of an image, one class per image (Dosovitskiy et al. 2020, arXiv 2010.11929)."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    layers, width = fields.layers(), fields.whole("intermediate_size")
    size, patch = fields.whole("image_size", default=224), fields.whole("patch_size", default=16)
    channels = fields.whole("num_channels", default=3)
    bias = fields.flag("qkv_bias", default=True)
    dropout = fields.dropout("hidden_dropout_prob", "attention_probs_dropout_prob")
    labels = fields.raw("id2label")
    classes = fields.whole("num_labels", default=len(labels) if isinstance(labels, Mapping) else 1000)
    must_divide(fields, "num_attention_heads", heads, "hidden_size", hidden)
    must_divide(fields, "patch_size", patch, "image_size", size)
    fields.done()
    stack = Stack(hidden=hidden, heads=heads, head_dim=hidden // heads, width=width, dropout=dropout)
    patches = (size // patch) ** 2
    images = Stream(
        name="vision",
        hidden=hidden,
        tower=False,
        sequences=1.0,
        length=patches + 1,
        images=Images(patch=patch, extra=1, size=(size, size), tokens=1),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        tables=(patches + 1) * hidden + hidden,
    )
    bare = fields.raw("architectures") == ["ViTModel"]
    biases, headless = (
        "biases of queries, keys and values are counted",
        "ViTModel has no head: what its loss does with the vectors of images is not counted",
    )
    return ModelSpec(
        name=fields.name,
        family="vit",
        hidden=hidden,
        vocab=classes,
        max_seq_len=1,
        runs=(stack.runs(layers, stream="vision"),),
        tied_embeddings=False,
        final_norm="layernorm",
        head_bias=not bare,
        head_transform=bare,  # its pooler
        classes=0 if bare else None,
        pooled=True,
        streams=(images,),
        notes=(*([] if bias else [biases]), *([headless] if bare else [])),
    )
