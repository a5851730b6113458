"""State made in place: the values of plain JAX, where and how the step reads them, on every backend."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError
from tests.runtime.small import WIDTH, batch, step

METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=3)


def drawn(key: jax.Array, scale: float) -> Any:
    keys = jax.random.split(key, 3)
    matrices = [scale * jax.random.normal(one, (WIDTH, WIDTH), jnp.float32) for one in keys]
    weights = {"tied": matrices[0], "layers": matrices[1:]}
    return weights, jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32)


def same(one: Any, other: Any, within: float = 1e-6) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=0, atol=within)


def check_state_is_made(run: Any) -> None:
    """`test_hosted` checks it over several hosts, too."""
    state = run.create(drawn, jax.random.key(3), 0.5, batch=batch())
    same(state, drawn(jax.random.key(3), 0.5))
    state, value = run(state, batch())
    plain, expected = mw.parallelize(step, method=mw.DataParallel(devices=jax.devices()[:1]))(
        drawn(jax.random.key(3), 0.5), batch()
    )
    assert float(value) == pytest.approx(float(expected), abs=1e-6)
    same(state, plain)


@pytest.mark.parametrize("backend", ["local", "processes"])
def test_state_is_made_where_it_is_read(backend: str) -> None:
    run = mw.parallelize(step, method=METHOD, backend=backend, timeout_s=60.0)
    try:
        check_state_is_made(run)
    finally:
        run.close()


def test_parts_of_parameters_are_never_whole_on_a_device() -> None:
    run = mw.parallelize(step, method=METHOD)
    weights, _, _ = run.create(drawn, jax.random.key(3), 0.5, batch=batch())
    for layer, first in zip(weights["layers"], (0, 4), strict=True):
        assert {device.id for device in layer.sharding.device_set} == set(range(first, first + 4))
        assert {shard.data.shape for shard in layer.addressable_shards} == {(1, WIDTH)}


def test_another_state_than_the_steps_is_refused() -> None:
    run = mw.parallelize(step, method=METHOD)
    compiled = run.lower(jax.eval_shape(drawn, jax.random.key(0), 0.5), batch())
    with pytest.raises(InputError, match="compiled for float32"):
        compiled.create(lambda: jax.tree.map(lambda x: x[:1] if x.ndim else x, drawn(jax.random.key(0), 0.5)))
    with pytest.raises(InputError, match="the step takes"):
        compiled.create(lambda: jnp.zeros(3))
