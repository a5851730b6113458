"""Sums over ranks of numbers in 16 bits, which XLA adds in 32 bits on CPUs.

It does so by itself; but of a sum along some axes of a mesh, while its partitioner has the others, it ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def over_ranks(collective: Callable[[Any], Any], values: Any) -> Any:
    """What a collective that adds makes of the values of this rank.

    Args:
        collective: adds over ranks, whatever the format.
        values: an array, or a list of arrays.
    """
    if not any(_narrow(value) for value in jax.tree.leaves(values)):
        return collective(values)

    def widened(values: Any) -> Any:
        wide = jax.tree.map(lambda value: value.astype(jnp.float32) if _narrow(value) else value, values)
        return jax.tree.map(lambda total, value: total.astype(value.dtype), collective(wide), values)

    return jax.lax.platform_dependent(values, cpu=widened, default=collective)


def _narrow(value: Any) -> bool:
    dtype = jnp.result_type(value)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < jnp.dtype(jnp.float32).itemsize
