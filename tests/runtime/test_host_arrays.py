"""Arrays in the host's memory: which ones devices take their parts of without a program of JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.runtime.host_arrays import as_it_lies

SHARDED = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("ranks",)), PartitionSpec("ranks"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_an_array_on_one_device_is_taken_from_the_host_and_lies_on_all_as_before(dtype: str) -> None:
    value = jnp.arange(24).reshape(8, 3).astype(dtype)
    seen = as_it_lies(value)
    assert isinstance(seen, np.ndarray)
    placed, expected = (jax.device_put(one, SHARDED) for one in (seen, value))
    assert (placed.dtype, placed.shape, placed.sharding) == (expected.dtype, expected.shape, expected.sharding)
    assert (np.asarray(placed) == np.asarray(expected)).all()


def test_what_numpy_would_say_otherwise_stays_an_array_of_jax() -> None:
    with jax.enable_x64(True):
        wide = jnp.arange(8, dtype="float64")
    keys = jax.random.split(jax.random.key(0), 8)
    weak = jnp.asarray(2.0)
    spread = jax.device_put(np.arange(8.0, dtype="float32"), SHARDED)
    assert weak.weak_type
    for value in (wide, keys, weak, spread, 2.0, np.arange(3)):
        assert as_it_lies(value) is value


def test_a_step_that_is_traced_keeps_its_values() -> None:
    def step(value: Any) -> Any:
        assert as_it_lies(value) is value
        return value + 1

    assert float(jax.jit(step)(jnp.float32(1))) == 2.0
