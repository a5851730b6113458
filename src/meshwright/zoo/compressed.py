"""Gradients made small before ranks sum them, as `strategies.COMPRESSIONS` prices them: what is sent, what is kept.

Each works on one matrix of one rank inside `shard_map` or `vmap` with a named axis, so that many devices and one run
the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.strategies.top_k import kept_elements

Exchanged = tuple[jax.Array, jax.Array]
"""The mean over ranks, the same on all, and the error that this rank has left out."""


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an array as one matrix: the split of its axes with the fewest of both; (1, n) for a vector.

    Args:
        shape: the shape of the array.
    """
    if len(shape) < 2:
        return 1, prod(shape)
    return min(((prod(shape[:at]), prod(shape[at:])) for at in range(1, len(shape))), key=sum)


def low_rank(matrix: jax.Array, axis: str, *, rank: int, key: jax.Array) -> Exchanged:
    """PowerSGD: one step of power iteration from random directions, the same on all ranks.

    Args:
        matrix: [rows, columns], gradient and error.
        axis: the axis of the ranks.
        rank: the rank of the sum.
        key: the key of the directions.
    """
    rows, columns = matrix.shape
    if min(rows, columns) == 1 or rank * (rows + columns) >= rows * columns:
        return jax.lax.pmean(matrix, axis), jnp.zeros_like(matrix)
    directions = jax.random.normal(key, (columns, rank), matrix.dtype)
    left, _ = jnp.linalg.qr(jax.lax.pmean(matrix @ directions, axis))
    own = matrix.T @ left
    return left @ jax.lax.pmean(own, axis).T, matrix - left @ own.T


def largest(matrix: jax.Array, axis: str, *, percent: int, key: jax.Array) -> Exchanged:
    """Top-k: the largest elements and their places.

    Args:
        matrix: [rows, columns], gradient and error.
        axis: the axis of the ranks.
        percent: the percent of the elements.
        key: not needed.
    """
    del key
    flat = matrix.ravel()
    _, places = jax.lax.top_k(jnp.abs(flat), int(kept_elements(flat.size, percent)))
    sent = flat[places]
    values, where = (jax.lax.all_gather(one, axis) for one in (sent, places))
    total = jnp.zeros_like(flat).at[where.ravel()].add(values.ravel())
    mean = total / jax.lax.axis_size(axis)
    return mean.reshape(matrix.shape), flat.at[places].set(0.0).reshape(matrix.shape)


def signs(matrix: jax.Array, error: jax.Array, axis: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """1-bit: each rank adds up signs of its part of the elements, and gives the signs of the sum to all.

    Args:
        matrix: [rows, columns], momentum and error.
        error: the error of the part that this rank has added up so far, [elements / ranks, rounded up to whole bytes].
        axis: the axis of the ranks.

    Returns:
        The mean over ranks, the error that this rank left out of what it sent, and that of what it added up.
    """
    ranks, flat = jax.lax.axis_size(axis), matrix.ravel()
    padded = jnp.pad(flat, (0, ranks * error.size - flat.size))
    scale = jnp.abs(flat).mean()
    decoded = jnp.where(padded >= 0, scale, -scale)
    bits = jax.lax.all_to_all(_packed(padded >= 0).reshape(ranks, -1), axis, 0, 0, tiled=True)
    scales = jax.lax.all_gather(scale, axis)
    parts = jnp.where(_unpacked(bits), scales[:, None], -scales[:, None])
    summed = parts.mean(0) + error
    # Elements that fill up the last part are nobody's.
    counted = jax.lax.axis_index(axis) * error.size + jnp.arange(error.size) < flat.size
    size = (jnp.abs(summed) * counted).sum() / jnp.maximum(counted.sum(), 1)
    left_out = (summed - jnp.where(summed >= 0, size, -size)) * counted
    every = _unpacked(jax.lax.all_gather(_packed(summed >= 0), axis))
    sizes = jax.lax.all_gather(size, axis)[:, None]
    mean = jnp.where(every, sizes, -sizes).ravel()[: flat.size]
    return mean.reshape(matrix.shape), (flat - decoded[: flat.size]).reshape(matrix.shape), left_out


def sign_bytes(elements: int, ranks: int) -> int:
    """Elements of the part that a rank adds up, in whole bytes of signs.

    Args:
        elements: the number of elements of a tensor.
        ranks: the number of ranks that share them.
    """
    return -(-elements // (8 * ranks)) * 8


def _packed(bits: jax.Array) -> jax.Array:
    """Bits of the last axis, eight to a byte."""
    return jnp.packbits(bits, axis=-1)


def _unpacked(packed: jax.Array) -> jax.Array:
    return jnp.unpackbits(packed, axis=-1).astype(bool)


ERROR_FEEDBACK: Mapping[str, Callable[..., Exchanged]] = {"powersgd": low_rank, "topk": largest}
"""Compressions of gradients by name; the number behind it is their second keyword."""
SETTINGS = {"powersgd": "rank", "topk": "percent"}


def mean_gradients(name: str, setting: int, gradients: Any, errors: Any, axis: str, key: jax.Array) -> tuple[Any, Any]:
    """Means over ranks of compressed gradients, and the errors left on this rank.

    Args:
        name: the name of the compression.
        setting: the number behind it.
        gradients: the gradients of this rank.
        errors: left so far.
        axis: the axis of the ranks.
        key: the key of the step's random directions, the same on all ranks.
    """
    leaves, tree = jax.tree.flatten(gradients)
    kept = []
    means = []
    for number, (leaf, error) in enumerate(zip(leaves, jax.tree.leaves(errors), strict=True)):
        matrix = (leaf + error).reshape(as_matrix(leaf.shape))
        given = {SETTINGS[name]: setting, "key": jax.random.fold_in(key, number)}
        mean, left = ERROR_FEEDBACK[name](matrix, axis, **given)
        means.append(mean.reshape(leaf.shape))
        kept.append(left.reshape(leaf.shape))
    return jax.tree.unflatten(tree, means), jax.tree.unflatten(tree, kept)
