"""One or more of every kind of layer part, small, for tests that hold for all of them."""

from __future__ import annotations

from meshwright.specs.layers.absent import NoMixer, NoMlp
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.base import FeedForward, LayerPart, Mixer
from meshwright.specs.layers.compressed_attention import CompressedAttention
from meshwright.specs.layers.delta_net import DeltaNet
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.layers.kimi_delta import KimiDelta
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.laurel import Laurel
from meshwright.specs.layers.linear_attention import LinearAttention
from meshwright.specs.layers.mamba import Mamba
from meshwright.specs.layers.mamba2 import Mamba2
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.layers.per_layer_input import PerLayerInput
from meshwright.specs.layers.rwkv import RwkvChannelMix, RwkvTimeMix
from meshwright.specs.layers.short_convolution import ShortConvolution
from meshwright.specs.layers.side_by_side import SideBySide
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec

KINDS: tuple[LayerPart, ...] = (
    Attention(heads=8, kv_heads=2, head_dim=16, qkv_bias=True, out_bias=True, qk_norm=True, sinks=True),
    Attention(heads=8, kv_heads=8, head_dim=16, gate=True, window=64),
    Attention(heads=8, kv_heads=2, head_dim=16, value_dim=8, qk_norm=True, qk_scales="all", softcap=True),
    Attention(heads=8, kv_heads=2, head_dim=16, value_is_key=True, chunk=32, qk_norm=True, qk_scales="none"),
    Attention(heads=8, kv_heads=2, head_dim=16, head_gate=True, qkv_bias=True),
    Attention(heads=8, kv_heads=2, head_dim=16, indexer=Indexer(heads=4, dim=8, top_k=64)),
    Attention(
        heads=8, kv_heads=2, head_dim=16, indexer=Indexer(heads=2, dim=8, top_k=64, block=16, weighted=False)
    ),
    LatentAttention(heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8, latent_norms=False),
    LatentAttention(heads=8, q_rank=None, kv_rank=16, nope_dim=8, rope_dim=0, value_dim=8, gate="head"),
    LatentAttention(heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8, window=64),
    LatentAttention(heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8, gate="wide", sinks=True),
    LatentAttention(heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8, gate="latent"),
    LatentAttention(
        heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8,
        indexer=Indexer(heads=4, dim=8, top_k=64),
    ),
    LatentAttention(
        heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8,
        indexer=Indexer(heads=4, dim=8, top_k=64, own=False),
    ),
    LatentAttention(heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8),
    LatentAttention(heads=8, q_rank=None, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8),
    CompressedAttention(heads=8, head_dim=16, q_rank=24, output_groups=4, output_rank=8, window=64),
    CompressedAttention(heads=8, head_dim=16, q_rank=24, output_groups=4, output_rank=8, window=64, rate=128),
    CompressedAttention(
        heads=8, head_dim=16, q_rank=24, output_groups=4, output_rank=8, window=64, rate=4,
        indexer=Indexer(heads=4, dim=8, top_k=64),
    ),
    Mamba2(heads=8, head_dim=16, groups=2, state=32, bias=True),
    Mamba2(heads=8, head_dim=16, groups=1, state=32, norm=False, conv_bias=False),
    Mamba(width=256, state=16, step_rank=8),
    Mamba(width=256, state=16, step_rank=8, bias=True, norms=True),
    DeltaNet(heads=8, key_heads=4, key_dim=16, value_dim=16),
    DeltaNet(heads=8, key_heads=4, key_dim=16, value_dim=16, apart=True, keys_apart=True),
    KimiDelta(heads=8, head_dim=16),
    KimiDelta(heads=8, head_dim=16, low_rank=False),
    LinearAttention(heads=8, head_dim=16),
    LinearAttention(heads=8, head_dim=16, gate=False, norm="head", qk_norm=True),
    RwkvTimeMix(version=5, heads=8, head_dim=16),
    RwkvTimeMix(version=6, heads=8, head_dim=16, mix_rank=4, decay_rank=8),
    RwkvTimeMix(version=7, heads=8, head_dim=16, decay_rank=8, rate_rank=8, value_rank=4, gate_rank=16),
    RwkvTimeMix(version=7, heads=8, head_dim=16, decay_rank=8, rate_rank=8, gate_rank=16),
    ShortConvolution(width=128),
    ShortConvolution(width=128, bias=True),
    SideBySide(
        mixers=(Attention(heads=8, kv_heads=2, head_dim=16), Mamba2(heads=8, head_dim=16, groups=1, state=32)),
    ),
    SideBySide(mixers=(Attention(heads=8, kv_heads=2, head_dim=16), Laurel(rank=8))),
    RwkvChannelMix(version=6, ffn_hidden=448),
    RwkvChannelMix(version=7, ffn_hidden=512),
    DenseMlp(ffn_hidden=256, gated=True),
    DenseMlp(ffn_hidden=256, gated=False, bias=True),
    PerLayerInput(mlp=DenseMlp(ffn_hidden=256, gated=True), width=32, rows=512),
    MoeMlp(experts=8, top_k=1, ffn_hidden=32, gated=False, bias=True, shared_ffn_hidden=32, residual=True),
    MoeMlp(experts=8, top_k=2, ffn_hidden=64, gated=True, shared_ffn_hidden=32, shared_gate=True),
    MoeMlp(experts=8, top_k=2, ffn_hidden=64, gated=False, router_bias=True, bias=True),
    MoeMlp(experts=8, top_k=2, ffn_hidden=64, gated=False, latent=32, shared_ffn_hidden=48),
    MoeMlp(experts=8, top_k=3, ffn_hidden=64, gated=True, null_experts=4, router_bias=True),
)  # fmt: skip

HIDDEN = 128


def layer_of(part: LayerPart) -> LayerSpec:
    """A layer of this part alone."""
    if isinstance(part, Mixer):
        return LayerSpec(attention=part, mlp=NoMlp(), norms=1)
    assert isinstance(part, FeedForward)
    return LayerSpec(attention=NoMixer(), mlp=part, norms=1)


def model_of(part: LayerPart) -> ModelSpec:
    """A model of four such layers."""
    runs = (LayerRun(layers=(layer_of(part),), repeats=4),)
    return ModelSpec(
        name=part.kind, family="test", hidden=HIDDEN, vocab=512, max_seq_len=4096, runs=runs, tied_embeddings=False
    )
