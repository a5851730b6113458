"""Towers that are SAM's encoders: layers within windows of patches, some of all patches, convolutions behind them.

Source: Kirillov et al. 2023 (arXiv 2304.02643); of GOT-OCR 2.0 Wei et al. 2024 (arXiv 2409.01704).
"""

from __future__ import annotations

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import (
    TILES,
    VISION,
    WINDOWS,
    Tower,
    TowerLayer,
    heads_of,
    patch_matrix,
    patches_of,
)
from meshwright.specs.layer_spec import layer_runs
from meshwright.specs.streams import Images, Projection, Stream


def got_ocr2(fields: Fields, outer: Fields, text: int) -> Tower:
    """GOT-OCR 2.0: SAM at 1024 pixels, two convolutions of stride 2 to 256 tokens, and one matrix."""
    outer.done()
    hidden = fields.whole("hidden_size", default=768)
    layers = fields.whole("num_hidden_layers", default=12, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_attention_heads", default=12)
    width, channels = fields.whole("mlp_dim", default=4 * hidden), fields.whole("num_channels", default=3)
    size, patch = fields.whole("image_size", default=1024), fields.whole("patch_size", default=16)
    window, out = fields.whole("window_size", default=14), fields.whole("output_channels", default=256)
    whole = fields.positions("global_attn_indexes", layers)
    whole = frozenset({2, 5, 8, 11}) if whole is None else whole
    bias, absolute = fields.flag("qkv_bias", default=True), fields.flag("use_abs_pos", default=True)
    relative = fields.flag("use_rel_pos", default=True)
    patches = patches_of(fields, size, patch)
    fields.done()
    side = max(1, size // patch)
    block = TowerLayer(hidden=hidden, heads=heads, width=width, qkv_bias=bias)
    # Distances between patches in each direction, one vector as wide as a head for each.
    distances = sum(2 * (2 * (side if number in whole else window) - 1) for number in range(layers))
    stream = block.stream(
        length=patches,
        images=Images(patch=patch, merge=4, size=(size, size), pieces=TILES),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=(
            Projection(name="neck", inputs=hidden, outputs=out),
            Projection(name="neck convolution", inputs=9 * out, outputs=out),
            Projection(name="first convolution", inputs=9 * out, outputs=2 * out, rate=1 / 4),
            Projection(name="second convolution", inputs=18 * out, outputs=text, rate=1 / 16),
            Projection(name="projector", inputs=text, outputs=text, bias=True, rate=1 / 16),
        ),
        tables=absolute * patches * hidden + relative * distances * (hidden // heads) + 4 * out,
    )
    windows = Stream(name=WINDOWS, hidden=hidden, tower=True, length=window**2, window_of=VISION)
    runs = layer_runs([block.layer(VISION if number in whole else WINDOWS) for number in range(layers)])
    return Tower(runs=runs, streams=(stream, windows))
