"""One step of a plan from its first task to its last: when every task, transfer and end-of-step phase runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.estimate.price import PricedStep, priced_step
from meshwright.estimate.result import StepPrice
from meshwright.estimate.run import PipelineColumns, task_times
from meshwright.schedules import Kind, Timeline, Times, simulate
from meshwright.schedules.beside import side_by_side
from meshwright.shapes import Float
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.lengths import DYNAMIC
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
class ActivationLine:
    """Activations on one worker over time."""

    at_s: Float[np.ndarray, " changes"]
    live_bytes: Float[np.ndarray, " changes"]
    """Bytes alive from each moment to the next."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StepTimeline:
    """A step of a plan, as its estimate prices it; workers of all pipelines one behind the other."""

    estimate: StepPrice
    timeline: Timeline
    phases: tuple[Phase, ...]
    """Phases behind the pipeline, in order; the last one ends with the step."""
    held_bytes: Float[np.ndarray, " workers"]
    """Weights, gradients, optimizer states, buffers and overhead."""
    transient_bytes: Float[np.ndarray, " workers"]
    activations: tuple[ActivationLine, ...]
    """What is kept for backwards, of each worker."""
    parts_s: Mapping[str, Float[np.ndarray, " workers"]] = field(default_factory=dict)
    """What each worker's tasks are made of: compute, recompute and the exposed communication of every kind; empty
    where only whole tasks were measured."""
    times: tuple[Times, ...] = ()
    """Seconds of the tasks of one micro-batch, of each pipeline by its workers and chunks."""


