"""Steps whose every decision was planned run the same in workers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.stages.search import StageSpace, plan_step
from tests.runtime.test_auto import SLOW, given_stages, network, network_step


def two_stages() -> mw.FromPlan:
    """Three and four layers, on a row of four devices and on a grid of two by two."""
    plan = plan_step(network_step, network(), SLOW, space=StageSpace(micro_batches=(2,), recompute=(False,)))
    return mw.FromPlan(plan=given_stages(plan, [3, 4], [(4,), (2, 2)]))


@pytest.mark.parametrize("method", [lambda: mw.Auto(hosts=SLOW, num_micro_batches=2), two_stages])
def test_processes_run_what_was_planned(method: Callable[[], Any]) -> None:
    check("processes", method())


def check(backend: str, method: Any) -> None:
    """Two steps elsewhere end where they end in this process."""
    state, batch = network()
    here = mw.parallelize(network_step, method=method)
    there = mw.parallelize(network_step, method=method, backend=backend, timeout_s=60.0)
    expected: Any = state
    try:
        for _ in range(2):
            expected, expected_value = here(expected, batch)
            state, value = there(state, batch)
        assert float(value) == pytest.approx(float(expected_value), abs=1e-6)
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)
    finally:
        there.close()
