"""Towers whose images, or tiles of them, have one size: LLaVA's kin, Phi-3, InternVL, Ovis, Step, Llama 4 and 3.2."""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import (
    TILES,
    Tower,
    TowerLayer,
    as_text,
    encoder_sizes,
    heads_of,
    nested,
    patch_matrix,
    patches_of,
    section,
    side_of,
    two_matrices,
)
from meshwright.formats.huggingface.vision_merged import pixtral
from meshwright.specs.streams import Images, Projection, Stream

CLIP = "clip_vision_model"


def clip_stream(
    fields: Fields, *, merge: int = 1, text_tokens: int | None = None, projector: tuple[Projection, ...]
) -> tuple[TowerLayer, int, Stream]:
    """A CLIP encoder: a class token, learned positions, LayerNorm before and behind (Radford et al. 2021).

    Args:
        fields: the fields of the tower.
        merge: patches on a side that become one token of the text.
        text_tokens: the number of text tokens that an image takes, where it is not patches / merge^2.
        projector: the projector to the text.

    Returns:
        A layer, how many there are, and the stream.
    """
    hidden, layers, heads, width = encoder_sizes(fields, hidden=768, layers=12, heads=12, width=3072)
    size, patch = fields.whole("image_size", default=224), fields.whole("patch_size", default=32)
    channels = fields.whole("num_channels", default=3)
    patches = patches_of(fields, size, patch)
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        length=patches + 1,
        images=Images(patch=patch, merge=merge, extra=1, size=(size, size), tokens=text_tokens),
        stem=(patch_matrix(channels * patch * patch, hidden),),
        projector=projector,
        tables=(patches + 1) * hidden + hidden + 4 * hidden,
    )
    return block, layers, stream


def llava(fields: Fields, outer: Fields, text: int) -> Tower:
    """LLaVA 1.5: CLIP and two matrices (Liu et al. 2023, arXiv 2310.03744); with Pixtral's encoder, Pixtral 12B."""
    kind = fields.word("model_type", (CLIP, "pixtral"), CLIP)
    bias = outer.flag("multimodal_projector_bias", default=True)
    outer.done()
    if kind == "pixtral":
        block, layers, plain = pixtral(fields)
        stream = replace(plain, projector=two_matrices(plain.hidden, text, text, bias=bias))
        return block.tower(layers, stream)
    hidden = fields.whole("hidden_size", default=768)
    block, layers, stream = clip_stream(fields, projector=two_matrices(hidden, text, text, bias=bias))
    return block.tower(layers, stream)


def llava_next(fields: Fields, outer: Fields, text: int) -> Tower:
    """LLaVA-NeXT (1.6): the same on tiles, with a learned end of each row (Liu et al. 2024)."""
    tower = llava(fields, outer, text)
    stream = _with(tower.streams[0], tables=tower.streams[0].tables + text, pieces=TILES)
    return Tower(runs=tower.runs, streams=(stream,))


def vipllava(fields: Fields, outer: Fields, text: int) -> Tower:
    """ViP-LLaVA: features of several layers of CLIP side by side, a norm and two matrices."""
    taken = outer.raw("vision_feature_layer")
    count = len(taken) if isinstance(taken, (list, tuple)) else 5 if taken is None else 1
    outer.done()
    hidden = count * fields.whole("hidden_size", default=768)
    block, layers, stream = clip_stream(fields, projector=two_matrices(hidden, text, text))
    return block.tower(layers, replace(stream, tables=stream.tables + 2 * hidden))


def video_llava(fields: Fields, outer: Fields, text: int) -> Tower:
    """Video-LLaVA: an encoder of images and an equal one of video, and one projector."""
    tower = llava(fields, outer, text)
    (stream,) = tower.streams
    encoder = stream.tables + sum(one.parameters for one in stream.stem)
    encoder += sum(run.repeats * layer.parameters(stream.hidden) for run in tower.runs for layer in run.layers)
    stream = replace(stream, tables=stream.tables + encoder)
    return Tower(runs=tower.runs, streams=(stream,), notes=("its encoder of video is counted, and reads nothing",))


