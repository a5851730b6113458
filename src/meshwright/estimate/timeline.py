"""One step of a plan from its first task to its last: when every task, transfer and end-of-step phase runs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.estimate.price import estimate_plan, plan_columns
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.step import exposed_sync, task_times
from meshwright.schedules import Timeline, Times, simulate
from meshwright.shapes import Float
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.workload import Workload

HELD = ("weights", "gradients", "optimizer", "comm_buffers", "overhead")
"""Kinds of memory that stay the same through a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What one worker does, or waits for, around its pipeline: exposed time that no task contains."""

    worker: int
    name: str
    start_s: float
    end_s: float

    @property
    def communicates(self) -> bool:
        """Whether it is data-parallel traffic, not the update."""
        return self.name != "optimizer"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StepTimeline:
    """A step of the first pipeline of a plan, as its estimate prices it."""

    estimate: StepEstimate
    timeline: Timeline
    phases: tuple[Phase, ...]
    """Behind the pipeline, in order; the last one ends with the step."""
    held_bytes: Float[np.ndarray, " workers"]
    """Weights, gradients, optimizer states, buffers and overhead."""
    transient_bytes: Float[np.ndarray, " workers"]
    kept_bytes: Float[np.ndarray, "workers chunks"]
    """Activations of one micro-batch, from its forward to the end of its backward."""


def step_timeline(plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> StepTimeline:
    """Every task of one step with the seconds that `estimate_plan` prices; both end at the same time.

    Args:
        plan: the plan.
        model: must have as many layers as the plan.
        cluster: one group of equal nodes.
        workload: must have the plan's global batch.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    estimate = estimate_plan(plan, model, cluster, workload)
    columns, hardware = plan_columns(plan, model, cluster, workload)
    table = columns.schedule.table(columns.p, columns.m, columns.v)
    timeline = simulate(table, _first_row(task_times(columns, columns.transfer_s)))
    memory = [dict(stage.memory_bytes) for stage in estimate.stages]
    sync = exposed_sync(columns, hardware, workload)
    return StepTimeline(
        estimate=estimate,
        timeline=timeline,
        phases=_phases(
            timeline.worker_end_s,
            [("gradient sum", sync.gradients_s[0]), ("gradients to host", sync.copies_s[0])],
            float(columns.tied_s[0]),
            [
                ("optimizer", sync.optimizer_s[0]),
                ("weight gather", sync.gather_s[0]),
                ("weights to device", sync.offload_s[0]),
            ],
        ),
        held_bytes=np.array([sum(kinds[kind] for kind in HELD) for kinds in memory]),
        transient_bytes=np.array([kinds["transient"] for kinds in memory]),
        kept_bytes=columns.kept_bytes[0],
    )


def _first_row(times: Times) -> Times:
    """The first set of durations."""
    columns = {field.name: getattr(times, field.name) for field in fields(times)}
    return replace(times, **{name: c[0] for name, c in columns.items() if isinstance(c, np.ndarray)})


def _phases(
    end_s: Float[np.ndarray, " workers"],
    own: list[tuple[str, Float[np.ndarray, " workers"]]],
    tied_s: float,
    after_all: list[tuple[str, Float[np.ndarray, " workers"]]],
) -> tuple[Phase, ...]:
    """Each worker's own phases behind its last task, then, when all are there, those that wait for the slowest."""
    workers = len(end_s)
    found = []

    def run(worker: int, name: str, start_s: float, seconds: float) -> float:
        if seconds > 0:
            found.append(Phase(worker=worker, name=name, start_s=start_s, end_s=start_s + seconds))
        return start_s + seconds

    at_s = [float(seconds) for seconds in end_s]
    for worker in range(workers):
        for name, seconds in own:
            at_s[worker] = run(worker, name, at_s[worker], float(seconds[worker]))
    all_s = max(at_s)
    for worker in {0, workers - 1}:
        run(worker, "tied embeddings", all_s, tied_s)
    at_s = [all_s + tied_s] * workers
    for worker in range(workers):
        for name, seconds in after_all:
            at_s[worker] = run(worker, name, at_s[worker], float(seconds[worker]))
    return tuple(found)
