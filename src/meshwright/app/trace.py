"""One step of a plan drawn out: a trace for Perfetto and Chrome, a figure for papers, text for terminals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.app.requests.read import TraceRequest
from meshwright.errors import InputError
from meshwright.estimate.timeline import StepTimeline, step_timeline
from meshwright.fields.field import values_of
from meshwright.formats.figure import write_figure
from meshwright.formats.plan_json import PlannedJob
from meshwright.formats.writing import write_file
from meshwright.library.made_with import calibration_of
from meshwright.planning.compose.sources.profiles.timeline import job_timeline
from meshwright.planning.plan_source import PlanLike, measured_plan, plan_question, planned_job
from meshwright.report.picture import MemoryLine, Picture, Span
from meshwright.report.words.measured import folder_notes
from meshwright.report.words.titles import planned_title
from meshwright.specs.calibration import Calibration
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.plan import Worker
from meshwright.units import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


MOST_TASKS = 500_000
"""Most tasks in a trace file: about 400 MB of events unpacked, what a browser's tab holds."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trace(Answer):
    """One step of a plan, task by task."""

    job: PlannedJob
    step: StepTimeline
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Model, plan, seconds."""
        job = self.job
        name = job.profile.name if isinstance(job, MeasuredJob) else job.model.name
        what = f"{name}, {planned_title(job)}"
        return f"{what}: {seconds(self.step.estimate.step_time_s)} per step"

    @cached_property
    def picture(self) -> Picture:
        """The step as every drawing takes it."""
        return _picture(self)

    def chrome(self, *, compress: bool = True) -> bytes:
        """The trace file that Perfetto and Chrome open, gzipped unless told otherwise; equal steps give equal bytes.

        Raises:
            InputError: more tasks than the viewers open.
        """
        from meshwright.report.trace_events import trace_bytes

        tasks = self.step.timeline.table.tasks
        if tasks > MOST_TASKS:
            raise InputError(
                what=f"a trace of {tasks:,} tasks",
                why=f"the viewers open no more than some {MOST_TASKS:,}",
                fix="trace fewer micro-batches, with the same steady state, or draw this one with --svg or --text",
                field="output",
            )
        return trace_bytes(self.picture, compress=compress)

    def svg(self, window: tuple[float, float] | None = None) -> str:
        """The figure.

        Args:
            window: shares of the step between which it is drawn; None for all of it.
        """
        from meshwright.report.timeline_svg import WHOLE, timeline_svg

        return timeline_svg([self.picture], window or WHOLE)

    def memory_snapshot(self) -> bytes:
        """The pickle that PyTorch's memory viewer opens: bytes of every worker over the step.

        Raises:
            InputError: bytes are not known, as in plans of measured layers.
        """
        from meshwright.report.memory_snapshot import snapshot_bytes

        if not self.picture.memory:
            why = "layer profiles do not contain memory over time"
            fix = "leave --memory-snapshot out"
            raise InputError(what="there is no memory to show", why=why, fix=fix, field="memory_snapshot")
        return snapshot_bytes(self.picture)

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration_of(self.job)

    def data(self) -> dict[str, object]:
        """As data: `meshwright.trace/1`, the shares of every stage; the events are in the trace file."""
        estimate = self.step.estimate
        return {
            "schema": "meshwright.trace/1",
            "name": self.job.name,
            "title": self.title,
            "step_time_s": estimate.step_time_s,
            "pipeline_s": self.step.timeline.makespan_s,
            "bubble_makespan": self.step.timeline.bubble_makespan,
            "bubble_span": self.step.timeline.bubble_span,
            "tasks": self.step.timeline.table.tasks,
            "transfers": len(self.picture.transfers.start_s),
            "stages": self._stages(),
            "warnings": list(self.warnings),
        }

    def _stages(self) -> list[dict[str, object]]:
        """Where each stage's seconds of the step go: they sum to it."""
        step_s = self.step.estimate.step_time_s
        rows = []
        for worker, name in enumerate(self.picture.workers):
            own = [phase for phase in self.step.phases if phase.worker == worker]
            shared_s = sum(phase.end_s - phase.start_s for phase in own if phase.communicates)
            update_s = sum(phase.end_s - phase.start_s for phase in own if not phase.communicates)
            busy_s = float(self.step.timeline.busy_s[worker])
            memory = self.picture.memory[worker]
            rows.append(
                {
                    "name": name,
                    "busy_s": busy_s,
                    "data_parallel_s": shared_s,
                    "optimizer_s": update_s,
                    "idle_s": max(step_s - busy_s - shared_s - update_s, 0.0),
                    "peak_memory_bytes": memory.peak_bytes,
                    "capacity_bytes": memory.capacity_bytes,
                }
            )
        return rows

    def __repr__(self) -> str:
        return f"Trace({self.title}, {self.step.timeline.table.tasks:,} tasks)"

    def __rich__(self) -> RenderableType:
        from meshwright.report.trace_page import render_trace

        return render_trace(self.to_dict(), self.picture)

    def _repr_html_(self) -> str:
        return self.svg()


