"""One plan under many pipeline schedules: what each does to its time, bubble and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.legality import row_problems
from meshwright.fields.job import JobFields
from meshwright.planning.axes import schedule_names
from meshwright.planning.plan_source import PlanLike, plan_question
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.schedules import SCHEDULES, schedule_named
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPlan:
    """The plan under one schedule: an estimate, or why there is none."""

    schedule: str
    row: PlanRow
    """The plan, with the chunks and the recompute that the schedule demands."""
    estimate: StepEstimate | None
    refused: str = ""

    @property
    def exact(self) -> bool:
        """Whether a step computes exactly the gradient of its batch with one version of the weights."""
        return schedule_named(self.schedule).exact_semantics

    def to_dict(self) -> dict[str, object]:
        """As data."""
        found = self.estimate
        parts = dict(found.breakdown_s) if found else {}
        return {
            "schedule": self.schedule,
            "plan": self.row.format(),
            "exact_semantics": self.exact,
            "step_time_s": found.step_time_s if found else None,
            "bubble_s": parts.get("bubble"),
            "pp_s": parts.get("pp"),
            "peak_memory_bytes": found.fullest.peak_memory_bytes if found else None,
            "capacity_bytes": found.fullest.capacity_bytes if found else None,
            "fits": found.fits if found else None,
            "refused": self.refused or None,
        }


def schedules_of_plan(
    plan: PlanLike | ExecutionPlan | PlanRow, job: JobFields, *, schedules: Iterable[str] = ("all",)
) -> tuple[PlanRow, tuple[ScheduledPlan, ...], JobInputs]:
    """Price one plan under several schedules.

    A schedule that cannot run the plan's chunks per worker, or wants its layers recomputed, gets the nearest that it
    can; the table shows the plan that was priced.

    Args:
        plan: the plan as `estimate` takes it; one that a single line can say.
        job: model, cluster and workload.
        schedules: names of `schedule list`, or `all`; the plan's own is always there.

    Returns:
        The plan as a row; it under each schedule, quickest first, refused ones last; the job.

    Raises:
        InputError: malformed input, a plan of one worker, or one that needs more than a line.
        UnsupportedError: an unknown name.
    """
    names = schedule_names(schedules, refused=True)
    question = plan_question(plan, job)
    row = question.row
    if row is None or row.pp == 1:
        raise InputError(_no_pipeline(row), code="MW233")
    whole = sorted({*names, row.schedule}, key=lambda name: ([*SCHEDULES, name].index(name), name))
    found = [_scheduled(row, name, question.inputs) for name in whole]

    def place(plan: ScheduledPlan) -> tuple[bool, float]:
        return plan.estimate is None, plan.estimate.step_time_s if plan.estimate else 0.0

    return row, tuple(sorted(found, key=place)), question.inputs


def _no_pipeline(row: PlanRow | None) -> Problem:
    if row is None:
        why = "its layers differ in more than a line says, and the schedule decides which worker holds which"
        return Problem(what="the plan's schedule cannot be changed", why=why, fix="give a one-line plan", field="plan")
    return Problem(
        what=f"{row.format()} has one worker",
        why="schedules order the work of pipelines; one worker is as quick in any order",
        fix="give a plan with pp2 or more",
        field="plan",
    )


def _scheduled(row: PlanRow, name: str, inputs: JobInputs) -> ScheduledPlan:
    changed = _adapted(replace(row, schedule=name), inputs.model)
    problems = row_problems(changed, inputs.model, inputs.workload.seq_len, inputs.cluster.devices)
    if problems:
        return ScheduledPlan(schedule=name, row=changed, estimate=None, refused=_said(problems))
    try:
        execution = expand(changed, inputs.model, inputs.workload.seq_len)
        estimate = estimate_plan(execution, inputs.model, inputs.cluster, inputs.workload)
    except MeshwrightError as error:
        return ScheduledPlan(schedule=name, row=changed, estimate=None, refused=_said(error.problems))
    return ScheduledPlan(schedule=name, row=changed, estimate=estimate)


def _adapted(row: PlanRow, model: ModelSpec) -> PlanRow:
    """The row with the nearest number of chunks, and the recompute, that its schedule accepts."""
    schedule, m = schedule_named(row.schedule), row.micro_batches
    chunks = [v for v in range(1, model.most_stages // row.pp + 1) if not schedule.problems(row.pp, m, v)]
    if chunks:
        row = replace(row, vpp=min(chunks, key=lambda v: (abs(v - row.vpp), v)))
    if schedule.recomputes_in_tasks and row.recompute != "full":
        row = replace(row, recompute="full", recompute_layers=0)
    return row


def _said(problems: Iterable[Problem]) -> str:
    """What and why of every problem on one line."""
    return "; ".join(f"{p.what}: {p.why}" if p.why else p.what for p in problems)
