"""Runs go on from their checkpoint, also without the workers that died, and lose nothing but the steps since."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.errors import InfeasibleError, LostError
from meshwright.runtime.loader import Loader
from meshwright.runtime.replan import held_share, replan, step_share
from meshwright.runtime.train import Recovery, Steps, train
from meshwright.runtime.training_run import Training
from meshwright.specs.row import PlanRow

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


def test_a_killed_worker_costs_the_steps_since_the_checkpoint_and_its_devices(tmp_path: Path) -> None:
    expected = losses_of(training(), Steps(count=6))
    there = training("processes")
    watched = Watched(there, kill_after=2)
    steps = Steps(count=6, folder=tmp_path / "state", every=2, elastic=True)
    ended = train(there, jax.devices(), steps, on_step=watched.on_step, on_recovery=watched.recoveries.append)
    ended.step.close()
    (recovery,) = watched.recoveries
    assert (recovery.step, recovery.resumed, recovery.devices) == (3, 2, 2)
    assert recovery.plan.devices == 2
    assert "mesh 1 died" in recovery.why
    assert ended.number == 6
    for number, loss in expected.items():
        assert watched.losses[number] == pytest.approx(loss, abs=1e-5)


def test_without_elastic_the_error_comes_through(tmp_path: Path) -> None:
    there = training("processes")
    watched = Watched(there, kill_after=0)
    with pytest.raises(LostError, match="mesh 1 died"):
        train(there, jax.devices(), Steps(count=3, folder=tmp_path / "state"), on_step=watched.on_step)


def test_a_run_goes_on_from_its_checkpoint_under_another_plan(tmp_path: Path) -> None:
    expected = losses_of(training(), Steps(count=4))
    folder = tmp_path / "state"
    first = losses_of(training(), Steps(count=3, folder=folder))
    other = training(row=PlanRow(pp=1, dp=4, mbs=1, gbs=8, sharding="z3"))
    second = losses_of(other, Steps(count=4, folder=folder))
    assert list(first) == [0, 1, 2]
    assert list(second) == [3]
    assert second[3] == pytest.approx(expected[3], abs=1e-5)


@pytest.mark.parametrize("sharding", ["z0", "z1", "z3"])
@pytest.mark.parametrize("devices", [1, 3, 4, 6, 7, 8])
def test_what_is_left_is_used_as_well_as_batch_and_memory_allow(devices: int, sharding: str) -> None:
    before = PlanRow(pp=4, dp=2, mbs=1, gbs=32, sharding=sharding)
    found = replan(before, devices, 8)
    assert found.devices <= devices
    assert (found.gbs, found.mbs) == (32, 1)
    # No share of the work is less than an even one.
    assert step_share(found) >= 3 * 32 / devices - 1e-9
    if devices >= 4 and sharding == "z0":
        assert found.pp >= 4
    if sharding == "z3" and devices == 8:
        assert held_share(found) == held_share(before)
    if devices < 4:
        assert held_share(found) > held_share(before)


def test_a_stage_less_keeps_as_many_stages_as_there_are_devices() -> None:
    assert replan(PlanRow(pp=4, dp=2, mbs=1, gbs=32), 6, 8).format() == "pp6.dp1.mbs1.gbs32"
    assert replan(PLAN, 2, 4).format() == "pp2.dp1.mbs2.gbs8"


def test_no_plan_is_said() -> None:
    with pytest.raises(InfeasibleError, match="no plan of 8 samples"):
        replan(PLAN, 0, 4)


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