def trace(request: TraceRequest) -> Trace:
    """Simulate one step of a plan and write it down.

    Returns:
        The step; `chrome()` and `svg()` give the files' content.

    Raises:
        InputError: the plan cannot be used, or a file cannot be written.
        UnsupportedError: a plan that no model prices.
    """
    output, svg = request.output, request.svg
    measured = measured_plan(request.plan, values_of(request.job))
    if measured is not None:
        found = trace_of(*measured)
    else:
        question = plan_question(request.plan, request.job)
        found = trace_of(question.job, question.said)
    if output is not None:
        write_file(Path(output), found.chrome(compress=os.fspath(output).endswith(".gz")))
    if svg is not None:
        write_figure(Path(svg), found.svg(request.window))
    if request.memory_snapshot is not None:
        write_file(Path(request.memory_snapshot), found.memory_snapshot())
    return found


def trace_of(plan: PlanLike, warnings: Sequence[str] = ()) -> Trace:
    """One step of a plan that carries its model, cluster and workload; arguments and errors as `trace`."""
    job, more = planned_job(plan)
    if isinstance(job, MeasuredJob):
        return Trace(job=job, step=job_timeline(job), warnings=(*warnings, *more, *folder_notes(job)))
    step = step_timeline(job.plan, job.model, job.cluster, job.workload)
    return Trace(job=job, step=step, warnings=(*warnings, *more, *_without_flush(step)))


def _without_flush(step: StepTimeline) -> tuple[str, ...]:
    """Where steps overlap, a single one drawn with its fill and drain is longer than they take each."""
    alone_s, step_s = max(step.timeline.makespan_s, *(phase.end_s for phase in step.phases)), step.estimate.step_time_s
    if alone_s <= step_s * (1 + 1e-9):
        return ()
    return (f"drawn is one step with fill and drain, {seconds(alone_s)}; steps without a flush take {seconds(step_s)}",)


def _picture(found: Trace) -> Picture:
    """The columns of a step with the names of what runs where."""
    step, plan = found.step, found.job.plan
    table, stages = step.timeline.table, step.estimate.stages
    workers = [worker for pipeline in plan.pipelines for worker in pipeline.workers]
    memory = []
    for number, stage in enumerate(stages):
        memory.append(
            MemoryLine(
                at_s=step.activations[number].at_s,
                activations_bytes=step.activations[number].live_bytes,
                held_bytes=float(step.held_bytes[number]),
                transient_bytes=float(step.transient_bytes[number]),
                capacity_bytes=stage.capacity_bytes,
            )
        )
    return Picture(
        title=found.title,
        timeline=step.timeline,
        workers=tuple(_worker_names(found.job, step)),
        chunks=tuple(
            tuple(_ranges(chunk.layers) for chunk in worker.chunks) + ("",) * (table.v - len(worker.chunks))
            for worker in workers
        ),
        spans=tuple(
            Span(
                worker=phase.worker,
                name=phase.name,
                start_s=phase.start_s,
                end_s=phase.end_s,
                lane="data-parallel" if phase.communicates else "optimizer",
            )
            for phase in step.phases
        ),
        memory=tuple(memory),
        noun="stage",
        islands=tuple(stage.group for stage in stages),
        parts_s=step.parts_s,
    )


def _worker_names(job: PlannedJob, step: StepTimeline) -> Iterator[str]:
    """`stage 0: layers 0-19, 16 x H100`, with the pipeline where there are several."""
    devices = {group.name: group.device.name for group in job.cluster.groups}
    workers = (worker for pipeline in job.plan.pipelines for worker in pipeline.workers)
    for stage, worker in zip(step.estimate.stages, workers, strict=True):
        place = step.estimate.place(stage)
        yield f"{place}: {_layers(worker)}, {worker.num_devices} x {devices[stage.group]}"


def _layers(worker: Worker) -> str:
    """`layers 0-19`, with all chunks of the worker."""
    texts = [_ranges(chunk.layers) for chunk in worker.chunks if chunk.layers]
    if not texts:
        return "no layers"
    shown = texts if len(texts) <= 4 else [*texts[:3], "..."]
    return f"layers {', '.join(shown)}"


def _ranges(layers: Sequence[tuple[int, int]]) -> str:
    return "+".join(f"{first}-{last}" if last > first else str(first) for first, last in layers)