def step_timeline(plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> StepTimeline:
    """Every task of one step with the seconds that `estimate_plan` prices; both end at the same time.

    Args:
        plan: the plan.
        model: must have as many layers as the plan.
        cluster: must have the plan's devices.
        workload: must have the plan's global batch.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    _require_equal_micro_batches(workload)
    return drawn_step(priced_step(plan, model, cluster, workload), workload)


def drawn_step(priced: PricedStep, workload: Workload) -> StepTimeline:
    """The tasks of a step that is priced already.

    Args:
        priced: the priced step of a plan.
        workload: the workload that it was priced for.

    Raises:
        UnsupportedError: its micro-batches differ in size.
    """
    _require_equal_micro_batches(workload)
    estimate, run = priced.estimate, priced.run
    pipelines = [pipeline.columns for pipeline in run.pipelines]
    tables = [columns.schedule.table(columns.p, columns.m, columns.v) for columns in pipelines]
    timeline = simulate(side_by_side(tables), _times_of(pipelines))
    memory = [dict(stage.memory_bytes) for stage in estimate.stages]
    first = list(accumulate((columns.p for columns in pipelines), initial=0))
    sync = run.step.sync
    return StepTimeline(
        estimate=estimate,
        timeline=timeline,
        times=tuple(_first_row(task_times(columns)) for columns in pipelines),
        phases=_phases(
            timeline.worker_end_s,
            [
                ("unequal micro-batches", _waits(pipelines)),
                ("exchanges of unpaired passes", _alone(pipelines)),
                ("gradient sum", sync.gradients_s[0]),
                ("gradients to host", sync.copies_s[0]),
            ],
            {
                worker: float(columns.tied_s[0])
                for columns, low, behind in zip(pipelines, first, first[1:], strict=False)
                for worker in (low, behind - 1)
            },
            [
                ("optimizer", sync.optimizer_s[0]),
                ("weight gather", sync.gather_s[0]),
                ("weights to device", sync.offload_s[0]),
            ],
        ),
        held_bytes=np.array([sum(kinds[kind] for kind in HELD) for kinds in memory]),
        transient_bytes=np.array([kinds["transient"] for kinds in memory]),
        activations=tuple(
            line
            for columns, low in zip(pipelines, first, strict=False)
            for line in _activations(columns, timeline, low)
        ),
        parts_s={
            name: np.concatenate([_of_workers(columns.parts_s.get(name), columns.p) for columns in pipelines])
            for name in dict.fromkeys(name for columns in pipelines for name in columns.parts_s)
        },
    )


def _require_equal_micro_batches(workload: Workload) -> None:
    if workload.sequence_lengths and workload.packing == DYNAMIC:
        why, fix = "micro-batches that differ in size are priced, not drawn", "use --packing pack"
        raise UnsupportedError(what=f"packing {DYNAMIC}", why=why, fix=fix, field="packing", code="MW406")


def _of_workers(seconds: Float[np.ndarray, "plans workers"] | None, p: int) -> Float[np.ndarray, " workers"]:
    return np.zeros(p) if seconds is None else np.broadcast_to(seconds[0], (p,))


def _waits(pipelines: Sequence[PipelineColumns]) -> Float[np.ndarray, " workers"]:
    """What workers wait for micro-batches of more pairs than the drawn ones have."""
    return np.concatenate([np.full(columns.p, columns.waits_s[0]) for columns in pipelines])


def _times_of(pipelines: Sequence[PipelineColumns]) -> Times:
    """Durations of all workers, one pipeline behind the other."""
    if len(pipelines) == 1:
        return _first_row(task_times(pipelines[0]))
    each = [_first_row(task_times(columns)) for columns in pipelines]
    chunks = max(columns.forward_s.shape[-1] for columns in pipelines)

    def stacked(name: str) -> Float[np.ndarray, "workers chunks"] | None:
        found = [getattr(times, name) for times in each]
        if all(seconds is None for seconds in found):
            return None
        whole = [
            np.zeros_like(times.forward_s) if seconds is None else seconds
            for times, seconds in zip(each, found, strict=True)
        ]
        return np.concatenate([np.pad(seconds, ((0, 0), (0, chunks - seconds.shape[1]))) for seconds in whole])

    return Times(
        forward_s=np.asarray(stacked("forward_s")),
        backward_s=np.asarray(stacked("backward_s")),
        transfer_s=np.asarray(stacked("transfer_s")),
        weight_s=stacked("weight_s"),
        recompute_s=stacked("recompute_s"),
    )


def _alone(pipelines: Sequence[PipelineColumns]) -> Float[np.ndarray, " workers"]:
    """What exchanges take in the passes that no other one runs beside, where the drawn tasks are those of pairs."""
    return np.concatenate([np.full(columns.p, columns.alone_s[0].max()) for columns in pipelines])


def activation_line(
    timeline: Timeline,
    worker: int,
    kept_bytes: Float[np.ndarray, " chunks"],
    made_bytes: Float[np.ndarray, " chunks"] | None = None,
) -> ActivationLine:
    """Activations of one worker over time, as its memory is estimated.

    What a forward keeps lives from its start to the end of the backward. Where the backward is split, the input
    gradient frees it and leaves what the weight gradient needs; a recomputation adds to it until the backward ends.

    Args:
        timeline: the timeline when the tasks run.
        worker: the worker from 0.
        kept_bytes: the kept bytes of a forward in each chunk.
        made_bytes: the made bytes of a recomputation, or between input and weight gradient; None where tasks do
            neither.
    """
    table = timeline.table
    own = slice(table.first[worker], table.first[worker + 1])
    kind, chunk = table.kind[own], table.chunk[own]
    made = np.zeros_like(kept_bytes) if made_bytes is None else made_bytes
    of_kind = np.zeros((len(Kind), len(kept_bytes)))
    of_kind[Kind.F], of_kind[Kind.R] = kept_bytes, made
    of_kind[Kind.I], of_kind[Kind.W] = made - kept_bytes, -made
    of_kind[Kind.B] = -kept_bytes
    if made_bytes is None:
        of_kind[Kind.I], of_kind[Kind.W] = 0.0, -kept_bytes
    change = of_kind[kind, chunk]
    if Kind.R in table.kinds:
        again = table.at[Kind.R][table.stage[own], table.micro_batch[own]] >= 0
        change -= np.where((kind == Kind.B) & again, made[chunk], 0.0)
    changes = np.flatnonzero(change)
    begins = (kind == Kind.F) | (kind == Kind.R)
    # A worker's tasks follow each other, so their order is exact where their times are equal but for rounding.
    at_s = np.maximum.accumulate(np.where(begins, timeline.start_s[own], timeline.end_s[own])[changes])
    return ActivationLine(at_s=at_s, live_bytes=np.maximum(np.cumsum(change[changes]), 0.0))


def _activations(columns: PipelineColumns, timeline: Timeline, first: int) -> tuple[ActivationLine, ...]:
    """Activations of a pipeline's workers, from worker `first` on; what a worker parks with its partner lies there."""
    kept = columns.kept_bytes[0]
    made = [None] * columns.p if columns.made_bytes is None else list(columns.made_bytes[0])
    lines = [activation_line(timeline, first + own, kept[own], made[own]) for own in range(columns.p)]
    if columns.p > 1 and not columns.schedule.pairs_passes:
        # Where forwards and backwards run together, one forward more is under way than in the order that is drawn.
        more = kept.max(axis=1) * (columns.alone_s[0] > 0)
        lines = [
            replace(line, live_bytes=np.where(line.live_bytes > 1.0, line.live_bytes + bytes_, line.live_bytes))
            for line, bytes_ in zip(lines, more, strict=True)
        ]
    limits, guests = columns.schedule.parked(columns.p, columns.m).T
    if not guests.any():
        return tuple(lines)
    most_bytes = limits * kept.sum(axis=1)
    return tuple(
        _together(
            replace(line, live_bytes=np.minimum(line.live_bytes, most)),
            replace(other, live_bytes=np.maximum(other.live_bytes - parked_beyond, 0.0)),
        )
        for line, most, other, parked_beyond in zip(lines, most_bytes, lines[::-1], most_bytes[::-1], strict=True)
    )


def _together(own: ActivationLine, guests: ActivationLine) -> ActivationLine:
    """The sum of two lines."""
    at_s = np.union1d(own.at_s, guests.at_s)
    total = np.zeros(len(at_s))
    for line in (own, guests):
        last = np.searchsorted(line.at_s, at_s, side="right") - 1
        total += np.where(last >= 0, line.live_bytes[np.maximum(last, 0)], 0.0)
    return ActivationLine(at_s=at_s, live_bytes=total)


def _first_row(times: Times) -> Times:
    """The first set of durations."""
    columns = {field.name: getattr(times, field.name) for field in fields(times)}
    return replace(times, **{name: c[0] for name, c in columns.items() if isinstance(c, np.ndarray)})


def _phases(
    end_s: Float[np.ndarray, " workers"],
    own: list[tuple[str, Float[np.ndarray, " workers"]]],
    tied_s: dict[int, float],
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
    for worker, shared_s in tied_s.items():
        run(worker, "tied embeddings", all_s, shared_s)
    at_s = [all_s + max(tied_s.values())] * workers
    for worker in range(workers):
        for name, seconds in after_all:
            at_s[worker] = run(worker, name, at_s[worker], float(seconds[worker]))
    return tuple(found)
