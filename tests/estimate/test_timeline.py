"""The timeline of a plan ends when its estimate says, and keeps alive what the estimate counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright import estimate
from meshwright.estimate.timeline import Phase, StepTimeline, activation_line, step_timeline
from meshwright.library.clusters import resolve_gpus
from meshwright.schedules import PLAN_SCHEDULES, SCHEDULES
from meshwright.schedules.simulate import simulate
from meshwright.schedules.table import Kind
from meshwright.schedules.times import Times
from meshwright.specs.plan import ExecutionPlan, Schedule
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute, Tensor1D
from meshwright.specs.workload import Workload
from tests.estimate.cases import TIED
from tests.estimate.mixed import Stage, plan_of

ROWS = [
    ("llama-3-8b", "tp2.pp4.z1.mbs1.gbs32", "16xH100"),
    ("llama-3-8b", "pp8.vpp2.z1.mbs1.rc-full.gbs64", "16xH100"),
    ("llama-3-8b", "tp8.z3.mbs1.gbs32", "16xH100"),
    ("llama-3-8b", "pp4.gpipe.z1.mbs1.gbs32.off-o", "8xH100"),
    ("gpt2", "pp2.mbs1.gbs8", "4xA100-80"),
    ("mixtral-8x7b", "pp4.vpp2.ep4.epov.z1.mbs1.gbs64", "32xH100"),
]


SCHEDULED = [name for name in PLAN_SCHEDULES if SCHEDULES[name].flushes]


def row_of(name: str) -> tuple[str, str, str]:
    """A plan of four stages with this schedule."""
    schedule = SCHEDULES[name]
    chunks = ".vpp2" if schedule.problems(4, 8, 1) else ""
    again = ".rc-full" if schedule.recomputes_in_tasks else ""
    return "llama-3-8b", f"pp4{chunks}.{name}.mbs1.z1.gbs16{again}", "8xH100"


def timeline_of(model: str, row: str, gpus: str) -> StepTimeline:
    job = estimate(model, row, gpus=gpus)[0].job
    return step_timeline(job.plan, job.model, job.cluster, job.workload)


@pytest.mark.parametrize(("model", "row", "gpus"), ROWS)
def test_the_last_phase_ends_with_the_step(model: str, row: str, gpus: str) -> None:
    step = timeline_of(model, row, gpus)
    ends = [phase.end_s for phase in step.phases]
    assert max([*ends, step.timeline.makespan_s]) == pytest.approx(step.estimate.step_time_s, rel=1e-12)
    if "exchanges of unpaired passes" not in {phase.name for phase in step.phases}:
        assert step.timeline.busy_s == pytest.approx([stage.busy_s for stage in step.estimate.stages], rel=1e-9)


@pytest.mark.parametrize(("model", "row", "gpus"), ROWS)
def test_phases_follow_the_pipeline_and_each_other(model: str, row: str, gpus: str) -> None:
    step = timeline_of(model, row, gpus)
    assert step.phases
    for worker in range(step.timeline.table.p):
        at_s = float(step.timeline.worker_end_s[worker])
        for phase in (phase for phase in step.phases if phase.worker == worker):
            assert phase.start_s >= at_s - 1e-12
            assert phase.end_s > phase.start_s
            at_s = phase.end_s


def test_a_shared_table_is_summed_by_both_ends() -> None:
    step = timeline_of("gpt2", "pp2.mbs1.gbs8", "4xA100-80")
    tied = [phase for phase in step.phases if phase.name == "tied embeddings"]
    assert [phase.worker for phase in tied] == [0, 1]
    assert len({(phase.start_s, phase.end_s) for phase in tied}) == 1


@pytest.mark.parametrize(("model", "row", "gpus"), [*ROWS, *map(row_of, SCHEDULED)])
def test_what_lives_at_once_peaks_as_the_estimate_says(model: str, row: str, gpus: str) -> None:
    step = timeline_of(model, row, gpus)
    ends = [phase.end_s for phase in step.phases]
    assert max(ends) == pytest.approx(step.estimate.step_time_s, rel=1e-12)
    for line, stage in zip(step.activations, step.estimate.stages, strict=True):
        assert line.live_bytes.max() == pytest.approx(dict(stage.memory_bytes)["activations"], rel=1e-9)
        assert line.live_bytes[-1] == pytest.approx(0.0, abs=1.0)
        assert (line.at_s[1:] >= line.at_s[:-1]).all()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
def test_pipelines_on_two_kinds_end_with_the_step(schedule: str) -> None:
    """Three unequal pipelines: the last phase ends the step, and workers are as busy as the estimate says."""
    wide, narrow = LayerStrategy(tensor=Tensor1D(degree=4)), LayerStrategy(data=DataParallel(shard=2, zero=1))
    again = LayerStrategy(tensor=Tensor1D(degree=2), recompute=Recompute(kind="full"))
    made = plan_of(
        ([Stage(0, wide, 6), Stage(8, narrow, 4)], 2, 5), ([Stage(4, again, 10)], 1, 3), ([Stage(10, again, 10)], 1, 2)
    )
    first = replace(made.pipelines[0], schedule=Schedule(name=schedule))
    plan = ExecutionPlan(strategies=made.strategies, pipelines=(first, *made.pipelines[1:]))
    workload = Workload(seq_len=2048, global_batch=plan.global_batch)
    step = step_timeline(plan, TIED, resolve_gpus("8xH100,8xA100-80"), workload)
    assert max(phase.end_s for phase in step.phases) == pytest.approx(step.estimate.step_time_s, rel=1e-12)
    assert step.timeline.busy_s == pytest.approx([stage.busy_s for stage in step.estimate.stages], rel=1e-9)
    assert {phase.worker for phase in step.phases if phase.name == "tied embeddings"} == {0, 1}
    for stage, line in zip(step.estimate.stages, step.activations, strict=True):
        kept = dict(stage.memory_bytes)["activations"]
        assert line.live_bytes.max() == pytest.approx(kept, rel=1e-9)


def test_the_update_alone_is_no_traffic() -> None:
    phases = {name: Phase(worker=0, name=name, start_s=0.0, end_s=1.0) for name in ("optimizer", "reduce-scatter")}
    assert {name: one.communicates for name, one in phases.items()} == {"optimizer": False, "reduce-scatter": True}


def test_what_a_split_backward_keeps_lives_until_its_weight_gradient() -> None:
    table = SCHEDULES["zb-h1"].table(2, 3)
    timeline = simulate(
        table, Times(forward_s=np.ones((2, 1)), backward_s=np.full((2, 1), 2.0), weight_s=np.ones((2, 1)))
    )
    whole = activation_line(timeline, 0, np.array([8.0]))
    own = np.arange(table.first[0], table.first[1])
    freed = np.sort(timeline.end_s[own][table.kind[own] == Kind.W])
    steps = np.diff(np.concatenate([[0.0], whole.live_bytes]))
    assert steps[steps < 0].tolist() == [-8.0] * 3
    assert whole.at_s[steps < 0].tolist() == freed.tolist()
    split = activation_line(timeline, 0, np.array([8.0]), np.array([3.0]))
    fell = np.diff(np.concatenate([[0.0], split.live_bytes]))
    assert sorted(fell[fell < 0].tolist()) == [-5.0] * 3 + [-3.0] * 3
