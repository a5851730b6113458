"""Runs go on from their checkpoint, also without the workers that died, and lose nothing but the steps since."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.app.elastic import training_on
from meshwright.errors import LostError
from meshwright.runtime.timings import this_machine
from meshwright.runtime.train import Loader, Recovery, Steps, train
from meshwright.runtime.training.mixed import MixedTraining
from meshwright.runtime.training.run import Training
from meshwright.specs.row import PlanRow
from tests.runtime.mixed_plans import Line, plan_of, stage, training_of

PLAN = PlanRow(pp=2, dp=2, mbs=2, gbs=8)


def training(backend: str = "local", row: PlanRow = PLAN) -> Training:
    return Training(spec=None, row=row, stage_layers=(2, 2), seq_len=1, hidden=4, backend=backend, timeout_s=60.0)


class Watched:
    """What a run tells; kills a worker behind one step."""

    def __init__(self, of: Training, kill_after: int | None = None) -> None:
        self.losses: dict[int, float] = {}
        self.recoveries: list[Recovery] = []
        self.of, self.kill_after = of, kill_after

    def on_step(self, number: int, loss: float, seconds: float, step: Any) -> None:
        self.losses[number] = loss
        if number == self.kill_after:
            self.kill_after = None
            shapes = jax.eval_shape(self.of.initial)
            crew = step.lower(shapes, self.of.batch(0)).runtime.crew
            os.kill(crew.pids()[1], signal.SIGKILL)


def losses_of(one: Training, steps: Steps) -> dict[int, float]:
    watched = Watched(one)
    train(one, jax.devices(), steps, on_step=watched.on_step).step.close()
    return watched.losses


@cache
def uninterrupted() -> dict[int, float]:
    """Losses of six steps of a run that nothing happens to."""
    return losses_of(training(), Steps(count=6))


@pytest.mark.parametrize(("hosts", "left"), [(1, 2), (2, 3)])
def test_a_killed_worker_costs_the_steps_since_the_checkpoint_and_its_devices(
    tmp_path: Path, hosts: int, left: int
) -> None:
    """A worker is a mesh of two devices, or one of the two hosts of a mesh."""
    there = replace(training("processes"), hosts_per_mesh=hosts)
    watched = Watched(there, kill_after=2)
    steps = Steps(count=6, folder=tmp_path / "state", every=2, plan_again=partial(training_on, machine=this_machine()))
    ended = train(there, jax.devices()[:4], steps, on_step=watched.on_step, on_recovery=watched.recoveries.append)
    ended.step.close()
    (recovery,) = watched.recoveries
    assert (recovery.step, recovery.resumed, recovery.devices) == (3, 2, left)
    assert recovery.training.devices == 2
    assert "died" in recovery.why
    assert ended.number == 6
    for number, loss in uninterrupted().items():
        assert watched.losses[number] == pytest.approx(loss, abs=1e-5)


def test_without_elastic_the_error_comes_through(tmp_path: Path) -> None:
    there = training("processes")
    watched = Watched(there, kill_after=0)
    with pytest.raises(LostError, match="mesh 1 died"):
        train(there, jax.devices(), Steps(count=3, folder=tmp_path / "state"), on_step=watched.on_step)


def test_a_run_goes_on_from_its_checkpoint_under_another_plan(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = losses_of(training(), Steps(count=3, folder=folder))
    other = training(row=PlanRow(pp=1, dp=4, mbs=1, gbs=8, sharding="z3"))
    second = losses_of(other, Steps(count=4, folder=folder))
    assert list(first) == [0, 1, 2]
    assert list(second) == [3]
    assert second[3] == pytest.approx(uninterrupted()[3], abs=1e-5)


def test_batches_are_made_ahead_in_order_from_any_step() -> None:
    made: list[int] = []

    def source(step: int) -> int:
        made.append(step)
        if step == 8:
            raise ValueError("no more")
        return step * step

    loader = Loader(source, start=5, ahead=2)
    assert [next(loader) for _ in range(3)] == [25, 36, 49]
    assert loader.step == 8
    with pytest.raises(ValueError, match="no more"):
        next(loader)
    assert made == [5, 6, 7, 8]
    assert list(loader) == []


def test_the_same_batches_come_each_time() -> None:
    one, again = training().batch(3), training().batch(3)
    assert all((np.asarray(one[key]) == np.asarray(again[key])).all() for key in one)


def test_a_mixed_run_that_loses_a_worker_goes_on_with_another_plan(tmp_path: Path) -> None:
    """The second worker dies; its two devices are gone, and what the first ones train then is the same run."""
    plan = plan_of(Line(1, 2, (stage(1, dp=4), stage(1, dp=2))))
    expected = losses_of(training_of(plan), Steps(count=3))
    there = training_of(plan, backend="processes")
    watched = Watched(there, kill_after=0)
    steps = Steps(count=3, folder=tmp_path / "state", every=1, plan_again=partial(training_on, machine=this_machine()))
    ended = train(there, jax.devices(), steps, on_step=watched.on_step, on_recovery=watched.recoveries.append)
    ended.step.close()
    (recovery,) = watched.recoveries
    assert recovery.resumed == 1
    assert isinstance(recovery.training, MixedTraining)
    assert recovery.training.job.cluster.devices == 6
    for number, loss in expected.items():
        assert watched.losses[number] == pytest.approx(loss, abs=1e-5)
