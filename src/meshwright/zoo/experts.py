"""A mixture of experts: every token visits the top-k experts of its router, each of which has room for so many.

Tokens are sent by products with one-hot matrices, per sample: which tokens are dropped depends on no other sample, so a
batch may be split anywhere. Source: Lepikhin et al. 2020, GShard, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.grid import DeviceGrid
from meshwright.kernels.expert_load import capacity
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.strategy import ExpertParallel
from meshwright.zoo.blocks import WHOLE, WholeTensors
from meshwright.zoo.expert_exchange import PLAIN, TokenExchange, Weights, mlps, through_experts, without_duplicates
from meshwright.zoo.feed_forward import mlp, mlp_weights
from meshwright.zoo.gates import Gate, routes
from meshwright.zoo.parts import drawn
from meshwright.zoo.sent_once import once_on_rank, sent_once
from meshwright.zoo.token_groups import WholeSamples

CAPACITY_FACTOR = 1.25
"""Room of an expert over its share of balanced tokens."""

OF_EACH = ("up", "down", "gate", "up_bias", "down_bias", "gate_bias")
"""Weights with a first axis for experts."""


def expert_weights(spec: MoeMlp, hidden: int, key: jax.Array, scale: float) -> Weights:
    """Router [hidden, experts], matrices with a first axis for experts, and the shared expert's.

    Args:
        spec: experts and their width.
        hidden: width of the stream.
        key: the key of the random numbers.
        scale: the scale of the matrices down.
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
        weights |= {
            f"{name}_bias": jnp.zeros((spec.experts, weights[name].shape[-1]))
            for name in tuple(weights)
            if name != "router"
        }
    if spec.router_bias:
        weights["router_bias"] = jnp.zeros(spec.experts)
    if spec.shared_ffn_hidden:
        dense = mlp_weights(spec.shared, hidden, shared, scale)
        weights |= {f"shared_{name}": matrix for name, matrix in dense.items()}
    if spec.shared_gate:
        weights["shared_mix"] = drawn(mixed, (hidden, 1), hidden)
    if spec.residual:
        # The last row is the bias.
        weights["residual"] = drawn(mixed, (hidden + 1, 2), hidden).at[hidden].set(0.0)
    return weights


def experts(
    spec: MoeMlp,
    weights: Weights,
    x: jax.Array,
    *,
    capacity_factor: float | None,
    grid: DeviceGrid | None = None,
    how: ExpertParallel = PLAIN,
    gate: Gate = "top-k",
    keys: jax.Array | None = None,
    groups: WholeSamples | None = None,
    held: WholeTensors = WHOLE,
) -> tuple[jax.Array, jax.Array]:
    """What the experts make of tokens, and how unbalanced their routing is.

    Args:
        spec: experts, top-k.
        weights: the weights of `expert_weights`.
        x: [samples, length, hidden], tokens in the order of the grid's ranks.
        capacity_factor: room of an expert over its balanced share, per group; None makes room for every token.
        grid: the grid of the devices that share the work; tokens then go to the devices of their experts and back.
        how: the way they get there, as plans state it; where it places experts, weights are in the order of `slots`.
        gate: the gate: which experts take which tokens.
        keys: the keys of the samples' random numbers, for `gshard`.
        groups: tokens that share the places of experts; None for those of a sample.
        held: how ranks hold the shared expert; where it is not whole, all this is of one rank.

    Returns:
        The values, and of each sample experts x sum(share of tokens x mean router probability), 1 when balanced (Fedus
        et al. 2021, Switch Transformers, equation 4, per sample).
    """
    groups = groups or WholeSamples(grid=grid)
    own = groups.own(x)
    shares = _shares(weights, own)
    weight, index = _chosen(spec, shares)
    length = own.shape[1]
    room = length if capacity_factor is None else capacity(length, spec.experts, spec.top_k, capacity_factor)
    send, take = routes(gate, shares, (weight, index), min(length, room), keys, groups)
    if grid is not None and how.placement:
        send, take = (values[:, :, slots(how.placement)] for values in (send, take))
    hot = jax.lax.top_k(groups.total(send.sum((0, 1, 3))), how.shadowed)[1] if how.shadowed else None
    of_each = {name: weights[name] for name in weights if name in OF_EACH}
    if grid is not None and held is not WHOLE:
        made = _on_rank(grid, how, of_each, own, (send, take), hot)
    else:
        made = _on_devices(grid, how, of_each, own, (send, take), hot)
    y = groups.back(made)
    if spec.shared_ffn_hidden:
        shared = {name.removeprefix("shared_"): weights[name] for name in weights if name.startswith("shared_")}
        y = _joined(spec, weights, x, y, mlp(shared, x, held))
    chosen = jax.nn.one_hot(index, spec.experts, dtype=shares.dtype).sum(2)
    balance = spec.experts / spec.top_k * (groups.mean(chosen) * groups.mean(shares)).sum(-1)
    return y, balance


