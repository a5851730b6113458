"""Stacked layers on the meshes of their stages: one array for its user, a part for each stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshwright.compiler.leading_axis import Bounds, spans
from meshwright.runtime.workers.remote_arrays import DistributedArray, RemoteArray


class StackedArray(DistributedArray):
    """An array whose rows are split over several meshes; `numpy.asarray` gathers it."""

    def __init__(self, parts: Sequence[Any], bounds: Bounds) -> None:
        """Refer to parts.

        Args:
            parts: arrays of one type, one behind the other along their first axis.
            bounds: the bounds where each part begins, and the number of rows.
        """
        self.parts, self.bounds = tuple(parts), bounds

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (self.bounds[-1], *self.parts[0].shape[1:])

    @property
    def dtype(self) -> Any:
        """Type of the entries."""
        return self.parts[0].dtype

    def block_until_ready(self) -> StackedArray:
        """Wait for all parts."""
        jax.block_until_ready(self.parts)
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate([np.asarray(part, dtype=dtype) for part in self.parts])

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(np.asarray(self))

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __repr__(self) -> str:
        return f"StackedArray({self.dtype}{list(self.shape)} in parts of {np.diff(self.bounds).tolist()} rows)"


def stacked(parts: Sequence[Any], bounds: Bounds) -> Any:
    """One array of parts; of keys of random numbers a whole one, as JAX reads them from nothing else.

    Args:
        parts: arrays of one type, one behind the other along their first axis.
        bounds: the bounds where each part begins, and the number of rows.
    """
    if not jax.dtypes.issubdtype(parts[0].dtype, jax.dtypes.prng_key):
        return StackedArray(parts, bounds)
    keys = [part.gather() if isinstance(part, RemoteArray) else part for part in parts]
    numbers = np.concatenate([np.asarray(jax.random.key_data(part)) for part in keys])
    return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(keys[0]))


def stacked_parts(value: Any, bounds: Bounds) -> list[Any]:
    """Parts of an array; those that it has, where they are the same.

    Args:
        value: any array.
        bounds: the bounds of the parts.
    """
    if isinstance(value, StackedArray):
        if value.bounds == bounds:
            return list(value.parts)
        value = np.asarray(value)
    elif isinstance(value, RemoteArray):
        value = value.gather()
    return [value[low:high] for low, high in spans(bounds)]
