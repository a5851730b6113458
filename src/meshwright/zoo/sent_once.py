"""Tokens that are sent once: to a domain of ranks with experts of theirs, and inside it once to each such rank; or
gathered by every rank, whatever experts they visit.

What the experts of a rank give a token is summed there, and the sums of ranks and domains on the same way home. Ranks
have room for every token that may come, so that a run sends as many bytes as where each token has an expert everywhere.
Source: DeepSeek-AI, DeepSeek-V3 technical report (arXiv 2412.19437), 2024-12, section 3.2.2; deepseek-ai/DeepEP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import DeviceGrid
from meshwright.zoo.expert_exchange import EXCHANGED
from meshwright.zoo.splits import expert_axes

Weights = dict[str, jax.Array]
Mlps = Callable[[Weights, jax.Array, Callable[[jax.Array], jax.Array]], jax.Array]
"""Every expert's MLP on [experts, samples, length, hidden], with what sums parts over ranks."""
SAMPLES, LENGTH = 0, 1
"""Axes of [samples, length, hidden]."""


def sent_once(
    grid: DeviceGrid,
    weights: Weights,
    x: jax.Array,
    visits: jax.Array,
    shares: jax.Array,
    mlps: Mlps,
    hot: jax.Array | None = None,
    *,
    everywhere: bool = False,
) -> jax.Array:
    """What the experts make of tokens.

    Args:
        grid: the grid of the devices.
        weights: up, down and gate of all experts [experts, ...], and their biases.
        x: [samples, length, hidden].
        visits: 1 where a token visits an expert, 0 elsewhere [samples, length, experts].
        shares: weights of their results [samples, length, experts].
        mlps: the MLPs of every expert.
        hot: experts whose weights are copied to every rank; None for none.
        everywhere: every rank gathers all tokens, and sums of what it makes of them are scattered.
    """
    rows = {SAMPLES: grid.data, LENGTH: (*grid.tokens, *grid.tensor)}
    length = x.shape[LENGTH]
    more = ((0, 0), (0, -length % grid.size(rows[LENGTH])), (0, 0))
    x, visits, shares = (jnp.pad(values, more) for values in (x, visits.astype(jnp.int8), shares))
    split = PartitionSpec(*(axes or None for axes in rows.values()), None)
    placed = {name: grid.spec(expert_axes(name), matrix.shape) for name, matrix in weights.items()}
    copied = () if hot is None else (hot,)
    given = (placed, split, split, split, *[PartitionSpec() for _ in copied])
    way = partial(once_on_rank, grid, mlps, everywhere=everywhere)
    made = jax.shard_map(way, mesh=grid.mesh, in_specs=given, out_specs=split)(weights, x, visits, shares, *copied)
    return made[:, :length]


