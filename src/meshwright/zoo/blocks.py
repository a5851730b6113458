"""Matrix products on blocks of a tensor grid, inside of a `shard_map`: what `strategies.blocks` says, in JAX.

Gathers before a product and the reduce-scatter behind it are written here, so that the compiled program has these
collectives and no others; their transposes make the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, cast

import jax
import jax.numpy as jnp

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.strategies.blocks import SIDES, BlockProduct, Names, Side, TensorBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTensors:
    """Products and means where a device has whole tensors."""

    def into(self, x: jax.Array, *matrices: jax.Array, ranks: int = 1) -> list[jax.Array]:
        """Products of the stream with matrices that lead to the inner tensor.

        Args:
            x: the stream.
            matrices: [width, ...].
            ranks: the number of ranks that split the first axis behind the width, each into whole parts or all alike.
        """
        if len(matrices) > 1 and _units(matrices) % ranks == 0:
            return list(_joint_products(x, matrices))
        return [jnp.tensordot(x, w, 1) for w in matrices]

    def out(self, x: jax.Array, w: jax.Array) -> jax.Array:
        """The product that leads from the inner tensor back to the stream."""
        return jnp.tensordot(x, w, w.ndim - 1)

    def mean(self, values: jax.Array) -> jax.Array:
        """Mean over the width of the stream, which is kept as an axis of one."""
        return values.mean(-1, keepdims=True)

    def part(self, whole: jax.Array, *, width: bool = True) -> jax.Array:
        """Block of a tensor [samples, length, hidden] that every rank has whole; or only of its length."""
        return whole

    def looked_up(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        """Rows of a table: the stream [samples, length, hidden] of tokens [samples, length]."""
        return table[tokens]

    def tied(self, table: jax.Array) -> jax.Array:
        """The embedding table [tokens, hidden] as the matrix of the head."""
        return table.T

    def full(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a sample of the stream over all ranks, of the block that this device holds."""
        return shape

    def tokens(self, count: int) -> int:
        """Tokens of a sample, of those that this device has between gather and sum."""
        return count

    def own_tokens(self, whole: jax.Array) -> jax.Array:
        """What this device has of an array [tokens of a sample, ...] between gather and sum."""
        return whole

    def by_samples(self, grid: DeviceGrid, values: jax.Array) -> jax.Array:
        """Values of whole samples, on the ranks of the samples."""
        return grid.held(values, grid.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked(WholeTensors):
    """The same on blocks; used inside of a `shard_map` over the grid."""

    grid: DeviceGrid
    blocks: TensorBlocks

    def into(self, x: jax.Array, *matrices: jax.Array, ranks: int = 1) -> list[jax.Array]:
        """Products from the stream to the inner tensor; the input is gathered once for all of them."""
        return self._products(self.blocks.into, x, *matrices)

    def out(self, x: jax.Array, w: jax.Array) -> jax.Array:
        """Product from the inner tensor back to the stream."""
        return self._products(self.blocks.out, x, w)[0]

    def mean(self, values: jax.Array) -> jax.Array:
        """Mean of all columns of the grid."""
        mean, names = values.mean(-1, keepdims=True), self.blocks.stream.width
        return jax.lax.pmean(mean, self.axes(names)) if names else mean

    def part(self, whole: jax.Array, *, width: bool = True) -> jax.Array:
        """The block of this rank along length, and width."""
        for side in ("length", "width") if width else ("length",):
            whole = self._block(whole, SIDES.index(side), self._along(side))
        return whole

    def full(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Blocks times ranks."""
        return tuple(size * self.grid.size(self._along(side)) for size, side in zip(shape, SIDES[1:], strict=True))

    def tokens(self, count: int) -> int:
        """Tokens of all context ranks."""
        return count * self.grid.size(self.grid.tokens)

    def own_tokens(self, whole: jax.Array) -> jax.Array:
        """Rows of the tokens of a context rank."""
        return self._block(whole, 0, self.grid.tokens)

    def by_samples(self, grid: DeviceGrid, values: jax.Array) -> jax.Array:
        """Values of the samples of a rank, as they are."""
        return values

    def _along(self, side: Side) -> Axes:
        """Axes of the mesh over which the stream is split along one of its axes; samples apart."""
        return (*(self.grid.tokens if side == "length" else ()), *self.axes(self.blocks.stream.over(side)))

    def _block(self, whole: jax.Array, at: int, axes: Axes) -> jax.Array:
        if not axes:
            return whole
        size = whole.shape[at] // self.grid.size(axes)
        return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(axes) * size, size, axis=at)

    def axes(self, names: Names) -> Axes:
        """Axes of the mesh of axes of the group."""
        return self.grid.block_axes(names)

    def looked_up(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        """Rows of a table, of which each rank has some: [samples, length, hidden] blocks of the stream.

        Args:
            table: the rank's rows and columns.
            tokens: the tokens of all ranks that share the rows.
        """
        names = self.blocks.table
        axes, count = self.axes(names), table.shape[0]
        own = tokens - jax.lax.axis_index(axes) * count
        held = (own >= 0) & (own < count)
        found = jnp.where(held[..., None], self.of_this_rank(table)[own % count], 0)
        side: Side = "samples" if set(names) <= set(self.blocks.stream.samples) else "length"
        onto = self.axes(tuple(name for name in self.blocks.stream.over(side) if name in names))
        if not onto:
            return jax.lax.psum(found, axes) if axes else found
        return jax.lax.psum_scatter(found, onto, scatter_dimension=SIDES.index(side), tiled=True)

    def loss(self, logits: jax.Array, wanted: jax.Array) -> jax.Array:
        """-log softmax of the wanted tokens [samples, length], of logits whose columns ranks share.

        Args:
            logits: [samples, length, the rank's tokens].
            wanted: [samples, length].
        """
        axes = self.axes(self.blocks.inner.width)
        if not axes:
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1)[..., 0]
        count = logits.shape[-1]
        largest = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), axes)
        own = wanted - jax.lax.axis_index(axes) * count
        held = (own >= 0) & (own < count)
        found = jnp.take_along_axis(logits, (own % count)[..., None], axis=-1)[..., 0]
        total, found = jax.lax.psum(
            (jnp.exp(logits - largest[..., None]).sum(-1), jnp.where(held, found - largest, 0.0)), axes
        )
        return jnp.log(total) - found

    def tied(self, table: jax.Array) -> jax.Array:
        """The embedding table as the matrix of the head: its block goes to the rank across the diagonal where rows and
        columns of the grid change places."""
        into, width = self.blocks.into, self.blocks.stream.width
        if (*into.rows, *into.row_shards) == width:
            return table.T
        sizes = [self.blocks.size(names) for names in (self.blocks.table, width)]
        across = [(i * sizes[1] + j, j * sizes[1] + i) for i in range(sizes[0]) for j in range(sizes[1])]
        return jax.lax.ppermute(table.T, self.axes((*self.blocks.table, *width)), across)

    def _products(self, how: BlockProduct, x: jax.Array, *matrices: jax.Array) -> list[jax.Array]:
        # Sums of the gradient over ranks that hold the same block come before those that scatter it, on less.
        local = partial(self._gathered, how)
        made = (jax.checkpoint(local) if how.again else local)(x, *map(self.of_this_rank, matrices))
        side, names = how.scatter
        if how.total:
            return [jax.lax.psum(y, self.axes(how.total)) for y in made]
        if not names:
            return made
        return [
            jax.lax.psum_scatter(y, self.axes(names), scatter_dimension=SIDES.index(side), tiled=True) for y in made
        ]

    def _gathered(self, how: BlockProduct, x: jax.Array, *matrices: jax.Array) -> list[jax.Array]:
        side, names = how.gather
        x = (
            jax.lax.all_gather(x, self.axes(names), axis=SIDES.index(side), tiled=True)
            if names
            else self.of_this_rank(x)
        )
        axes = x.ndim - 2  # those of x [samples, length, ...] that are the first of the matrices
        return [jnp.tensordot(x, self._whole(how, w), axes) for w in matrices]

    def _whole(self, how: BlockProduct, w: jax.Array) -> jax.Array:
        """The part of a matrix that the rank multiplies, from the shards of it."""
        if how.row_shards:
            w = jax.lax.all_gather(w, self.axes(how.row_shards), axis=0, tiled=True)
        if how.column_shards:
            w = jax.lax.all_gather(w, self.axes(how.column_shards), axis=w.ndim - 1, tiled=True)
        return w

    def of_this_rank(self, value: jax.Array) -> jax.Array:
        """A value that ranks along some axes hold alike, as one of each: its gradient is summed here, once."""
        varying = jax.typeof(value).manual_axis_type.varying
        alike = tuple(axis for axis in (*self.grid.tokens, *self.grid.tensor) if axis not in varying)
        return jax.lax.pcast(value, alike, to="varying") if alike else value


def _products(x: jax.Array, matrices: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Products of one stream, whose gradient is one product: ranks that split the matrices sum it once, not each."""
    return tuple(jnp.tensordot(x, w, 1) for w in matrices)


def _products_kept(x: jax.Array, matrices: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], Any]:
    return _products(x, matrices), (x, matrices)


def _joint_gradients(kept: Any, slopes: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    x, matrices = kept
    outer, units = x.ndim - 1, _units(matrices)
    # Behind what ranks split stands what each unit has of every matrix.
    joined = jnp.concatenate([w.reshape(w.shape[0], units, -1) for w in matrices], axis=-1)
    slope = jnp.concatenate([one.reshape(*one.shape[:outer], units, -1) for one in slopes], axis=-1)
    stream = jnp.tensordot(slope, joined, ((outer, outer + 1), (1, 2)))
    over = tuple(range(outer))
    return stream, tuple(jnp.tensordot(x, one, (over, over)) for one in slopes)


_with_gradients = jax.custom_vjp(_products)
_with_gradients.defvjp(_products_kept, _joint_gradients)
_joint_products = cast(Callable[[jax.Array, tuple[jax.Array, ...]], tuple[jax.Array, ...]], _with_gradients)


def _units(matrices: Sequence[jax.Array]) -> int:
    """Parts that the first axis behind the width of every matrix has."""
    return gcd(*(w.shape[1] for w in matrices))


WHOLE = WholeTensors()