def _on_devices(
    grid: DeviceGrid | None,
    how: ExpertParallel,
    of_each: Weights,
    x: jax.Array,
    routes: tuple[jax.Array, jax.Array],
    hot: jax.Array | None,
) -> jax.Array:
    """What all experts make of all tokens, which the devices of a grid share."""
    send, take = routes
    kind = DISPATCHERS[how.dispatcher]
    if grid is not None and grid.expert and (kind.once or kind.gathers):
        visits, weights_of = send.sum(-1), take.sum(-1).astype(x.dtype)
        return sent_once(grid, of_each, x, visits, weights_of, mlps, hot, everywhere=kind.gathers)
    if grid is not None and grid.expert and how.drop_duplicates and hot is None and not kind.moves:
        return without_duplicates(grid, of_each, x, send.sum(-1), take.sum(-1).astype(x.dtype), how)
    return _placed(x, send, take, lambda arrived: through_experts(grid, of_each, arrived, how, hot))


def _on_rank(
    grid: DeviceGrid,
    how: ExpertParallel,
    of_each: Weights,
    x: jax.Array,
    routes: tuple[jax.Array, jax.Array],
    hot: jax.Array | None,
) -> jax.Array:
    """What all experts make of the tokens of a rank, inside of a `shard_map` over the grid."""
    send, take = routes
    kind = DISPATCHERS[how.dispatcher]
    if grid.expert and (kind.once or kind.gathers):
        visits, weights_of = send.sum(-1), take.sum(-1).astype(x.dtype)
        return once_on_rank(grid, mlps, of_each, x, visits, weights_of, hot, everywhere=kind.gathers)
    return _placed(x, send, take, lambda arrived: TokenExchange(grid, how).brought(of_each, arrived, hot))


def _placed(x: jax.Array, send: jax.Array, take: jax.Array, made: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """What experts make of the tokens in their places, back at the tokens that took these."""
    arrived = jnp.einsum("bsec,bsh->ebch", send.astype(x.dtype), x)
    return jnp.einsum("bsec,ebch->bsh", take.astype(x.dtype), made(arrived))


def over_data(grid: DeviceGrid, how: ExpertParallel) -> bool:
    """Whether data ranks share what stands in a layer of experts: experts, parts of them, or which are copied.

    Args:
        grid: the grid of the devices.
        how: tokens and experts meet.
    """
    return bool(how.shadowed or {*grid.expert, *grid.expert_tensor} & set(grid.data))


def _joined(spec: MoeMlp, weights: Weights, x: jax.Array, made: jax.Array, shared: jax.Array) -> jax.Array:
    """What the experts and the shared one made of tokens, in the weights that the model gives them."""
    if spec.residual:
        first, second = jnp.split(jax.nn.softmax(x @ weights["residual"][:-1] + weights["residual"][-1]), 2, axis=-1)
        return first * made + second * shared
    return made + (jax.nn.sigmoid(x @ weights["shared_mix"]) * shared if spec.shared_gate else shared)


def slots(placement: Sequence[int]) -> np.ndarray:
    """The expert of each slot, rank after rank, in which a placement holds the experts' weights [experts].

    Args:
        placement: rank of each expert; ranks hold equally many.
    """
    return np.argsort(np.asarray(placement), kind="stable")


def routed(spec: MoeMlp, weights: Weights, x: jax.Array) -> jax.Array:
    """Experts that the router chooses for each token [samples, length, top-k], whether they have room or not.

    Args:
        spec: experts, top-k.
        weights: the weights of `expert_weights`.
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