def phi3_v(fields: Fields, outer: Fields, text: int) -> Tower:
    """Phi-3 and 3.5 vision: CLIP-L/14 at 336 pixels, 2 x 2 patches merged (Abdin et al. 2024, arXiv 2404.14219)."""
    named = nested(outer, "img_processor")
    merged = 4 * named.whole("image_dim_out", default=1024)
    tokens = named.whole("num_img_tokens", default=144)
    outer.done()
    shape = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "image_size": 336,
        "patch_size": 14,
    }
    own = section(shape, outer.name)
    block, layers, stream = clip_stream(
        own, merge=2, text_tokens=tokens, projector=two_matrices(merged, text, text, rate=0.25)
    )
    # Learned tokens between rows of tiles and between tiles and thumbnail.
    stream = _with(stream, tables=stream.tables + 2 * merged, pieces=TILES)
    return block.tower(layers, stream)


def internvl(fields: Fields, outer: Fields, text: int) -> Tower:
    """InternVL: tiles of 448 pixels, 2 x 2 patches shuffled into one (Chen et al. 2024, arXiv 2404.16821)."""
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1024, layers=24, heads=16, width=4096)
    size, patch = side_of(fields, "image_size", 448), side_of(fields, "patch_size", 14)
    bias = fields.flag("attention_bias", "qkv_bias", default=False)
    normed = fields.flag("use_qk_norm", "qk_normalization", default=False)
    norm = fields.word("norm_type", ("layer_norm", "rms_norm"), "layer_norm")
    patches = patches_of(fields, size, patch)
    fields.done()
    block = TowerLayer(
        hidden=hidden,
        heads=heads,
        width=width,
        qkv_bias=bias,
        norm="rmsnorm" if norm == "rms_norm" else "layernorm",
    )
    merged = 4 * hidden
    # Class token and positions, a scale of each half of each layer, norms of queries and keys, the projector's norm.
    tables = (patches + 2) * hidden + layers * 2 * hidden * (2 if normed else 1) + 2 * merged
    stream = block.stream(
        length=patches + 1,
        images=Images(patch=patch, merge=2, extra=1, size=(size, size), pieces=TILES),
        stem=(patch_matrix(3 * patch * patch, hidden, bias=True),),
        projector=two_matrices(merged, text, text, rate=0.25),
        tables=tables,
    )
    return block.tower(layers, stream)


def ovis2(fields: Fields, outer: Fields, text: int) -> Tower:
    """Ovis 2: AIMv2, whose features choose softly among the rows of a table of visual words (Lu et al. 2024)."""
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1024, layers=24, heads=8, width=2816)
    size, patch = fields.whole("image_size", default=224), fields.whole("patch_size", default=14)
    words, marks = fields.whole("vocab_size", default=16384), fields.whole("num_visual_indicator_tokens", default=5)
    stride, channels = fields.whole("hidden_stride", default=1), fields.whole("num_channels", default=3)
    bias, mlp_bias = fields.flag("qkv_bias", default=False), fields.flag("mlp_bias", default=False)
    patches = patches_of(fields, size, patch)
    if words <= marks:
        fields.problem("vocab_size", words, f"must exceed num_visual_indicator_tokens = {marks}")
    as_text(outer, "hidden_size", text)
    outer.done()
    fields.done()
    block = TowerLayer(
        hidden=hidden,
        heads=heads,
        width=width,
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=mlp_bias,
        norm="rmsnorm",
    )
    rate, seen = stride**-2.0, words - marks
    stream = block.stream(
        length=patches,
        images=Images(patch=patch, merge=stride, size=(size, size), pieces=TILES),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=(
            Projection(name="visual words", inputs=hidden * stride**2, outputs=seen, rate=rate),
            Projection(name="table of visual words", inputs=words, outputs=text, rate=rate),
        ),
        tables=(patches + 2) * hidden + 2 * seen,
    )
    return block.tower(layers, stream)


def step3p7(fields: Fields, outer: Fields, text: int) -> Tower:
    """Step 3.7: tiles of 728 pixels, learned and rotary positions, two convolutions of stride 2 to 169 tokens."""
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1536, layers=47, heads=16, width=8960)
    size, patch = fields.whole("image_size", default=728), fields.whole("patch_size", default=14)
    channels, bias = fields.whole("num_channels", default=3), outer.flag("projector_bias", default=False)
    patches = patches_of(fields, size, patch)
    outer.done()
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        length=patches,
        images=Images(patch=patch, merge=4, size=(size, size), pieces=TILES),
        stem=(patch_matrix(channels * patch * patch, hidden),),
        projector=(
            Projection(name="first convolution", inputs=9 * hidden, outputs=2 * hidden, bias=True, rate=1 / 4),
            Projection(name="second convolution", inputs=18 * hidden, outputs=4 * hidden, bias=True, rate=1 / 16),
            Projection(name="projector", inputs=4 * hidden, outputs=text, bias=bias, rate=1 / 16),
        ),
        # Positions, the norm before, and a scale of each half of each layer.
        tables=(patches + 2) * hidden + layers * 2 * hidden,
    )
    return block.tower(layers, stream)


