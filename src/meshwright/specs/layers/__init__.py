"""The kinds of layer parts by their `kind`, each read from its file when a model has it, or a file of one is read.

A new kind is a file here with a `Mixer` or a `FeedForward`, and a line in its table.
"""

from __future__ import annotations

from meshwright.catalogue import KindCatalogue
from meshwright.specs.layers.base import FeedForward, Mixer

_SINGLE = {
    "grouped": "attention:Attention",
    "cross": "cross_attention:CrossAttention",
    "latent": "latent_attention:LatentAttention",
    "compressed": "compressed_attention:CompressedAttention",
    "mamba": "mamba:Mamba",
    "mamba2": "mamba2:Mamba2",
    "delta-net": "delta_net:DeltaNet",
    "kimi-delta": "kimi_delta:KimiDelta",
    "linear": "linear_attention:LinearAttention",
    "laurel": "laurel:Laurel",
    "rwkv": "rwkv:RwkvTimeMix",
    "short-convolution": "short_convolution:ShortConvolution",
    "none": "absent:NoMixer",
}
SINGLE_MIXERS: KindCatalogue[Mixer] = KindCatalogue(__name__, _SINGLE)
MIXERS: KindCatalogue[Mixer] = KindCatalogue(__name__, {**_SINGLE, "side-by-side": "side_by_side:SideBySide"})
"""The kinds of mixer, and several of them side by side."""
CROSS_MIXERS: KindCatalogue[Mixer] = KindCatalogue(__name__, {"cross": _SINGLE["cross"]})
FEED_FORWARDS: KindCatalogue[FeedForward] = KindCatalogue(
    __name__,
    {
        "dense": "dense_mlp:DenseMlp",
        "moe": "moe:MoeMlp",
        "per-layer-input": "per_layer_input:PerLayerInput",
        "rwkv": "rwkv:RwkvChannelMix",
        "none": "absent:NoMlp",
    },
)
