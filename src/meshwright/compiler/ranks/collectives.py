"""Many arrays of a data rank moved by few collectives: each kind and format in buckets of one flat array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.narrow_sums import over_ranks

BUCKET_BYTES = 1 << 28
"""Most bytes of whole arrays that one collective moves, unless a single one is larger; they are copied for it."""

Axes = tuple[str, ...]


def summed(values: Sequence[Any], axes: Axes) -> list[Any]:
    """Sums over the ranks, on every rank. XLA joins them into one all-reduce.

    Args:
        values: the values of this rank.
        axes: the axes of the mesh of the ranks.
    """
    return list(over_ranks(lambda held: jax.lax.psum(held, axes), list(values))) if values else []


def scattered(values: Sequence[Any], dimensions: Sequence[int], axes: Axes, ranks: int, *, flat: bool) -> list[Any]:
    """Sums over the ranks, of which each rank gets its part along one dimension.

    Args:
        values: whole ones of this rank.
        dimensions: the dimensions that are split, one per value.
        axes: the axes of the mesh of the ranks.
        ranks: how many.
        flat: whether buckets are made; without it, one collective per value.
    """
    if not flat:
        return [
            over_ranks(partial(jax.lax.psum_scatter, axis_name=axes, scatter_dimension=dimension, tiled=True), value)
            for value, dimension in zip(values, dimensions, strict=True)
        ]

    def move(bucket: list[int]) -> list[Any]:
        rows = [_rows(values[at], dimensions[at], ranks) for at in bucket]
        joined = jnp.concatenate([row.reshape(ranks, -1) for row in rows], axis=1)
        own = over_ranks(partial(jax.lax.psum_scatter, axis_name=axes, scatter_dimension=0, tiled=False), joined)
        parts = jnp.split(own, np.cumsum([row[0].size for row in rows])[:-1])
        return [part.reshape(row.shape[1:]) for part, row in zip(parts, rows, strict=True)]

    return _by_bucket(values, [value.nbytes for value in values], move)


def gathered(values: Sequence[Any], dimensions: Sequence[int], axes: Axes, ranks: int, *, flat: bool) -> list[Any]:
    """Whole values from the parts of all ranks.

    Args:
        values: parts of this rank.
        dimensions: the dimensions that are split, one per value.
        axes: the axes of the mesh of the ranks.
        ranks: how many.
        flat: whether buckets are made; without it, one collective per value.
    """
    if not flat:
        return [
            jax.lax.all_gather(value, axes, axis=dimension, tiled=True)
            for value, dimension in zip(values, dimensions, strict=True)
        ]

    def move(bucket: list[int]) -> list[Any]:
        joined = jnp.concatenate([values[at].reshape(-1) for at in bucket])
        rows = jax.lax.all_gather(joined, axes, axis=0, tiled=False).reshape(ranks, -1)
        parts = jnp.split(rows, np.cumsum([values[at].size for at in bucket])[:-1], axis=1)
        return [
            _joined(part.reshape(ranks, *values[at].shape), dimensions[at])
            for part, at in zip(parts, bucket, strict=True)
        ]

    return _by_bucket(values, [ranks * value.nbytes for value in values], move)


def bucket_row(value: Any, ranks: int) -> Any:
    """The numbers of a value in a row that the ranks divide, with zeros behind them.

    Args:
        value: any.
        ranks: how many.
    """
    return jnp.pad(value.reshape(-1), (0, -value.size % ranks))


def _rows(value: Any, dimension: int, ranks: int) -> Any:
    """A value with the parts of all ranks along its first axis."""
    shape = value.shape
    split = (*shape[:dimension], ranks, shape[dimension] // ranks, *shape[dimension + 1 :])
    return jnp.moveaxis(value.reshape(split), dimension, 0)


def _joined(rows: Any, dimension: int) -> Any:
    """The inverse."""
    parts = jnp.moveaxis(rows, 0, dimension)
    shape = parts.shape
    return parts.reshape(*shape[:dimension], shape[dimension] * shape[dimension + 1], *shape[dimension + 2 :])


def _by_bucket(values: Sequence[Any], sizes: Sequence[int], move: Callable[[list[int]], list[Any]]) -> list[Any]:
    found: dict[int, Any] = {}
    for bucket in _buckets(values, sizes):
        found.update(zip(bucket, move(bucket), strict=True))
    return [found[at] for at in range(len(values))]


def _buckets(values: Sequence[Any], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Places of values of one format, in order, up to the size of a bucket."""
    for dtype in dict.fromkeys(value.dtype for value in values):
        bucket: list[int] = []
        held = 0
        for at in (at for at, value in enumerate(values) if value.dtype == dtype):
            if bucket and held + sizes[at] > BUCKET_BYTES:
                yield bucket
                bucket, held = [], 0
            bucket.append(at)
            held += sizes[at]
        if bucket:
            yield bucket
