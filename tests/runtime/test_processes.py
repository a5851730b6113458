"""Meshes in processes of their own compute what meshes of one process compute, and a lost worker is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.runtime.remote import RemoteArray
from tests.runtime.small import batch, initial, step

STEPS = 3
METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)


def after(run: Any, state: Any, steps: int) -> tuple[Any, Any]:
    value = None
    for _ in range(steps):
        state, value = run(state, batch())
    return state, value


@pytest.fixture(scope="module")
def there() -> Iterator[Any]:
    run = mw.parallelize(step, method=METHOD, backend="processes", timeout_s=60.0)
    yield run
    run.close()


def test_the_numbers_are_those_of_one_process(there: Any) -> None:
    expected, expected_value = after(mw.parallelize(step, method=METHOD), initial(), STEPS)
    state, value = after(there, initial(), STEPS)
    assert all(isinstance(leaf, RemoteArray) for leaf in jax.tree.leaves(state))
    assert float(value) == pytest.approx(float(expected_value), abs=1e-7)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)
    assert int(state[2]) == STEPS
    assert {leaf.mesh for leaf in state[0]["layers"]} == {0, 1}