def llama4(fields: Fields, outer: Fields, text: int) -> Tower:
    """Llama 4: tiles of 336 pixels, 2 x 2 patches shuffled into one token (Meta, Llama 4 model card, 2025)."""
    hidden, layers, heads, width = encoder_sizes(fields, hidden=768, layers=34, heads=16, width=5632)
    size, patch = fields.whole("image_size", default=448), fields.whole("patch_size", default=14)
    middle = fields.whole("projector_input_dim", default=4096)
    out = fields.whole("projector_output_dim", default=4096)
    wide = fields.whole("vision_output_dim", default=out)
    patches = patches_of(fields, size, patch)
    if width != 4 * hidden:
        fields.problem("intermediate_size", width, f"must be the width of 2 x 2 merged patches = {4 * hidden}")
    if wide != out:
        fields.problem("vision_output_dim", wide, f"must be projector_output_dim = {out}")
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        length=patches + 1,
        images=Images(patch=patch, merge=2, extra=1, size=(size, size), pieces=TILES),
        stem=(patch_matrix(3 * patch * patch, hidden),),
        projector=(
            *two_matrices(4 * hidden, middle, out, bias=False, rate=0.25),
            Projection(name="projector", inputs=wide, outputs=text, rate=0.25),
        ),
        tables=(patches + 2) * hidden + 4 * hidden,
    )
    return block.tower(layers, stream)


def mllama(fields: Fields, outer: Fields, text: int) -> Tower:
    """Llama 3.2 Vision: four tiles of 560 pixels in one sequence, read by cross attention in some layers of the text.

    Features of five inner layers stand beside the last one's. Source: Grattafiori et al. 2024, arXiv 2407.21783,
    section 7.
    """
    hidden = fields.whole("hidden_size", default=1280)
    local = fields.whole("num_hidden_layers", default=32, high=MAX_LAYERS)
    last = fields.whole("num_global_layers", default=8, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "attention_heads", "num_attention_heads", default=16)
    width = fields.whole("intermediate_size", default=5120)
    size, patch = fields.whole("image_size", default=560), fields.whole("patch_size", default=14)
    tiles = fields.whole("max_num_tiles", default=4)
    features = fields.whole("vision_output_dim", default=7680)
    patches = patches_of(fields, size, patch)
    ratios = 1 + tiles * (tiles + 1) // 2 - (2 if tiles == 4 else 0)
    readers = nested(outer, "text_config").positions("cross_attention_layers", 10_000)
    fields.done()
    # A tile is filled up to a multiple of 8 tokens.
    tile = -(-(patches + 1) // 8) * 8
    table = ratios * tiles * hidden
    block = TowerLayer(hidden=hidden, heads=heads, width=width, qkv_bias=False, out_bias=False)
    stream = block.stream(
        length=tiles * tile,
        images=Images(patch=patch, size=(size, size), patches=tiles * tile, tokens=1, pieces=f"{tiles} tiles each"),
        stem=(patch_matrix(3 * patch * patch, hidden),),
        projector=(Projection(name="projector", inputs=features, outputs=text, bias=True),),
        # Class token, positions of patches and of tiles, norms before and behind, gates, the text's 8 rows for images.
        tables=hidden
        + (patches + 1) * hidden * (1 + ratios * tiles)
        + 2 * table
        + 4 * hidden
        + 3
        + 2 * last
        + 8 * text,
    )
    return Tower(
        runs=block.runs(local + last),
        streams=(stream,),
        readers=readers if readers is not None else frozenset({3, 8, 13, 18, 23, 28, 33, 38}),
        width=text,
    )


def _with(stream: Stream, *, tables: int, pieces: str) -> Stream:
    assert stream.images is not None
    return replace(stream, tables=tables, images=replace(stream.images, pieces=pieces))
