"""Feed-forward parts of a decoder from the fields of its config: dense MLPs, experts, and which layers have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from meshwright.formats.huggingface.fields import Fields
from meshwright.formats.huggingface.mixers import without_mlp
from meshwright.specs.layers.base import FeedForward
from meshwright.specs.layers.dense_mlp import DenseMlp

if TYPE_CHECKING:
    from meshwright.specs.layers.moe import MoeMlp

SPARSE = frozenset({"sparse", "moe"})
WIDTHS_OF_EXPERTS = ("moe_intermediate_size", "shared_expert_intermediate_size", "moe_latent_size")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "activation")


def read_mlps(fields: Fields, hidden: int, layers: int, *, sparse: bool) -> list[FeedForward]:
    """The feed-forward part of each layer.

    Args:
        fields: the config.
        hidden: width of the residual stream.
        layers: how many there are.
        sparse: whether experts must be there.
    """
    if fields.given("rwkv_version"):
        return _channel_mixes(fields, hidden, layers)
    gated = fields.flag("gated_mlp", default=_gated(fields))
    bias = fields.flag("mlp_bias", default=fields.flag("bias", default=False))
    experts = fields.experts(required=sparse)
    parts = without_mlp(fields, layers)
    if parts is not None or fields.flag("no_mlp", default=False):
        return _alone(fields, parts or ["none"] * layers, experts, gated=gated, bias=bias)
    if not experts:
        relu = any(fields.raw(key) == "relu" for key in ACTIVATIONS)
        return [_dense(width, gated=gated, bias=bias, relu=relu) for width in _widths(fields, hidden, layers)]
    fields.has("intermediate_size", "dense_intermediate_size")  # of no weight where every layer is sparse
    where = _where(fields, layers)
    moe = _experts(fields, experts, gated=gated, any_=any(where))
    width = 1 if all(where) else fields.maybe("dense_intermediate_size") or fields.whole("intermediate_size")
    dense = DenseMlp(ffn_hidden=width, gated=gated, bias=bias)
    return [moe if is_sparse else dense for is_sparse in where]


def _channel_mixes(fields: Fields, hidden: int, layers: int) -> list[FeedForward]:
    """RWKV's: 3.5 times the hidden size in whole thirty-seconds, four times in version 7, unless stated."""
    from meshwright.specs.layers.rwkv import RwkvChannelMix

    version = cast(Literal[5, 6, 7], fields.whole("rwkv_version"))
    usual = 4 * hidden if version == 7 else max(1, int(3.5 * hidden) // 32 * 32)
    width = fields.maybe("intermediate_size") or usual
    return [RwkvChannelMix(version=version, ffn_hidden=width)] * layers


def _dense(width: int, *, gated: bool, bias: bool, relu: bool) -> FeedForward:
    """A dense MLP, none where its width is 0."""
    if width:
        return DenseMlp(ffn_hidden=width, gated=gated, bias=bias, relu=relu)
    from meshwright.specs.layers.absent import NoMlp

    return NoMlp()


def _alone(fields: Fields, parts: list[str], experts: int, *, gated: bool, bias: bool) -> list[FeedForward]:
    """Feed-forward parts of layers that have either one or a mixer."""
    from meshwright.specs.layers.absent import NoMlp

    kinds: dict[str, FeedForward] = {"none": NoMlp()}
    if "dense" in parts:
        kinds["dense"] = DenseMlp(ffn_hidden=fields.whole("intermediate_size"), gated=gated, bias=bias)
    if "sparse" in parts:
        if not experts and not fields.bad("num_experts"):
            fields.require("num_experts")
        kinds["sparse"] = _experts(fields, max(1, experts), gated=gated, any_=True)
    else:
        # Of no weight where no layer has experts, as in dense models of families that may have them.
        fields.has("num_experts_per_tok", "n_shared_experts", *WIDTHS_OF_EXPERTS)
    return [kinds[part] for part in parts]


def _gated(fields: Fields) -> bool:
    """Whether an activation comes with a gate: SiLU does; of any other a family knows, or the config must say."""
    key = next((key for key in ACTIVATIONS if isinstance(fields.raw(key), str)), ACTIVATIONS[0])
    name = str(fields.raw(key) or "silu")
    gated = any(part in name for part in ("silu", "swi", "swish", "glu"))
    if not gated and not fields.known and not fields.given("gated_mlp"):
        fields.refuse(
            key,
            name,
            "whether the MLPs of an unknown family have a gate beside this activation cannot be known",
            'add "gated_mlp": true (three matrices) or false (two)',
        )
    return gated or fields.known


def _widths(fields: Fields, hidden: int, layers: int) -> list[int]:
    """Width of each layer's dense MLP: one number, or a list of one a layer."""
    listed = fields.wholes("intermediate_size", layers, low=0)
    if listed is not None:
        return listed
    if fields.flag("ffn_optional", default=False):
        return [fields.maybe("intermediate_size") or 4 * hidden] * layers
    return [fields.whole("intermediate_size")] * layers


def _experts(fields: Fields, experts: int, *, gated: bool, any_: bool) -> MoeMlp:
    """The experts of a sparse layer; widths that no layer uses may be missing or anything."""
    from meshwright.specs.layers.moe import MoeMlp

    key = "moe_intermediate_size" if fields.given("moe_intermediate_size") else "intermediate_size"
    if fields.flag("expert_width_stated", default=False):
        key = "moe_intermediate_size"
    width = fields.whole(key) if any_ else 1
    stated = fields.maybe("shared_expert_intermediate_size", low=0)
    count = fields.maybe("n_shared_experts", low=0, high=1024)
    shared = stated if stated is not None else (count or 0) * width
    nothing = fields.whole("zero_expert_num", low=0, default=0)
    groups, chosen = _router_groups(fields, experts)
    latent = fields.maybe("moe_latent_size", low=0) or 0
    normed = fields.flag("latent_moe_use_norm", default=False)
    return MoeMlp(
        experts=experts,
        groups=groups,
        groups_per_token=chosen,
        top_k=fields.top_k(experts + nothing),
        ffn_hidden=width,
        gated=gated,
        shared_ffn_hidden=shared,
        shared_gate=shared > 0 and fields.flag("shared_gate", default=False),
        router_bias=fields.flag("router_bias", default=False),
        bias=fields.flag("expert_bias", default=False),
        latent=latent,
        latent_norm=normed and latent > 0,  # classes norm what comes from the width of experts' own
        null_experts=nothing,
    )


def _router_groups(fields: Fields, experts: int) -> tuple[int, int]:
    """Groups of experts, and those of them in which a token has any; zeros where all are open to all tokens."""
    groups, chosen = fields.maybe("n_group"), fields.maybe("topk_group")
    if not groups or not chosen or fields.raw("topk_method") == "greedy" or chosen >= groups:
        return 0, 0
    if experts % groups:
        fields.problem("n_group", groups, f"must divide the {experts} experts")
        return 0, 0
    return groups, chosen


def _where(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer is sparse."""
    words = fields.pattern("mlp_layer_types", layers, ("dense", *sorted(SPARSE)))
    if words is not None:
        return [word in SPARSE for word in words]
    listed = fields.switches("moe_layer_freq", layers)
    if listed is not None:
        return listed
    chosen = fields.positions("moe_layers", layers)
    if chosen is not None:
        return [i in chosen for i in range(layers)]
    first = fields.whole("first_k_dense_replace", low=0, default=0)
    last = fields.whole("moe_layer_end_index", low=-1, default=-1)
    every = fields.whole("moe_layer_freq", default=1)
    step = fields.whole("decoder_sparse_step", default=1)
    period = fields.whole("expert_layer_period", default=1)
    offset = fields.whole("expert_layer_offset", low=0, default=0)
    plain = fields.positions("mlp_only_layers", layers) or frozenset()
    within = range(first, layers if last < 0 else last + 1)
    return [
        i in within and i not in plain and i % every == 0 and (i + 1) % step == 0 and i % period == offset % period
        for i in range(layers)
    ]
