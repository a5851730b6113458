"""Which tokens of a sample share the places of experts: all of them, or those that one rank holds.

Where ranks that split the tokens of a sample route their own, each gives places by itself, so that no rank asks another
what it sends: such tokens are a local group. One device forms the same groups. Source: Lepikhin et al. 2020 (GShard,
arXiv 2006.16668), section 3.2; so do NVIDIA/Megatron-LM's routers with sequence parallelism (token_dispatcher.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.zoo.token_order import in_rank_order, in_sample_order

TOKENS = 1
"""Axis of [samples, length, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSamples:
    """All tokens of a sample share them."""

    grid: DeviceGrid | None = None
    """Grid in the order of whose ranks tokens stand; None for that of the sample."""

    def own(self, x: jax.Array) -> jax.Array:
        """Groups of tokens of samples: [groups, length, ...] of [samples, length, ...]."""
        return x

    def back(self, y: jax.Array) -> jax.Array:
        """What was made of groups, as samples."""
        return y

    def before(self, sent: jax.Array) -> jax.Array:
        """Sums over the tokens of a group that stand before each [groups, length, ...]."""
        order = in_sample_order(self.grid, sent)
        return in_rank_order(self.grid, jnp.cumsum(order, axis=TOKENS) - order)

    def mean(self, values: jax.Array) -> jax.Array:
        """Means over all tokens of a sample: [samples, ...] of [groups, length, ...]."""
        return values.mean(TOKENS)

    def total(self, values: jax.Array) -> jax.Array:
        """Sums over all devices."""
        return values

    def drawn(self, keys: jax.Array, length: int, dtype: jnp.dtype) -> jax.Array:
        """A random number in [0, 1) for each token of each group [groups, length].

        Args:
            keys: one per sample.
            length: the number of tokens of a group.
            dtype: the format of the numbers.
        """
        return in_rank_order(self.grid, _uniform(keys, length, dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOfRanks(WholeSamples):
    """One device has the groups of all ranks of a grid, side by side."""

    ranks: DeviceGrid

    @property
    def count(self) -> int:
        """Groups of a sample."""
        return self.ranks.size((*self.ranks.tokens, *self.ranks.tensor))

    def own(self, x: jax.Array) -> jax.Array:
        return in_rank_order(self.ranks, x).reshape(x.shape[0] * self.count, -1, *x.shape[2:])

    def back(self, y: jax.Array) -> jax.Array:
        return in_sample_order(self.ranks, y.reshape(y.shape[0] // self.count, -1, *y.shape[2:]))

    def mean(self, values: jax.Array) -> jax.Array:
        means = values.mean(TOKENS)
        return means.reshape(-1, self.count, *means.shape[1:]).mean(1)

    def drawn(self, keys: jax.Array, length: int, dtype: jnp.dtype) -> jax.Array:
        return self.own(_uniform(keys, self.count * length, dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOfRank(WholeSamples):
    """A rank has its own group, inside of a `shard_map` over the grid."""

    ranks: DeviceGrid
    alike: bool
    """Whether tensor ranks hold the same tokens, of which each takes its part to experts."""

    @classmethod
    def of(cls, grid: DeviceGrid | None) -> GroupOfRank | None:
        """The group of a rank where ranks work on whole rows of the stream; None elsewhere.

        Args:
            grid: the grid of the devices.
        """
        if grid is None or grid.blocks is None or grid.blocks.stream.width or grid.blocks.stream.samples:
            return None
        return cls(ranks=grid, alike=bool(grid.tensor) and not grid.blocks.stream.length)

    @property
    def axes(self) -> Axes:
        """Axes along which ranks have other tokens of the same samples."""
        return (*self.ranks.tokens, *self.ranks.tensor)

    def own(self, x: jax.Array) -> jax.Array:
        return _part(x, self.ranks.tensor, self.ranks.size(self.ranks.tensor)) if self.alike else x

    def back(self, y: jax.Array) -> jax.Array:
        return jax.lax.all_gather(y, self.ranks.tensor, axis=TOKENS, tiled=True, to="invarying") if self.alike else y

    def before(self, sent: jax.Array) -> jax.Array:
        return jnp.cumsum(sent, axis=TOKENS) - sent

    def mean(self, values: jax.Array) -> jax.Array:
        means = values.mean(TOKENS)
        return jax.lax.pmean(means, self.axes) if self.axes else means

    def total(self, values: jax.Array) -> jax.Array:
        return jax.lax.psum(values, tuple(name for name, size in self.ranks.sizes if size > 1))

    def drawn(self, keys: jax.Array, length: int, dtype: jnp.dtype) -> jax.Array:
        whole = in_rank_order(self.ranks, _uniform(keys, length * self.ranks.size(self.axes), dtype))
        return _slice(whole, self.axes, length) if self.axes else whole


def _uniform(keys: jax.Array, length: int, dtype: jnp.dtype) -> jax.Array:
    return jax.vmap(lambda key: jax.random.uniform(key, (length,), dtype=dtype))(keys)


def _slice(whole: jax.Array, axes: Axes, length: int) -> jax.Array:
    """The rank's tokens of those of all ranks along some axes."""
    return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(axes) * length, length, axis=TOKENS)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _part(x: jax.Array, axes: Axes, ranks: int) -> jax.Array:
    """A rank's part of tokens that all ranks along some axes hold; gradients of all parts are gathered."""
    return _slice(x, axes, x.shape[TOKENS] // ranks)


def _part_forward(x: jax.Array, axes: Axes, ranks: int) -> tuple[jax.Array, None]:
    return _part(x, axes, ranks), None


def _part_backward(axes: Axes, ranks: int, _: None, slope: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.all_gather(slope, axes, axis=TOKENS, tiled=True, to="invarying"),)


_part.defvjp(_part_forward, _part_backward)
