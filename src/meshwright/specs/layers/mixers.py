"""The table of mixers; a part of a layer that mixes tokens is one of them, or several side by side."""

from __future__ import annotations

from meshwright.specs.layers.absent import NoMixer
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.compressed_attention import CompressedAttention
from meshwright.specs.layers.cross_attention import CrossAttention
from meshwright.specs.layers.delta_net import DeltaNet
from meshwright.specs.layers.kimi_delta import KimiDelta
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.linear_attention import LinearAttention
from meshwright.specs.layers.mamba import Mamba
from meshwright.specs.layers.mamba2 import Mamba2
from meshwright.specs.layers.rwkv import RwkvTimeMix
from meshwright.specs.layers.short_convolution import ShortConvolution

SingleMixer = (
    Attention
    | CrossAttention
    | LatentAttention
    | CompressedAttention
    | Mamba
    | Mamba2
    | DeltaNet
    | KimiDelta
    | LinearAttention
    | RwkvTimeMix
    | ShortConvolution
    | NoMixer
)