def once_on_rank(
    grid: DeviceGrid,
    mlps: Mlps,
    weights: Weights,
    x: jax.Array,
    visits: jax.Array,
    shares: jax.Array,
    hot: jax.Array | None = None,
    *,
    everywhere: bool = False,
) -> jax.Array:
    """The same on one rank of the grid, of its own tokens and experts.

    Args:
        grid: the grid of the devices.
        mlps: the MLPs of every expert.
        weights: up, down and gate of the rank's experts.
        x: [samples, length, hidden] of the rank.
        visits: 1 where a token visits an expert, 0 elsewhere [samples, length, experts].
        shares: weights of their results [samples, length, experts].
        hot: experts whose weights are copied to every rank; None for none.
        everywhere: every rank gathers all tokens, and sums of what it makes of them are scattered.
    """
    visits = visits.astype(jnp.int8)
    rows = {SAMPLES: grid.data, LENGTH: (*grid.tokens, *grid.tensor)}
    levels = [(at, axis) for at, axes in rows.items() for axis in axes if axis in grid.expert]
    parts = [
        (at, own) for at, axes in rows.items() if (own := tuple(axis for axis in axes if axis in grid.expert_tensor))
    ]

    def computed(own: Weights, x: jax.Array, visits: jax.Array, shares: jax.Array) -> jax.Array:
        """Sums over the experts of a rank, and of its tensor ranks' parts of them."""
        if parts and "down_bias" in own:
            first = jax.lax.axis_index(grid.expert_tensor) == 0
            own = own | {"down_bias": own["down_bias"] * first}
        for at, axes in parts:
            x, visits, shares = (
                _named(jax.lax.all_gather(values, axes, axis=at, tiled=True)) for values in (x, visits, shares)
            )
        made = mlps(own, jnp.broadcast_to(x, (own["up"].shape[0], *x.shape)), lambda values: values)
        y = jnp.einsum("ebsh,bse->bsh", made, shares * visits.astype(shares.dtype))
        for at, axes in reversed(parts):
            y = _named(jax.lax.psum_scatter(y, axes, scatter_dimension=at, tiled=True))
        return y

    def through(own: Weights, x: jax.Array, visits: jax.Array, shares: jax.Array) -> jax.Array:
        for at, axis in levels:
            x, visits, shares = map(_named, _handed_on(x, visits, shares, at, axis, grid.size((axis,))))
        y = computed(own, x, visits, shares)
        for at, axis in reversed(levels):
            y = _named(jax.lax.all_to_all(y[None], axis, at + 1, 0, tiled=True)).sum(0)
        return y

    def everyone(own: Weights, x: jax.Array, visits: jax.Array, shares: jax.Array) -> jax.Array:
        held, shape = own["up"].shape[0], x.shape
        x, visits, shares = (
            _named(jax.lax.all_gather(values.reshape(1, -1, values.shape[-1]), grid.expert, axis=LENGTH, tiled=True))
            for values in (x, visits, shares)
        )
        visits, shares = (
            jax.lax.dynamic_slice_in_dim(values, held * jax.lax.axis_index(grid.expert), held, axis=-1)
            for values in (visits, shares)
        )
        y = computed(own, x, visits, shares)
        return _named(jax.lax.psum_scatter(y, grid.expert, scatter_dimension=LENGTH, tiled=True)).reshape(shape)

    def shadowed(own: Weights, x: jax.Array, visits: jax.Array, shares: jax.Array, hottest: jax.Array) -> jax.Array:
        held = own["up"].shape[0]
        mine = jax.nn.one_hot(hottest - held * jax.lax.axis_index(grid.expert), held, dtype=x.dtype)
        copies = {name: jax.lax.psum(jnp.tensordot(mine, matrix, 1), grid.expert) for name, matrix in own.items()}
        here = computed(copies, x, visits[..., hottest], shares[..., hottest])
        return here + through(own, x, visits.at[..., hottest].set(0), shares)

    if hot is not None:
        return shadowed(weights, x, visits, shares, hot)
    return (everyone if everywhere else through)(weights, x, visits, shares)


def _named(values: jax.Array) -> jax.Array:
    """Values that come out of an exchange, by the name under which a layer that is computed again may keep them."""
    found: jax.Array = checkpoint_name(values, EXCHANGED)
    return found


def _handed_on(
    x: jax.Array, visits: jax.Array, shares: jax.Array, at: int, axis: str, ranks: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, once each, on the ranks along an axis behind which experts of theirs are; their rows follow each other.

    Args:
        x: [samples, length, hidden].
        visits: [samples, length, experts] of these ranks.
        shares: [samples, length, experts], the shares of these ranks.
        at: axis of the rows along which those of other ranks come.
        axis: the axis of the mesh.
        ranks: along it.
    """
    blocks = [jnp.stack(jnp.split(values, ranks, axis=-1)) for values in (visits, shares)]
    wanted = (blocks[0] > 0).any(-1, keepdims=True).astype(x.dtype)
    found = [jax.lax.all_to_all(values, axis, 0, at + 1, tiled=True)[0] for values in (wanted * x[None], *blocks)]
    return found[0], found[1], found[2]
