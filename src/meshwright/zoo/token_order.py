"""Tokens of a sample in the order in which the ranks of a grid hold them, and back.

Ranks that pass keys and values round hold pieces from both ends of a sample, or every so many-th token, so that a
causal mask gives each as much to do (`strategies.layouts`). What asks for places in the sample goes through here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.grid import DeviceGrid
from meshwright.shapes import Int


def order_on(grid: DeviceGrid | None, length: int) -> Int[np.ndarray, "tokens"]:
    """Places in a sample of its tokens, as ranks hold them one after the other.

    Args:
        grid: the grid of the devices; None for one device.
        length: the number of tokens of a sample.
    """
    places = None if grid is None else grid.places(length)
    return np.arange(length) if places is None else places.ravel()


def in_rank_order(grid: DeviceGrid | None, x: jax.Array) -> jax.Array:
    """Values of the tokens of samples, as ranks hold them.

    Args:
        grid: the grid of the devices; None for one device.
        x: values [samples, length, ...] in the order of the samples.
    """
    return _taken(x, order_on(grid, x.shape[1]))


def in_sample_order(grid: DeviceGrid | None, x: jax.Array) -> jax.Array:
    """The same in the order of the samples.

    Args:
        grid: the grid of the devices; None for one device.
        x: values [samples, length, ...] as ranks hold tokens.
    """
    return _taken(x, np.argsort(order_on(grid, x.shape[1])))


def _taken(x: jax.Array, order: Int[np.ndarray, "tokens"]) -> jax.Array:
    return x if (order == np.arange(len(order))).all() else jnp.take(x, jnp.asarray(order), axis=1)
