"""Meshes in Ray actors compute what meshes of one process compute, and a killed actor is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.errors import LostError
from meshwright.ray_cluster import HERE, connect, ray_module
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.workers.on_ray import RayCrew
from tests.runtime.small import batch, initial, step
from tests.runtime.test_auto_elsewhere import check, two_stages
from tests.runtime.test_collectives import clipped, states
from tests.runtime.test_versions import batch as samples
from tests.runtime.test_versions import loss
from tests.runtime.training.test_joint import joint, training_of

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")

METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray of this machine, joined by this process."""
    ray = ray_module()
    for attempt in range(2):
        try:
            connect(ray, HERE)
        except Exception as error:
            ray.shutdown()
            if attempt and ("timed out" in str(error) or "Timed out" in str(error)):
                pytest.skip(f"this machine is too busy: Ray did not start twice: {error}")
            if attempt:
                raise
        else:
            break
    yield
    ray.shutdown()


def test_actors_compute_the_same_and_a_killed_one_is_told(cluster: None) -> None:
    here = mw.parallelize(step, method=METHOD)
    there = mw.parallelize(step, method=METHOD, backend="ray")
    expected: Any = initial()
    state: Any = initial()
    for _ in range(3):
        expected, expected_value = here(expected, batch())
        state, value = there(state, batch())
    assert float(value) == pytest.approx(float(expected_value), abs=1e-7)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)

    crew = there.lower(initial(), batch()).runtime.crew
    assert isinstance(crew, RayCrew)
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in crew.pids()} == {os.getpriority(os.PRIO_PROCESS, 0)}
    lost = crew.pids()[1]
    with open(f"/proc/{lost}/fd/2", "ab") as log:
        log.write(b"the last words of a worker\n")
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(LostError, match=r"(?s)mesh 1 died.*its log, .*, ends: .*the last words of a worker"):
        there(state, batch())


def test_an_actor_that_hangs_is_told_and_ended(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    there = mw.parallelize(step, method=METHOD, backend="ray")
    state: Any = initial()
    for _ in range(2):
        state, _ = there(state, batch())
    runtime = there.lower(initial(), batch()).runtime
    pids = runtime.crew.pids()
    monkeypatch.setattr(runtime._team, "timeout_s", 4.0)
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(LostError, match=r"(?s)mesh 1 hangs .*no worker has made progress for 4 s"):
        there(state, batch())
    deadline = time.monotonic() + 120.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a worker outlives its crew"
        time.sleep(0.1)


def test_two_actors_share_a_mesh(cluster: None) -> None:
    """Each mesh is one group of JAX over two actors."""
    method = mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=2)
    here = mw.parallelize(step, method=method)
    there = mw.parallelize(step, method=method, backend="ray", hosts_per_mesh=2)
    expected, state = initial(), initial()
    try:
        for _ in range(2):
            expected, _ = here(expected, batch())
            state, _ = there(state, batch())
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)
    finally:
        there.close()


def test_actors_of_unlike_kinds_share_the_mesh_of_all_ranks_in_64_bits(cluster: None) -> None:
    with jax_precision("fp64"):
        here, there = (training_of(joint(3), backend=backend) for backend in ("local", "ray"))
        parity = parity_of(run_parallel(there, jax.devices(), 2), run_alone(here, 2), "fp64")
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


def test_actors_run_what_was_planned(cluster: None) -> None:
    """Two stages on submeshes of other shapes, every operator split as it was decided."""
    check("ray", two_stages())


def test_actors_meet_in_the_update_and_evaluate_the_state_they_keep(cluster: None) -> None:
    train = mw.parallelize(clipped, method=METHOD, backend="ray", donate=True)
    evaluate = mw.parallelize(loss, method=mw.FollowParallel(train, num_micro_batches=2))
    alone = mw.parallelize(clipped, method=mw.LocalPipeline(num_stages=2, num_micro_batches=2))
    state, expected = states()["clipped"], states()["clipped"]
    try:
        for _ in range(2):
            state, _ = train(state, samples())
            expected, _ = alone(expected, samples())
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)
        assert any(one.op is Op.ALLREDUCE for one in train.lower(state, samples()).program.lists[0])
        assert float(evaluate(state[0], samples())) == pytest.approx(float(loss(expected[0], samples())), abs=1e-5)
    finally:
        train.close()
