"""How tokens and experts meet on the devices of a grid: tokens go to the experts, in one exchange or level by level,
experts come to the tokens, or the hottest experts are copied and the rest is exchanged (`sent_once`: once each).

Every way gives the same values. Weights that come to the tokens are gathered again for backward, not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.compiler.pointwise import POINTWISE
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.strategy import ExpertParallel
from meshwright.zoo.splits import expert_axes

Weights = dict[str, jax.Array]
SAMPLES, SEATS = 1, 2
"""Axes of [experts, samples, seats, hidden]."""
PLAIN = ExpertParallel()
EXCHANGED = "exchanged"
"""Name of what comes out of an exchange: a layer that is computed again may keep it."""


class TokenExchange:
    """The way of tokens to experts that are spread over ranks, and back, as one rank goes it."""

    def __init__(self, grid: DeviceGrid, how: ExpertParallel) -> None:
        """Set up the exchange for the axes of a grid.

        Args:
            grid: the grid of the devices.
            how: tokens and experts meet.
        """
        # Ranks that do not split samples split the seats of a sample.
        self.rows: dict[int, Axes] = {SAMPLES: grid.data, SEATS: (*grid.tokens, *grid.tensor)}
        parts = {at: tuple(axis for axis in axes if axis in grid.expert_tensor) for at, axes in self.rows.items()}
        self.shared = [(at, axes) for at, axes in parts.items() if axes]
        # What comes from other ranks lies behind a rank's own samples: experts do not ask whose tokens they see. One
        # exchange, or one after the other, each along one axis: between domains, then inside them.
        by_level = DISPATCHERS[how.dispatcher].by_level
        self.sent: list[Axes] = [(axis,) for axis in grid.expert] if by_level else [grid.expert] * bool(grid.expert)
        # Pieces of a rank's seats follow each other, so that experts work on one while the next is exchanged.
        self.moves = DISPATCHERS[how.dispatcher].moves
        self.pieces = 1 if self.moves else how.overlap_degree
        self.grid = grid

    def computed(self, own: Weights, values: jax.Array) -> jax.Array:
        """What a rank's experts make of the tokens that are there, of which their tensor ranks have parts."""
        for at, axes in self.shared:
            values = checkpoint_name(jax.lax.all_gather(values, axes, axis=at, tiled=True), EXCHANGED)
        return mlps(own, values, self._gathered_sum)

    def brought(self, own: Weights, values: jax.Array, hot: jax.Array | None = None) -> jax.Array:
        """What experts make of a rank's tokens, with tokens or weights on the way as a plan says.

        Args:
            own: weights of the rank's experts.
            values: [experts, samples, seats, hidden] of the rank.
            hot: experts whose weights are copied to every rank; None for none.
        """
        if hot is not None and self.grid.expert:
            return self._shadowed(own, values, hot)
        if self.moves:
            return jax.checkpoint(self._fetched, policy=self._kept)(own, values)
        return self._exchanged(own, values)

    def _fetched(self, own: Weights, values: jax.Array) -> jax.Array:
        """Weights of all experts come to the tokens."""
        whole = own
        for axes in reversed(self.sent):
            whole = {name: jax.lax.all_gather(matrix, axes, axis=0, tiled=True) for name, matrix in whole.items()}
        return self.computed(whole, values)

    def _kept(self, primitive: Any, *_: Any, **params: Any) -> bool:
        """Whether backward keeps a value that it needs: all but weights of other ranks."""
        return not (primitive.name.startswith("all_gather") and set(params["axis_name"]) <= set(self.grid.expert))

    def _shadowed(self, own: Weights, values: jax.Array, hottest: jax.Array) -> jax.Array:
        """Weights of the hottest experts come to the tokens, other tokens go to their experts."""
        held = own["up"].shape[0]
        mine = jax.nn.one_hot(hottest - held * jax.lax.axis_index(self.grid.expert), held, dtype=values.dtype)
        copies = {name: jax.lax.psum(jnp.tensordot(mine, matrix, 1), self.grid.expert) for name, matrix in own.items()}
        here = self.computed(copies, values[hottest])
        away = self._exchanged(own, values.at[hottest].set(0.0))
        return away.at[hottest].set(here)

    def _exchanged(self, own: Weights, values: jax.Array) -> jax.Array:
        """Tokens go to their experts and come back, piece by piece."""
        if self.pieces == 1:
            return self._through(own, values)
        # Rows that fill up the last piece are cut off again.
        seats = values.shape[SEATS]
        whole = jnp.pad(values, ((0, 0), (0, 0), (0, -seats % self.pieces), (0, 0)))
        parts = [self._through(own, part) for part in jnp.split(whole, self.pieces, axis=SEATS)]
        return jnp.concatenate(parts, axis=SEATS)[:, :, :seats]

    def _through(self, own: Weights, values: jax.Array) -> jax.Array:
        for axes in self.sent:
            values = checkpoint_name(jax.lax.all_to_all(values, axes, 0, SAMPLES, tiled=True), EXCHANGED)
        values = self.computed(own, values)
        for axes in reversed(self.sent):
            values = checkpoint_name(jax.lax.all_to_all(values, axes, SAMPLES, 0, tiled=True), EXCHANGED)
        return values

    def _gathered_sum(self, values: jax.Array) -> jax.Array:
        for at, axes in reversed(self.shared):
            values = jax.lax.psum_scatter(values, axes, scatter_dimension=at, tiled=True)
            values = checkpoint_name(values, EXCHANGED)
        return values


