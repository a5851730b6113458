"""Mobius: what stages that take turns on the device wait for their uploads, and what of them is there at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.specs import PlanRow, Workload
from meshwright.units import GIGA

MODEL, CLUSTER = replace(spec("llama-3.1-8b"), vocab=1024), resolve_gpus("4xH100")
WORKLOAD = Workload(seq_len=1024, global_batch=16)
AT_ONCE, SLOW = 1e6 * GIGA, 0.5 * GIGA


def estimate(schedule: str, away: str, link: float, stages: int = 4) -> StepEstimate:
    row = PlanRow(pp=4, dp=1, vpp=stages, gbs=16, recompute="full", schedule=schedule, offload=away)
    hardware = replace(hardware_of(CLUSTER.groups[0], WORKLOAD), host_bytes_per_s=link)
    return estimate_plan(expand(row, MODEL, WORKLOAD.seq_len), MODEL, CLUSTER, WORKLOAD, hardware)


def held(found: StepEstimate, kind: str, worker: int = 1) -> float:
    return dict(found.stages[worker].memory_bytes)[kind]


def test_uploads_that_take_no_time_leave_the_step_of_breadth_first() -> None:
    paged, there = estimate("mobius", "wog", AT_ONCE), estimate("breadth-first", "og", AT_ONCE)
    assert paged.step_time_s == pytest.approx(there.step_time_s, rel=1e-4)
    assert held(paged, "weights") == 0 < held(there, "weights")


@pytest.mark.parametrize("stages", [2, 4])
def test_weights_come_once_for_each_pass_but_for_the_stage_at_the_turn(stages: int) -> None:
    slow, slower = (estimate("mobius", "w", link, stages) for link in (SLOW, SLOW / 2))
    weight_bytes = slow.stages[1].host_bytes
    uploads_s = (2 - 1 / stages) * weight_bytes / SLOW
    assert slower.step_time_s - slow.step_time_s == pytest.approx(uploads_s, rel=0.01)
    # Layer by layer they come twice for every micro-batch.
    assert slow.step_time_s < estimate("breadth-first", "w", SLOW, stages).step_time_s / 8


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_two_stages_are_on_the_device(stages: int) -> None:
    paged, there = (estimate(name, away, AT_ONCE, stages) for name, away in (("mobius", "wog"), ("breadth-first", "")))
    two = 2 / stages * (held(there, "weights") + held(there, "gradients"))
    assert held(paged, "transient") - held(there, "transient") == pytest.approx(two, rel=0.01)
