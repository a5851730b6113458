"""Mixers other than attention from the fields of a config: state-space layers, linear attention, convolutions."""

from __future__ import annotations

from typing import Literal, cast

from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers.delta_net import DeltaNet
from meshwright.specs.layers.kimi_delta import KimiDelta
from meshwright.specs.layers.linear_attention import LinearAttention
from meshwright.specs.layers.mamba import Mamba
from meshwright.specs.layers.mamba2 import Mamba2
from meshwright.specs.layers.rwkv import RwkvTimeMix
from meshwright.specs.layers.short_convolution import ShortConvolution


def read_mamba2(fields: Fields, hidden: int) -> Mamba2:
    """Mamba-2; without a head size, heads share `expand` times the hidden size."""
    heads = fields.whole("mamba_num_heads")
    width = fields.maybe("mamba_d_ssm") or fields.whole("expand", default=2) * hidden
    stated = None if fields.raw("mamba_head_dim") == "auto" else fields.maybe("mamba_head_dim")
    if stated is None and width % heads and not fields.bad("mamba_num_heads", "expand", "hidden_size"):
        fields.problem("mamba_num_heads", heads, f"must divide the width of its state-space layers = {width}")
    groups = fields.whole("n_groups", default=1)
    if heads % groups and not fields.bad("mamba_num_heads", "n_groups"):
        fields.problem("n_groups", groups, f"must divide the heads of its state-space layers = {heads}")
        groups = heads
    return Mamba2(
        heads=heads,
        head_dim=stated or max(1, width // heads),
        groups=groups,
        state=fields.whole("ssm_state_size"),
        conv_kernel=fields.whole("conv_kernel", default=4),
        chunk=fields.whole("chunk_size", default=256),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", "use_bias", default=False),
        norm=fields.flag("mamba_rms_norm", default=True),
    )


def read_mamba(fields: Fields, hidden: int) -> Mamba:
    """Mamba-1; its steps go through a sixteenth of the hidden size unless stated."""
    rank = None if fields.raw("time_step_rank") == "auto" else fields.maybe("time_step_rank")
    return Mamba(
        width=fields.maybe("mamba_width") or fields.whole("expand", default=2) * hidden,
        state=fields.whole("ssm_state_size"),
        step_rank=rank or -(-hidden // 16),
        conv_kernel=fields.whole("conv_kernel", default=4),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", "use_bias", default=False),
        norms=fields.flag("mamba_inner_norms", default=False),
    )


def read_delta_net(fields: Fields, hidden: int) -> DeltaNet:
    """Gated delta net."""
    heads, key_heads = fields.whole("linear_num_value_heads"), fields.whole("linear_num_key_heads")
    if heads % key_heads and not fields.bad("linear_num_value_heads", "linear_num_key_heads"):
        fields.problem("linear_num_key_heads", key_heads, f"must divide linear_num_value_heads = {heads}")
        key_heads = heads
    return DeltaNet(
        heads=heads,
        key_heads=key_heads,
        key_dim=fields.whole("linear_key_head_dim"),
        value_dim=fields.whole("linear_value_head_dim"),
        conv_kernel=fields.whole("linear_conv_kernel_dim", default=4),
        apart=fields.flag("delta_apart", default=False),
        keys_apart=fields.flag("delta_keys_apart", default=False),
    )


def read_kimi_delta(fields: Fields, hidden: int) -> KimiDelta:
    """Kimi delta attention, whose sizes lie in an object of their own or beside the others."""
    if fields.given("linear_attn_config"):
        inside = fields.inside("linear_attn_config")
        heads, head_dim = inside.whole("num_heads"), inside.whole("head_dim")
    else:
        inside, heads, head_dim = fields, fields.whole("linear_num_heads"), fields.whole("linear_head_dim")
    inside.has("gate_lower_bound", "kda_layers", "full_attn_layers")  # no weights, and where the layers stand
    return KimiDelta(
        heads=heads,
        head_dim=head_dim,
        conv_kernel=inside.whole("linear_conv_kernel_dim", default=4),
        low_rank=fields.flag("delta_low_rank", default=True),
        wide_gate=inside.flag("use_full_rank_gate", default=False),
    )


def read_linear(fields: Fields, hidden: int) -> LinearAttention:
    """Linear attention with decays fixed by head, as many heads as its softmax layers."""
    heads = fields.whole("num_attention_heads")
    return LinearAttention(
        heads=heads,
        head_dim=fields.head_dim(hidden, heads),
        chunk=fields.whole("block_size", default=256),
        qk_norm=fields.flag("qk_norm", default=False),
    )


def read_convolution(fields: Fields, hidden: int) -> ShortConvolution:
    """A gated convolution over a few tokens."""
    return ShortConvolution(
        width=hidden, kernel=fields.whole("conv_L_cache"), bias=fields.flag("conv_bias", default=False)
    )


def read_rwkv(fields: Fields, hidden: int, layers: int) -> list[RwkvTimeMix]:
    """Time mixing of each layer; the first of version 7 has no values of an earlier one."""
    version = cast(Literal[5, 6, 7], fields.whole("rwkv_version"))
    head_dim = fields.whole("head_size", "head_dim", default=64)
    width = fields.whole("attention_hidden_size", default=hidden)
    if width % head_dim and not fields.bad("attention_hidden_size", "head_size", "hidden_size"):
        fields.problem("head_size", head_dim, f"must divide the width of its heads = {width}")
    heads = max(1, width // head_dim)
    if version == 5:
        return [RwkvTimeMix(version=version, heads=heads, head_dim=head_dim)] * layers
    if version == 6:
        mix, decay = fields.whole("mix_rank", default=32), fields.whole("decay_low_rank_dim", default=64)
        mixer = RwkvTimeMix(version=version, heads=heads, head_dim=head_dim, mix_rank=mix, decay_rank=decay)
        return [mixer] * layers
    decay, rate = fields.whole("decay_low_rank_dim"), fields.whole("a_low_rank_dim")
    value, gate = fields.whole("v_low_rank_dim"), fields.whole("gate_low_rank_dim")

    def seventh(values: int) -> RwkvTimeMix:
        return RwkvTimeMix(
            version=version,
            heads=heads,
            head_dim=head_dim,
            decay_rank=decay,
            rate_rank=rate,
            value_rank=values,
            gate_rank=gate,
        )

    return [seventh(0), *[seventh(value)] * (layers - 1)]