def kept_exchanges(how: ExpertParallel) -> Callable[..., bool] | None:
    """What a layer that is computed again keeps besides its input: results of exchanges, where a plan says so.

    Args:
        how: tokens and experts meet.

    Source: Singh et al. 2023 (DeepSpeed-TED, arXiv 2303.06318), section 5.2.
    """
    return jax.checkpoint_policies.save_only_these_names(EXCHANGED) if how.stash_collectives else None


def all_but_activations(primitive: Any, *_: Any, **__: Any) -> bool:
    """Whether backward keeps what a primitive makes where activations of experts are computed again from products.

    Args:
        primitive: the primitive of JAX.
    """
    return primitive.name not in POINTWISE


def through_experts(
    grid: DeviceGrid | None, weights: Weights, x: jax.Array, how: ExpertParallel = PLAIN, hot: jax.Array | None = None
) -> jax.Array:
    """Every expert's MLP on its own tokens.

    Args:
        grid: the grid of the devices; None for one device.
        weights: up, down and gate of all experts [experts, ...], and their biases.
        x: [experts, samples, seats, hidden].
        how: tokens and experts meet, as plans state it.
        hot: experts whose weights are copied to every rank, so many as `how` says; None for none.
    """
    if grid is None:
        return mlps(weights, x, lambda values: values)
    way = TokenExchange(grid, how)
    # Rows that fill up the last share are cut off again.
    seats = x.shape[SEATS]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -seats % (grid.size(way.rows[SEATS]) * way.pieces)), (0, 0)))
    split = PartitionSpec(None, *(axes or None for axes in way.rows.values()))

    placed = {name: grid.spec(expert_axes(name), matrix.shape) for name, matrix in weights.items()}
    copied = () if hot is None else (hot,)
    given = (placed, split, *[PartitionSpec() for _ in copied])
    made = jax.shard_map(way.brought, mesh=grid.mesh, in_specs=given, out_specs=split)(weights, x, *copied)
    return made[:, :, :seats]


def without_duplicates(
    grid: DeviceGrid, weights: Weights, x: jax.Array, visits: jax.Array, shares: jax.Array, how: ExpertParallel
) -> jax.Array:
    """What experts make of tokens that every tensor rank holds: each rank sends its part of them, results are gathered.

    A rank has room at every expert for all of its part.

    Args:
        grid: the grid of the devices.
        weights: up, down and gate of all experts [experts, ...], and their biases.
        x: [samples, length, hidden].
        visits: 1 where a token visits an expert, 0 elsewhere [samples, length, experts].
        shares: weights of their results [samples, length, experts].
        how: tokens and experts meet.

    Source: Singh et al. 2023 (DeepSpeed-TED, arXiv 2303.06318), section 5.1.
    """
    way = TokenExchange(grid, how)
    samples, seats = way.rows.values()
    length = x.shape[1]
    more = ((0, 0), (0, -length % (grid.size(seats) * way.pieces)), (0, 0))
    padded = [jnp.pad(values, more) for values in (x, visits, shares)]

    def part(own: Weights, x: jax.Array, visits: jax.Array, shares: jax.Array) -> jax.Array:
        seat = jnp.cumsum(visits, axis=1) - visits
        seated = visits[..., None] * jax.nn.one_hot(seat, x.shape[1], dtype=visits.dtype)
        arrived = jnp.einsum("bsec,bsh->ebch", seated.astype(x.dtype), x)
        return jnp.einsum("bsec,ebch->bsh", seated * shares[..., None], way.brought(own, arrived))

    split = PartitionSpec(samples or None, seats or None, None)
    placed = {name: grid.spec(expert_axes(name), matrix.shape) for name, matrix in weights.items()}
    ranks = jax.shard_map(part, mesh=grid.mesh, in_specs=(placed, split, split, split), out_specs=split)
    return grid.held(ranks(weights, *padded), samples, grid.tokens)[:, :length]


def mlps(weights: Weights, x: jax.Array, summed: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """down(gelu(up x)), or down(silu(gate x) * up x), of each expert; what ranks hold parts of is summed over them."""

    def through(name: str, values: jax.Array) -> jax.Array:
        product = jnp.einsum("ebch,ehf->ebcf", values, weights[name])
        product = summed(product) if name == "down" else product
        bias = weights.get(f"{name}_bias")
        return product if bias is None else product + bias[:, None, None, :]

    wide = jax.nn.silu(through("gate", x)) * through("up", x) if "gate" in weights else jax.nn.gelu(through("up", x))
    return through("down", wide)
