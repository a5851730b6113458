"""The kinds of layer parts; a union is the table of its kinds, read by specs, files and plans."""

from __future__ import annotations

from meshwright.specs.layers.attention import Attention as Attention
from meshwright.specs.layers.dense_mlp import DenseMlp as DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention as LatentAttention
from meshwright.specs.layers.moe import MoeMlp as MoeMlp

MixerKind = Attention | LatentAttention
FeedForwardKind = DenseMlp | MoeMlp
