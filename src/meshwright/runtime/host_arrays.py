"""Arrays as bytes on the host, and back: what leaves a process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

RANDOM = ("threefry2x32", "rbg", "unsafe_rbg")
"""Kinds of random key that JAX has; their arrays are sent as the numbers in them."""

ALIGNED_BYTES = 64
"""Arrays in messages start at multiples of this, as JAX and vector instructions like it."""


@dataclass(frozen=True, slots=True)
class HostForm:
    """How an array looks on the host."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bytes: int
    """Size of the whole array in bytes."""
    keys: str = ""
    """Kind of random keys these are the numbers of."""

    @property
    def aligned_bytes(self) -> int:
        """Size of the whole array, padded to where another array may start."""
        return self.bytes + -self.bytes % ALIGNED_BYTES

    def value(self, body: np.ndarray, start: int = 0) -> Any:
        """The array, in the memory of its bytes.

        Args:
            body: bytes.
            start: the start of the array's among them.
        """
        array = np.ndarray(self.shape, self.dtype, body.data, start)
        return jax.random.wrap_key_data(array, impl=self.keys) if self.keys else array

    def numbers(self, value: Any) -> np.ndarray:
        """An array of this form gathered on the host.

        Args:
            value: array of JAX or of the host.
        """
        return np.asarray(jax.random.key_data(value) if self.keys else value, order="C")


def aligned(size: int) -> np.ndarray:
    """Bytes to be filled. JAX uses aligned memory of the host as it is, and copies other memory.

    Args:
        size: the size in bytes.
    """
    room = np.empty(size + ALIGNED_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGNED_BYTES
    return room[start : start + size]


@lru_cache(maxsize=4096)
def host_form(shape: tuple[int, ...], dtype: str) -> HostForm:
    """How an array looks on the host.

    Args:
        shape: the shape as JAX sees it.
        dtype: name; `key<...>` for random keys.
    """
    if not dtype.startswith("key<"):
        return _form(shape, jax.numpy.dtype(dtype))
    for keys in RANDOM:
        one = jax.random.key(0, impl=keys)
        if str(one.dtype) == dtype:
            numbers = jax.random.key_data(one)
            return _form(shape + numbers.shape, np.dtype(numbers.dtype), keys)
    raise TypeError(f"random keys of kind {dtype} have no numbers to send")


def _form(shape: tuple[int, ...], dtype: np.dtype[Any], keys: str = "") -> HostForm:
    return HostForm(shape, dtype, math.prod(shape) * dtype.itemsize, keys)


def from_host(array: np.ndarray, keys: str) -> Any:
    """An array that JAX takes.

    Args:
        array: the array on the host.
        keys: kind of random keys it holds the numbers of, or empty.
    """
    return jax.random.wrap_key_data(array, impl=keys) if keys else array


def as_it_lies(value: Any) -> Any:
    """An array that lies whole in the host's memory as NumPy sees it there; anything else as it is.

    Devices are then given their parts of it as they lie: of an array on one device JAX compiles a program that slices
    it, another one for each shape and sharding, which takes longer than most arrays.

    Args:
        value: any array.
    """
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    if not isinstance(value.sharding, jax.sharding.SingleDeviceSharding):
        return value
    (device,) = value.devices()
    keys = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    if device.platform != "cpu" or keys or value.weak_type:
        return value
    # Without 64 bits JAX would take an array of NumPy as one of 32.
    return np.asarray(value) if jax.dtypes.canonicalize_dtype(value.dtype) == value.dtype else value


def to_host(value: Any) -> np.ndarray:
    """An array gathered on the host; of random keys, their numbers.

    Args:
        value: any array.
    """
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value, order="C")
