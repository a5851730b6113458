"""A mixture of experts: every token visits the top-k experts of its router, each of which has room for so many.

Tokens are sent by products with one-hot matrices, per sample: which tokens are dropped depends on no other sample, so a
batch may be split anywhere. Source: Lepikhin et al. 2020, GShard, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.specs.layers import DenseMlp, MoeMlp
from meshwright.zoo.feed_forward import mlp, mlp_weights
from meshwright.zoo.parts import drawn
from meshwright.zoo.splits import expert_axes

Weights = dict[str, jax.Array]
SAMPLES, SEATS = 1, 2
"""Axes of [experts, samples, seats, hidden]."""


def through_experts(grid: DeviceGrid | None, weights: Weights, x: jax.Array) -> jax.Array:
    """Every expert's MLP on its own tokens.

    Args:
        grid: of the devices; None for one device.
        weights: up, down and gate of all experts [experts, ...], and their biases.
        x: [experts, samples, seats, hidden].
    """
    if grid is None:
        return _mlps(weights, x, lambda values: values)
    # Ranks that do not split samples split the seats of a sample; rows that fill up the last share are cut off again.
    rows: dict[int, Axes] = {SAMPLES: grid.data, SEATS: (*grid.tokens, *grid.tensor)}
    seats = x.shape[SEATS]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -seats % grid.size(rows[SEATS])), (0, 0)))
    split = PartitionSpec(None, *(axes or None for axes in rows.values()))
    sent, shared = ([(at, own) for at, axes in rows.items() if (own := tuple(axis for axis in axes if axis in of))]
                    for of in (grid.expert, grid.expert_tensor))  # fmt: skip

    def gathered_sum(values: jax.Array) -> jax.Array:
        for at, axes in reversed(shared):
            values = jax.lax.psum_scatter(values, axes, scatter_dimension=at, tiled=True)
        return values

    def ranks(own: Weights, values: jax.Array) -> jax.Array:
        for at, axes in sent:
            values = jax.lax.all_to_all(values, axes, 0, at, tiled=True)
        for at, axes in shared:
            values = jax.lax.all_gather(values, axes, axis=at, tiled=True)
        values = _mlps(own, values, gathered_sum)
        for at, axes in reversed(sent):
            values = jax.lax.all_to_all(values, axes, at, 0, tiled=True)
        return values

    placed = {name: grid.spec(expert_axes(name), matrix.shape) for name, matrix in weights.items()}
    made = jax.shard_map(ranks, mesh=grid.mesh, in_specs=(placed, split), out_specs=split)(weights, x)
    return made[:, :, :seats]


def _mlps(weights: Weights, x: jax.Array, summed: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """down(gelu(up x)), or down(silu(gate x) * up x), of each expert; what ranks hold parts of is summed over them."""

    def through(name: str, values: jax.Array) -> jax.Array:
        product = jnp.einsum("ebch,ehf->ebcf", values, weights[name])
        product = summed(product) if name == "down" else product
        bias = weights.get(f"{name}_bias")
        return product if bias is None else product + bias[:, None, None, :]

    wide = jax.nn.silu(through("gate", x)) * through("up", x) if "gate" in weights else jax.nn.gelu(through("up", x))
    return through("down", wide)


CAPACITY_FACTOR = 1.25
"""Room of an expert over its share of balanced tokens."""

OF_EACH = ("up", "down", "gate", "up_bias", "down_bias", "gate_bias")
"""Weights with a first axis for experts."""


def expert_weights(spec: MoeMlp, hidden: int, key: jax.Array, scale: float) -> Weights:
    """Router [hidden, experts], matrices with a first axis for experts, and the shared expert's.

    Args:
        spec: experts and their width.
        hidden: width of the stream.
        key: of the random numbers.
        scale: of the matrices down.
    """
    router, up, gate, down, shared, mixed = jax.random.split(key, 6)
    wide, narrow = (spec.experts, hidden, spec.ffn_hidden), (spec.experts, spec.ffn_hidden, hidden)
    weights = {
        "router": drawn(router, (hidden, spec.experts), hidden),
        "up": drawn(up, wide, hidden),
        "down": drawn(down, narrow, spec.ffn_hidden, scale),
    }
    if spec.gated:
        weights["gate"] = drawn(gate, wide, hidden)
    if spec.bias:
        weights |= {f"{name}_bias": jnp.zeros((spec.experts, weights[name].shape[-1]))
                    for name in tuple(weights) if name != "router"}  # fmt: skip
    if spec.router_bias:
        weights["router_bias"] = jnp.zeros(spec.experts)
    if spec.shared_ffn_hidden:
        dense = mlp_weights(DenseMlp(ffn_hidden=spec.shared_ffn_hidden, gated=spec.gated), hidden, shared, scale)
        weights |= {f"shared_{name}": matrix for name, matrix in dense.items()}
    if spec.shared_gate:
        weights["shared_mix"] = drawn(mixed, (hidden, 1), hidden)
    return weights


def experts(
    spec: MoeMlp, weights: Weights, x: jax.Array, *, capacity_factor: float | None, grid: DeviceGrid | None = None
) -> tuple[jax.Array, jax.Array]:
    """What the experts make of tokens, and how unbalanced their routing is.

    Args:
        spec: experts, top-k.
        weights: of `expert_weights`.
        x: [samples, length, hidden].
        capacity_factor: room of an expert over its balanced share, per sample; None makes room for every token.
        grid: of the devices that share the work; tokens then go to the devices of their experts and back.

    Returns:
        The values, and the mean over samples of experts x sum(share of tokens x mean router probability), 1 when
        balanced (Fedus et al. 2021, Switch Transformers, equation 4, per sample).
    """
    shares = _shares(weights, x)
    send, take = _routes(spec, shares, _room(spec, x.shape[1], capacity_factor))
    arrived = jnp.einsum("bsec,bsh->ebch", send.astype(x.dtype), x)
    made = through_experts(grid, {name: weights[name] for name in weights if name in OF_EACH}, arrived)
    y = jnp.einsum("bsec,ebch->bsh", take.astype(x.dtype), made)
    if spec.shared_ffn_hidden:
        own = {name.removeprefix("shared_"): matrix for name, matrix in weights.items() if name.startswith("shared_")}
        shared = mlp(own, x)
        y = y + (jax.nn.sigmoid(x @ weights["shared_mix"]) * shared if spec.shared_gate else shared)
    chosen = jax.nn.one_hot(_chosen(spec, shares)[1], spec.experts, dtype=shares.dtype).sum(2)
    balance = spec.experts / spec.top_k * (chosen.mean(1) * shares.mean(1)).sum(-1).mean()
    return y, balance


def routed(spec: MoeMlp, weights: Weights, x: jax.Array) -> jax.Array:
    """Experts that the router chooses for each token [samples, length, top-k], whether they have room or not.

    Args:
        spec: experts, top-k.
        weights: of `expert_weights`.
        x: [samples, length, hidden].
    """
    return _chosen(spec, _shares(weights, x))[1]


def _shares(weights: Weights, x: jax.Array) -> jax.Array:
    """Probabilities of the router [samples, length, experts], in at least float32."""
    logits = x @ weights["router"] + weights.get("router_bias", 0.0)
    return jax.nn.softmax(logits.astype(jnp.promote_types(x.dtype, jnp.float32)), axis=-1)


def _chosen(spec: MoeMlp, shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The top k of the router's probabilities and their experts: of all, or of those groups whose best two have most.

    Source: DeepSeek-AI, DeepSeek-V3 technical report (arXiv 2412.19437), 2024-12, section 2.1.2.
    """
    if not spec.groups:
        return jax.lax.top_k(shares, spec.top_k)
    grouped = shares.reshape(*shares.shape[:-1], spec.groups, -1)
    best = jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0].sum(-1)
    kept = jax.nn.one_hot(jax.lax.top_k(best, spec.groups_per_token)[1], spec.groups).sum(-2)
    open_ = jnp.where(kept[..., None] > 0, grouped, -1.0).reshape(shares.shape)
    return jax.lax.top_k(open_, spec.top_k)


def _room(spec: MoeMlp, length: int, factor: float | None) -> int:
    """Tokens of a sample that an expert takes: each token visits it at most once."""
    return length if factor is None else min(length, math.ceil(factor * spec.top_k * length / spec.experts))


def _routes(spec: MoeMlp, shares: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """One-hot [samples, length, experts, room] that sends tokens, and the same with weights that takes results."""
    weight, index = _chosen(spec, shares)
    weight = weight / weight.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(index, spec.experts, dtype=jnp.int32)
    # Seats go by position: whether a token is dropped depends on no later one.
    order = chosen.reshape(chosen.shape[0], -1, spec.experts)
    seat = (jnp.cumsum(order, axis=1) - order).reshape(chosen.shape)
    seated = chosen[..., None] * jax.nn.one_hot(seat, room, dtype=jnp.int32)
    return seated.sum(2), (seated * weight[..., None, None]).sum(2)
