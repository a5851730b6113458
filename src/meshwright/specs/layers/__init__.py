"""The kinds of layer parts; a union is the table of its kinds, read by specs, files and plans."""

from __future__ import annotations

from meshwright.specs.layers.absent import NoMixer as NoMixer
from meshwright.specs.layers.absent import NoMlp as NoMlp
from meshwright.specs.layers.attention import Attention as Attention
from meshwright.specs.layers.compressed_attention import CompressedAttention as CompressedAttention
from meshwright.specs.layers.cross_attention import CrossAttention as CrossAttention
from meshwright.specs.layers.delta_net import DeltaNet as DeltaNet
from meshwright.specs.layers.dense_mlp import DenseMlp as DenseMlp
from meshwright.specs.layers.indexer import Indexer as Indexer
from meshwright.specs.layers.kimi_delta import KimiDelta as KimiDelta
from meshwright.specs.layers.latent_attention import LatentAttention as LatentAttention
from meshwright.specs.layers.laurel import Laurel as Laurel
from meshwright.specs.layers.linear_attention import LinearAttention as LinearAttention
from meshwright.specs.layers.mamba import Mamba as Mamba
from meshwright.specs.layers.mamba2 import Mamba2 as Mamba2
from meshwright.specs.layers.mixers import SideBySide as SideBySide
from meshwright.specs.layers.mixers import SingleMixer as SingleMixer
from meshwright.specs.layers.moe import MoeMlp as MoeMlp
from meshwright.specs.layers.per_layer_input import PerLayerInput as PerLayerInput
from meshwright.specs.layers.rwkv import RwkvChannelMix as RwkvChannelMix
from meshwright.specs.layers.rwkv import RwkvTimeMix as RwkvTimeMix
from meshwright.specs.layers.short_convolution import ShortConvolution as ShortConvolution

MixerKind = SingleMixer | SideBySide
FeedForwardKind = DenseMlp | MoeMlp | PerLayerInput | RwkvChannelMix | NoMlp
