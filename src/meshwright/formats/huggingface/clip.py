"""CLIP and SigLIP: an encoder of images and one of text, whose features are compared (Radford et al. 2021).

Source: configuration and modelling classes of transformers 5.23.0, read 2026-11-22.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_VOCAB, Fields
from meshwright.formats.huggingface.tower import VISION, TowerLayer, encoder_sizes, nested, patch_matrix
from meshwright.formats.huggingface.vision_fixed import clip_stream
from meshwright.specs.layers.attention import Attention
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.streams import Images, Projection, Stream

TEXT = "text"
LOSS = (
    "the loss over the features of the whole batch is left out: gathering them, their products, and keeping or making "
    "again the features of other micro-batches"
)


def clip(fields: Fields) -> ModelSpec:
    """A vision transformer with a class token and a causal text transformer, each with a projection."""
    vision, width = nested(fields, "vision_config"), fields.whole("projection_dim", default=512)
    text, causal = _text(nested(fields, "text_config"), width, spans=77, causal=True)
    hidden = vision.whole("hidden_size", default=768)
    block, layers, stream = clip_stream(vision, projector=())
    assert stream.length is not None
    project = Projection(name="image projection", inputs=hidden, outputs=width, rate=1.0 / stream.length)
    assert stream.images is not None
    images = replace(stream.images, tokens=1)
    seen = replace(stream, tower=False, sequences=1.0, images=images, projector=(project,))
    fields.done()
    return _pair(fields.name, "clip", width, (seen, block.runs(layers)[0]), (text, causal))


def siglip(fields: Fields) -> ModelSpec:
    """SigLIP: no class token; an attention head pools the patches, and text is read both ways (Zhai et al. 2023)."""
    vision = nested(fields, "vision_config")
    hidden, layers, heads, ffn = encoder_sizes(vision, hidden=768, layers=12, heads=12, width=3072)
    size, patch = vision.whole("image_size", default=224), vision.whole("patch_size", default=16)
    # What is left at the edge of an image is not seen.
    patches = max(1, size // patch) ** 2
    vision.done()
    fields.done()
    text, both = _text(nested(fields, "text_config"), hidden, spans=64, causal=False)
    # The pooling head: a probe, attention, a norm and an MLP, at one position.
    pool = (
        Projection(name="pooled keys and values", inputs=hidden, outputs=2 * hidden, bias=True),
        Projection(name="pooled query", inputs=hidden, outputs=hidden, bias=True, rate=1.0 / patches),
        Projection(name="pooled output", inputs=hidden, outputs=hidden, bias=True, rate=1.0 / patches),
        Projection(name="pooled MLP in", inputs=hidden, outputs=ffn, bias=True, rate=1.0 / patches),
        Projection(name="pooled MLP out", inputs=ffn, outputs=hidden, bias=True, rate=1.0 / patches),
    )
    seen = Stream(
        name=VISION,
        hidden=hidden,
        tower=False,
        sequences=1.0,
        length=patches,
        images=Images(patch=patch, size=(size, size), tokens=1),
        stem=(patch_matrix(3 * patch * patch, hidden, bias=True),),
        projector=pool,
        tables=patches * hidden + 2 * hidden + hidden + 2 * hidden,
    )
    run = TowerLayer(hidden=hidden, heads=heads, width=ffn).runs(layers)[0]
    return _pair(fields.name, "siglip", hidden, (seen, run), (text, both))


def _text(fields: Fields, width: int, *, spans: int, causal: bool) -> tuple[Stream, LayerRun]:
    """The encoder of text, with a table of its own.

    Args:
        fields: the fields of the encoder.
        width: the width of the features.
        spans: tokens of every text where the config leaves them out.
        causal: whether tokens see earlier ones only.
    """
    usual, count, wide = (512, 8, 2048) if causal else (768, 12, 3072)
    hidden, layers, heads, ffn = encoder_sizes(fields, hidden=usual, layers=12, heads=count, width=wide)
    vocab = fields.whole("vocab_size", default=49408 if causal else 32000, high=MAX_VOCAB)
    length = fields.whole("max_position_embeddings", default=spans)
    if not causal:
        width = fields.whole("projection_size", default=hidden)
    fields.done()
    plain = TowerLayer(hidden=hidden, heads=heads, width=ffn).layer(TEXT)
    assert isinstance(plain.attention, Attention)
    layer: LayerSpec = replace(plain, attention=replace(plain.attention, causal=causal))
    project = Projection(name="text projection", inputs=hidden, outputs=width, bias=not causal, rate=1.0 / length)
    stream = Stream(
        name=TEXT,
        hidden=hidden,
        tower=False,
        sequences=1.0,
        length=length,
        projector=(project,),
        tables=(vocab + length) * hidden + 2 * hidden,
    )
    return stream, LayerRun(layers=(layer,), repeats=layers)


def _pair(
    name: str, family: str, width: int, seen: tuple[Stream, LayerRun], read: tuple[Stream, LayerRun]
) -> ModelSpec:
    """Both encoders as one model with one prediction per pair."""
    return ModelSpec(
        name=name,
        family=family,
        hidden=width,
        vocab=1,
        max_seq_len=1,
        runs=(seen[1], read[1]),
        tied_embeddings=False,
        final_norm=None,
        pooled=True,
        streams=(seen[0], read[0]),
        notes=(LOSS,),
    )
