"""Arrays as bytes on the host, and back: what leaves a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

RANDOM = ("threefry2x32", "rbg", "unsafe_rbg")
"""Kinds of random key that JAX has; their arrays are sent as the numbers in them."""


@dataclass(frozen=True, slots=True)
class HostForm:
    """How an array looks on the host."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    keys: str = ""
    """Kind of random keys these are the numbers of."""

    @property
    def bytes(self) -> int:
        """Of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def value(self, body: np.ndarray) -> Any:
        """The array.

        Args:
            body: its bytes.
        """
        return from_host(body.view(self.dtype).reshape(self.shape), self.keys)


@lru_cache(maxsize=4096)
def host_form(shape: tuple[int, ...], dtype: str) -> HostForm:
    """How an array looks on the host.

    Args:
        shape: as JAX sees it.
        dtype: name; `key<...>` for random keys.
    """
    if not dtype.startswith("key<"):
        return HostForm(shape, jax.numpy.dtype(dtype))
    for keys in RANDOM:
        one = jax.random.key(0, impl=keys)
        if str(one.dtype) == dtype:
            numbers = jax.random.key_data(one)
            return HostForm(shape + numbers.shape, np.dtype(numbers.dtype), keys)
    raise TypeError(f"random keys of kind {dtype} have no numbers to send")


def from_host(array: np.ndarray, keys: str) -> Any:
    """An array that JAX takes.

    Args:
        array: on the host.
        keys: kind of random keys it holds the numbers of, or empty.
    """
    return jax.random.wrap_key_data(array, impl=keys) if keys else array


def to_host(value: Any) -> np.ndarray:
    """An array gathered on the host; of random keys, their numbers.

    Args:
        value: any array.
    """
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value, order="C")


def bytes_of(value: Any) -> memoryview:
    """The bytes of an array, copied only where they are not in one piece.

    Args:
        value: any array.
    """
    host = to_host(value)
    return host.reshape(-1).view(np.uint8).data
