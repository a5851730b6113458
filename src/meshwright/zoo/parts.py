"""What every family shares: drawn weights, norms, dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiler.grid import DeviceGrid
from meshwright.zoo.blocks import WHOLE, WholeTensors
from meshwright.zoo.token_order import in_rank_order

EPSILON = 1e-5
"""Added under the square root of a norm."""


def drawn(key: jax.Array, shape: tuple[int, ...], inputs: int, scale: float = 1.0) -> jax.Array:
    """A matrix whose products keep the variance of what they multiply: N(0, scale^2 / inputs).

    Args:
        key: the key of its random numbers.
        shape: the shape of the matrix.
        inputs: terms of each sum.
        scale: less than 1 for what is added to a residual stream of many layers.
    """
    return jax.random.normal(key, shape, jnp.result_type(float)) * (scale / inputs**0.5)


def norm_weights(kind: str, width: int) -> dict[str, jax.Array]:
    """Scale, and shift of a LayerNorm.

    Args:
        kind: "rmsnorm" or "layernorm".
        width: the width of the stream.
    """
    weights = {"scale": jnp.ones(width)}
    return weights | {"shift": jnp.zeros(width)} if kind == "layernorm" else weights


def norm(weights: dict[str, jax.Array], x: jax.Array, held: WholeTensors = WHOLE) -> jax.Array:
    """RMSNorm, or LayerNorm where there is a shift: both over the last axis, in at least float32.

    Args:
        weights: the weights of `norm_weights`.
        x: any values.
        held: how ranks hold the stream.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if "shift" in weights:
        wide = wide - held.mean(wide)
    wide = wide * jax.lax.rsqrt(held.mean(wide**2) + EPSILON) * weights["scale"]
    return (wide + weights["shift"] if "shift" in weights else wide).astype(x.dtype)


def sample_keys(key: jax.Array, samples: jax.Array) -> jax.Array:
    """A key for each sample, by its number in the data: masks do not depend on how a batch is split.

    Args:
        key: the key of the step.
        samples: their numbers.
    """
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, samples)


def dropout(
    keys: jax.Array,
    place: int | jax.Array,
    rate: float,
    x: jax.Array,
    held: WholeTensors = WHOLE,
    grid: DeviceGrid | None = None,
) -> jax.Array:
    """Values kept with probability 1 - rate and scaled by its inverse.

    Args:
        keys: one per sample.
        place: the place of this dropout in the model.
        rate: the rate of what is dropped; 0 returns the values.
        x: one row per sample.
        held: how ranks hold the stream; each draws the whole of a sample's, so that they agree.
        grid: the grid of the devices, in the order of whose ranks tokens stand.
    """
    if not rate:
        return x
    own = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, place)
    kept = jax.vmap(lambda one: jax.random.bernoulli(one, 1.0 - rate, held.full(x.shape[1:])))(own)
    if grid is not None and grid.tokens:
        kept = in_rank_order(grid, held.by_samples(grid, kept))
    return jnp.where(held.part(kept), x / (1.0 - rate), jnp.zeros((), x.dtype))


def cast(weights: Any, dtype: Any) -> Any:
    """Weights in the format of the products.

    Args:
        weights: tree of arrays.
        dtype: the number format of the products; None keeps them.
    """
    return weights if dtype is None else jax.tree.map(lambda leaf: leaf.astype(dtype), weights)


def made_again(again: Sequence[str], module: str, part: Callable[..., Any], **kept: Any) -> Callable[..., Any]:
    """A part of a layer, which backward computes again where its module is asked for.

    Args:
        again: modules that are.
        module: the one that the part is of.
        part: any function.
        kept: what `jax.checkpoint` takes besides, such as what is kept all the same.
    """
    return jax.checkpoint(part, **kept) if module in again else part
