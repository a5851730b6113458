"""Towers that are SigLIP encoders: of Gemma 3, PaliGemma, LLaVA-OneVision, Idefics 3, LFM2-VL, Aya, DeepSeek-VL, Janus.

No class token, learned positions, a norm behind the layers. Source: Zhai et al. 2023 (arXiv 2303.15343).
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import (
    TILES,
    Tower,
    TowerLayer,
    encoder_sizes,
    heads_of,
    patch_matrix,
    side_of,
    two_matrices,
)
from meshwright.specs.streams import Images, Projection, Stream

SIGLIP = "siglip_vision_model"
"""The class whose encoder has a pooling head unless its config says it has none."""


def siglip_layers(
    fields: Fields, *, tokens: int | None = None, merge: int = 1, tiles: bool = False, head: bool = True
) -> tuple[TowerLayer, int, Stream]:
    """A SigLIP encoder without a projector.

    Args:
        fields: the fields of the tower.
        tokens: the number of tokens of the text that an image takes, where it is not patches / merge^2.
        merge: patches on a side that become one token of the text.
        tiles: whether an image is cut into several of that size.
        head: whether the class has a pooling head unless its config says otherwise.

    Returns:
        A layer, how many there are, and the stream.
    """
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1152, layers=12, heads=12, width=3072)
    size, patch = side_of(fields, "image_size", 224), side_of(fields, "patch_size", 16)
    channels = fields.whole("num_channels", default=3)
    pooled = head and fields.flag("vision_use_head", default=fields.raw("model_type") == SIGLIP)
    fields.done()
    # What is left at the edge of an image is not seen.
    patches = max(1, size // patch) ** 2
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        length=patches,
        images=Images(patch=patch, merge=merge, size=(size, size), tokens=tokens, pieces=TILES if tiles else ""),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        tables=patches * hidden + 2 * hidden + (_pooling_head(hidden, width) if pooled else 0),
    )
    return block, layers, stream


def _pooling_head(hidden: int, width: int) -> int:
    """Parameters of a head that the text does not read: a probe, attention, a norm and an MLP."""
    return hidden + 4 * hidden * (hidden + 1) + 2 * hidden + (2 * hidden + 1) * width + hidden


def gemma3(fields: Fields, outer: Fields, text: int) -> Tower:
    """Gemma 3: SigLIP at 896 pixels, averaged to 256 tokens (Gemma team 2025, arXiv 2503.19786)."""
    tokens = outer.whole("mm_tokens_per_image", default=256)
    outer.done()
    block, layers, plain = siglip_layers(fields, tokens=tokens)
    assert plain.length is not None
    project = Projection(name="projector", inputs=plain.hidden, outputs=text, rate=tokens / plain.length)
    return _tower(block, layers, plain, (project,), plain.hidden)


def paddleocr_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """PaddleOCR-VL: SigLIP at the image's own size, 2 x 2 patches merged, a norm and two matrices."""
    merge = fields.whole("spatial_merge_size", default=2)
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1152, layers=27, heads=16, width=4304)
    size, patch = side_of(fields, "image_size", 384), side_of(fields, "patch_size", 14)
    channels = fields.whole("num_channels", default=3)
    fields.done()
    block, merged = TowerLayer(hidden=hidden, heads=heads, width=width), hidden * merge**2
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=two_matrices(merged, merged, text, rate=merge**-2.0),
        # Positions, the norm behind, and that of the projector.
        tables=max(1, size // patch) ** 2 * hidden + 4 * hidden,
    )
    return block.tower(layers, stream)


def video_llama_3(fields: Fields, outer: Fields, text: int) -> Tower:
    """VideoLLaMA 3: SigLIP with rotary positions on images as they are, two matrices (Zhang et al. 2025)."""
    outer.done()
    hidden, layers, heads, width = encoder_sizes(fields, hidden=768, layers=12, heads=12, width=3072)
    patch, channels = fields.whole("patch_size", default=16), fields.whole("num_channels", default=3)
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        images=Images(patch=patch),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=two_matrices(hidden, text, text),
        tables=2 * hidden,
    )
    return block.tower(layers, stream)


def paligemma(fields: Fields, outer: Fields, text: int) -> Tower:
    """PaliGemma: SigLIP and one matrix (Beyer et al. 2024, arXiv 2407.07726)."""
    block, layers, plain = siglip_layers(fields)
    return _tower(
        block, layers, plain, (Projection(name="projector", inputs=plain.hidden, outputs=text, bias=True),), 0
    )


def llava_onevision(fields: Fields, outer: Fields, text: int) -> Tower:
    """LLaVA-OneVision: SigLIP on tiles and two matrices (Li et al. 2024, arXiv 2408.03326)."""
    bias = outer.flag("multimodal_projector_bias", default=True)
    outer.done()
    block, layers, plain = siglip_layers(fields, tiles=True)
    return _tower(block, layers, plain, two_matrices(plain.hidden, text, text, bias=bias), text)


def deepseek_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """DeepSeek-VL with one encoder: SigLIP and two matrices."""
    block, layers, plain = siglip_layers(fields)
    return _tower(block, layers, plain, two_matrices(plain.hidden, text, text), 0)


