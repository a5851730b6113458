"""A mixture of experts: every token visits the top-k experts of its router, each of which has room for so many.

Tokens are sent by products with one-hot matrices, per sample: which tokens are dropped depends on no other sample, so a
batch may be split anywhere. Source: Lepikhin et al. 2020, GShard, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.grid import DeviceGrid
from meshwright.kernels.expert_load import capacity
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.strategy import ExpertParallel
from meshwright.zoo.expert_exchange import PLAIN, Weights, mlps, through_experts, without_duplicates
from meshwright.zoo.feed_forward import mlp, mlp_weights
from meshwright.zoo.gates import Gate, routes
from meshwright.zoo.parts import drawn
from meshwright.zoo.sent_once import sent_once

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
) -> tuple[jax.Array, jax.Array]:
    """What the experts make of tokens, and how unbalanced their routing is.

    Args:
        spec: experts, top-k.
        weights: the weights of `expert_weights`.
        x: [samples, length, hidden], tokens in the order of the grid's ranks.
        capacity_factor: room of an expert over its balanced share, per sample; None makes room for every token.
        grid: the grid of the devices that share the work; tokens then go to the devices of their experts and back.
        how: the way they get there, as plans state it; where it places experts, weights are in the order of `slots`.
        gate: the gate: which experts take which tokens.
        keys: the keys of the samples' random numbers, for `gshard`.

    Returns:
        The values, and the mean over samples of experts x sum(share of tokens x mean router probability), 1 when
        balanced (Fedus et al. 2021, Switch Transformers, equation 4, per sample).
    """
    shares = _shares(weights, x)
    weight, index = _chosen(spec, shares)
    room = x.shape[1] if capacity_factor is None else capacity(x.shape[1], spec.experts, spec.top_k, capacity_factor)
    send, take = routes(gate, shares, (weight, index), min(x.shape[1], room), keys, grid)
    if grid is not None and how.placement:
        send, take = (values[:, :, slots(how.placement)] for values in (send, take))
    hot = jax.lax.top_k(send.sum((0, 1, 3)), how.shadowed)[1] if how.shadowed else None
    of_each = {name: weights[name] for name in weights if name in OF_EACH}
    kind = DISPATCHERS[how.dispatcher]
    if grid is not None and grid.expert and (kind.once or kind.gathers):
        visits, weights_of = send.sum(-1), take.sum(-1).astype(x.dtype)
        y = sent_once(grid, of_each, x, visits, weights_of, mlps, hot, everywhere=kind.gathers)
    elif grid is not None and grid.expert and how.drop_duplicates and hot is None and not kind.moves:
        y = without_duplicates(grid, of_each, x, send.sum(-1), take.sum(-1).astype(x.dtype), how)
    else:
        arrived = jnp.einsum("bsec,bsh->ebch", send.astype(x.dtype), x)
        made = through_experts(grid, of_each, arrived, how, hot)
        y = jnp.einsum("bsec,ebch->bsh", take.astype(x.dtype), made)
    if spec.shared_ffn_hidden:
        own = {name.removeprefix("shared_"): matrix for name, matrix in weights.items() if name.startswith("shared_")}
        y = _joined(spec, weights, x, y, mlp(own, x))
    chosen = jax.nn.one_hot(index, spec.experts, dtype=shares.dtype).sum(2)
    balance = spec.experts / spec.top_k * (chosen.mean(1) * shares.mean(1)).sum(-1).mean()
    return y, balance


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
