"""One plan priced: time, memory, breakdown. Nothing is searched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.plans.plan_set import PlanSet, ranked
from meshwright.app.requests.estimate import EstimateRequest
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.gather import Gather
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.library.calibration import calibration
from meshwright.planning.axes import inexact
from meshwright.planning.axes.offload import host_assumptions
from meshwright.planning.carried_plan import OF_THE_STEP
from meshwright.planning.one_kind_plans import target_note
from meshwright.planning.plan_source import PlanLike, plan_question, question_beside_trainers
from meshwright.planning.question.job_inputs import JobInputs, job_fields
from meshwright.planning.reason import Reason, idle_reason
from meshwright.planning.reasons import plan_reasons
from meshwright.planning.schedules_of_plan import ScheduledPlan, schedules_of_plan
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import plan_sentence, run_sentence, verdict_of
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from meshwright.units import percent, seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScheduleComparison(Answer):
    """A plan under several schedules, quickest first, refused ones last."""

    row: PlanRow
    plans: tuple[ScheduledPlan, ...]
    inputs: JobInputs

    @property
    def text(self) -> str:
        """One sentence."""
        times_s = {plan.schedule: plan.estimate.step_time_s for plan in self.plans if plan.estimate is not None}
        best, own = next((plan.schedule for plan in self.plans if _exact_and_fits(plan)), None), self.row.schedule
        if best is None:
            return f"no schedule with exact semantics lets {self.row.format()} fit"
        lead = f"quickest with exact semantics that fits: {best}, {seconds(times_s[best])} per step"
        if own == best or own not in times_s:
            return lead
        gain = 1.0 - times_s[best] / times_s[own]
        return f"{lead}, {percent(abs(gain))} {'less' if gain >= 0 else 'more'} than {own}"

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration(self.inputs.workload.calibration)

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.schedule-comparison/1`."""
        found = self.inputs
        return {
            "schema": "meshwright.schedule-comparison/1",
            "text": self.text,
            "plan": self.row.format(),
            "schedule": self.row.schedule,
            "schedules": [plan.to_dict() for plan in self.plans],
            "inputs": {
                "model": found.model.describe(),
                "cluster": found.cluster.describe(),
                "workload": found.workload.describe(),
                "assumptions": [{"name": a.name, "value": a.value, "basis": a.basis} for a in found.assumptions],
            },
        }


def _exact_and_fits(plan: ScheduledPlan) -> bool:
    return plan.exact and plan.estimate is not None and plan.estimate.fits != "no"


def estimate(request: EstimateRequest) -> PlanSet | ScheduleComparison:
    """Price one plan.

    Returns:
        A plan set of one plan and no search, whether the plan fits or not; with schedules, the plan under each.

    Raises:
        InputError: the plan is not legal, or anything is malformed or contradictory, all problems together.
        UnsupportedError: an unknown name, or a plan that no model prices.
    """
    job = request.job if request.workload is None else _of_workload(request.job, request.workload)
    if request.schedule:
        row, plans, inputs = schedules_of_plan(request.plan, job, schedules=request.schedule)
        return ScheduleComparison(row=row, plans=plans, inputs=inputs)
    target = request.target
    return estimate_one(request.plan, job) if target is None else _under_target(request.plan, job, target)


def _of_workload(job: JobFields, workload: Workload) -> JobFields:
    """The question whose step is a workload; what is stated of the run or of the model stands beside it.

    Raises:
        InputError: something that the workload states is stated anew.
    """
    gather = Gather()
    beside = ("tokens", "failures")
    for name in (*OF_THE_STEP, "global_batch", "tokens_per_step", "dynamic_cp", "bf16_first", "bf16_last"):
        value = getattr(job, name)
        if value not in (None, False, ()) and name not in beside:
            what, fix = f"both a workload and {name} are given", f"leave {name} out, or change it in the workload"
            gather.problem(Problem(what=what, why="a workload states its whole step", fix=fix, field=name), "MW203")
    gather.done()
    step = job_fields(None, None, workload)
    own = {name: getattr(step, name) for name in (*OF_THE_STEP, "global_batch", "dynamic_cp", "failures", "like")}
    stated = {name: value for name in (*beside, "calibration") if (value := getattr(job, name)) is not None}
    return replace(job, **{**own, "calibration": step.calibration, **stated})


def _under_target(plan: PlanLike | ExecutionPlan | PlanRow, job: JobFields, target: str) -> PlanSet:
    """One plan as a framework runs it.

    Raises:
        UnsupportedError: it cannot, with everything that it lacks.
    """
    from meshwright.planning.for_target import priced_as, refusals_in_search

    question = plan_question(plan, priced_as(job, target))
    if refused := refusals_in_search(target)(question.job):
        raise UnsupportedError(refused, code="MW420")
    return priced_set(question.job, (*question.inputs.assumptions, target_note(target)), question.warnings)


def estimate_one(plan: PlanLike | ExecutionPlan | PlanRow, job: JobFields) -> PlanSet:
    """One plan as `estimate` answers it."""
    question = question_beside_trainers(plan, job)
    if question.plan is None:
        raise InputError(question.problems, code="MW231")
    return replace(priced_set(question.job, question.inputs.assumptions, question.warnings), trainers=question.trainers)


def priced_set(job: Job, assumptions: tuple[Assumption, ...] = (), warnings: tuple[str, ...] = ()) -> PlanSet:
    """A job as an answer of one plan."""
    priced = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    only = ranked(job, priced)
    run = whole_run(job, priced)
    warnings = (
        *warnings,
        *inexact(schedule_of(line.schedule).token for line in job.plan.pipelines if len(line.workers) > 1),
    )
    if job.plan.devices < job.cluster.devices:
        warnings = (*warnings, reason_text(idle_reason(job.plan.devices, job.cluster.devices, "plan")))
    return PlanSet(
        model=job.model,
        cluster=job.cluster,
        workload=job.workload,
        assumptions=(*assumptions, *host_assumptions(job.cluster, priced)),
        verdict=verdict_of(
            plan_sentence(job, priced) + (f" {run_sentence(run)}." if run else ""),
            (Reason.of("identity", text=only.identities()[0]), *plan_reasons(job, priced, None)),
        ),
        plans=(only,),
        warnings=(*warnings, *only.rank_map().warnings),
        run=run,
    )
