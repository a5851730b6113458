"""Towers with convolutions beside attention: of LFM3-VL, whose classes came with transformers 5.23.0 (2026-11)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import VISION, Tower, TowerLayer, frames_of_patch, heads_of, two_matrices
from meshwright.specs.layer_spec import layer_runs
from meshwright.specs.layers.short_convolution import ShortConvolution
from meshwright.specs.streams import Images

_WORDS = ("conv", "full_attention")


def lfm3_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """LFM3-VL: LFM's layers over patches, whose convolutions are of two dimensions and gated.

    Args:
        fields: the fields of the tower.
        outer: the fields of the whole config.
        text: width of the text.
    """
    middle, bias = outer.whole("projector_hidden_size", default=4096), outer.flag("projector_bias", default=True)
    outer.done()
    hidden, layers = fields.whole("hidden_size", default=1024), fields.whole("num_hidden_layers", high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_attention_heads", default=16)
    kernel, merge = fields.whole("conv_kernel_size", default=3), fields.whole("spatial_merge_size", default=2)
    patch = fields.whole("patch_size", default=16)
    block = TowerLayer(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", default=heads),
        width=fields.whole("intermediate_size", default=2560),
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        qk_norm=True,
        norm="rmsnorm",
    )
    words = fields.pattern("layer_types", layers, _WORDS)
    if words is None:
        fields.problem("layer_types", None, f"must say of each layer which it is: {' or '.join(_WORDS)}")
    stem = frames_of_patch(fields, patch, hidden, bias=False)
    fields.done()
    seeing = block.layer(VISION)
    mixing = replace(seeing, attention=ShortConvolution(width=hidden, kernel=kernel**2))
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=stem,
        projector=two_matrices(hidden * merge**2, middle, text, bias=bias, rate=merge**-2.0),
        # The norm behind the layers, and the projector's.
        tables=hidden + 2 * hidden,
    )
    runs = layer_runs([mixing if word == "conv" else seeing for word in words or ()])
    return Tower(runs=runs, streams=(stream,))
