"""Meshes over several hosts: the numbers of one process, state that moves between meshes, and lost hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError, LostError
from tests.runtime.small import batch, initial, step
from tests.runtime.test_create import check_state_is_made
from tests.runtime.test_follow import check_workers_evaluate

STEPS = 3
PIPELINE = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)
SPLIT = mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=3)


def after(run: Any, state: Any, steps: int) -> tuple[Any, Any]:
    value = None
    for _ in range(steps):
        state, value = run(state, batch())
    return state, value


def same(one: Any, other: Any) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def there() -> Iterator[Any]:
    run = mw.parallelize(step, method=PIPELINE, backend="processes", timeout_s=60.0, hosts_per_mesh=2)
    yield run
    run.close()


@pytest.fixture(scope="module")
def split() -> Iterator[Any]:
    """Parameters split over the hosts of a mesh."""
    run = mw.parallelize(step, method=SPLIT, backend="processes", timeout_s=60.0, hosts_per_mesh=2)
    yield run
    run.close()


def test_two_stages_on_two_hosts_each_compute_what_one_process_does(there: Any) -> None:
    expected, expected_value = after(mw.parallelize(step, method=PIPELINE), initial(), STEPS)
    state, value = after(there, initial(), STEPS)
    assert float(value) == pytest.approx(float(expected_value), abs=1e-6)
    same(state, expected)
    crew = there.lower(initial(), batch()).runtime.crew
    assert len(set(crew.pids())) == 4


def test_state_may_come_back_as_arrays(there: Any) -> None:
    state, _ = after(there, initial(), 1)
    gathered = jax.tree.map(np.asarray, state)
    kept, _ = after(there, state, 1)
    sent, _ = after(there, gathered, 1)
    same(kept, sent)


def test_parameters_split_over_hosts(split: Any) -> None:
    expected, _ = after(mw.parallelize(step, method=SPLIT), initial(), 2)
    state, _ = after(split, initial(), 2)
    same(state, expected)


def test_split_state_is_made_where_it_is_read(split: Any) -> None:
    check_state_is_made(split)


def test_hosts_evaluate_the_split_state_they_keep(split: Any) -> None:
    check_workers_evaluate(split)


def test_a_lost_host_is_named(there: Any, capfd: pytest.CaptureFixture[str]) -> None:
    state, _ = after(there, initial(), 1)
    pids = there.lower(initial(), batch()).runtime.crew.pids()
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(LostError, match="mesh 1 on its host 1 died"):
        there(state, batch())
    again, _ = after(there, initial(), 1)
    assert np.isfinite(np.asarray(again[0]["tied"])).all()
    assert capfd.readouterr().out == "", "what libraries of workers print is no part of an answer"


def test_hosts_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="hosts_per_mesh = 2"):
        mw.parallelize(step, hosts_per_mesh=2)
    run = mw.parallelize(step, method=PIPELINE, backend="processes", hosts_per_mesh=3)
    with pytest.raises(InputError, match="4 devices for hosts_per_mesh = 3"):
        run(initial(), batch())