def janus(fields: Fields, outer: Fields, text: int) -> Tower:
    """Janus: an encoder as SigLIP's with an aligner; what makes images is left out."""
    hidden, ratio = fields.whole("hidden_size", default=1024), fields.raw("mlp_ratio")
    if ratio is None or isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 1 <= ratio <= 64:
        if ratio is not None:
            fields.problem("mlp_ratio", ratio, "must be a number from 1 to 64", "leave it out for 4")
        ratio = 4.0
    layers = fields.whole("num_hidden_layers", default=24, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_attention_heads", default=16)
    size, patch = side_of(fields, "image_size", 384), side_of(fields, "patch_size", 16)
    channels = fields.whole("num_channels", default=3)
    bias, normed = fields.flag("attention_bias", default=True), fields.flag("use_qk_norm", default=False)
    out, depth = fields.whole("projection_dim", default=2048), fields.whole("depth", default=2)
    if out != text:
        fields.problem("projection_dim", out, f"must be the text's hidden_size = {text}, whose tokens images become")
    fields.done()
    patches = max(1, size // patch) ** 2
    block = TowerLayer(hidden=hidden, heads=heads, width=int(hidden * ratio), qkv_bias=bias)
    first = Projection(name="projector in", inputs=hidden, outputs=out, bias=True)
    more = Projection(name="projector", inputs=out, outputs=out, bias=True)
    stream = block.stream(
        length=patches,
        images=Images(patch=patch, size=(size, size)),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=(first, *[more] * (depth - 1)),
        # Positions, the norm behind, and norms over all heads of queries and keys.
        tables=patches * hidden + 2 * hidden + (layers * 4 * hidden if normed else 0),
    )
    return block.tower(layers, stream, notes=("what makes images (vq_config) is left out",))


def aya_vision(fields: Fields, outer: Fields, text: int) -> Tower:
    """Aya Vision: SigLIP on tiles, patches shuffled, a norm and a gated projector."""
    return _gated(fields, outer, text, middle=text, norm=True)


def cohere2_vision(fields: Fields, outer: Fields, text: int) -> Tower:
    """Command A Vision: as Aya Vision without the norm."""
    return _gated(fields, outer, text, middle=36864, norm=False)


def _gated(fields: Fields, outer: Fields, text: int, *, middle: int, norm: bool) -> Tower:
    """SigLIP on tiles with a gated projector of shuffled patches."""
    merge, wide = (
        outer.whole("downsample_factor", default=2),
        outer.whole("alignment_intermediate_size", default=middle),
    )
    outer.done()
    block, layers, plain = siglip_layers(fields, merge=merge, tiles=True)
    inputs, rate = plain.hidden * merge**2, merge**-2.0
    projector = (
        Projection(name="projector in", inputs=inputs, outputs=wide, bias=True, split="column", rate=rate),
        Projection(name="projector out", inputs=wide // 2, outputs=text, bias=True, split="row", rate=rate),
    )
    return _tower(block, layers, plain, projector, 2 * inputs if norm else 0)


def idefics3(fields: Fields, outer: Fields, text: int) -> Tower:
    """Idefics 3 and SmolVLM: SigLIP on tiles, patches shuffled into fewer tokens (Laurençon et al. 2024)."""
    merge = outer.whole("scale_factor", default=2)
    outer.done()
    block, layers, plain = siglip_layers(fields, merge=merge, tiles=True, head=False)
    project = Projection(name="projector", inputs=plain.hidden * merge**2, outputs=text, rate=merge**-2.0)
    return _tower(block, layers, plain, (project,), 0)


def lfm2_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """LFM2-VL: SigLIP 2 on images as they are, patches shuffled into fewer tokens (Tschannen et al. 2025)."""
    merge, middle = outer.whole("downsample_factor", default=2), outer.whole("projector_hidden_size", default=2560)
    bias, norm = outer.flag("projector_bias", default=True), outer.flag("projector_use_layernorm", default=True)
    outer.done()
    hidden, layers, heads, width = encoder_sizes(fields, hidden=768, layers=12, heads=12, width=3072)
    patch, channels = fields.whole("patch_size", default=16), fields.whole("num_channels", default=3)
    places = fields.whole("num_patches", default=256)
    pooled = fields.flag("vision_use_head", default=True)
    fields.done()
    inputs = hidden * merge**2
    head = _pooling_head(hidden, width) if pooled else 0
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        images=Images(patch=patch, merge=merge, pieces=TILES),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=two_matrices(inputs, middle, text, bias=bias, rate=merge**-2.0),
        tables=places * hidden + 2 * hidden + head + (2 * inputs if norm else 0),
    )
    return block.tower(layers, stream)


def _tower(block: TowerLayer, layers: int, plain: Stream, projector: tuple[Projection, ...], tables: int) -> Tower:
    """The encoder with its projector, and so many parameters more outside of matrices."""
    stream = replace(plain, projector=projector, tables=plain.tables + tables)
    return block.tower(layers, stream)
