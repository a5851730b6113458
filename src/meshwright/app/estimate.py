"""One plan priced: time, memory, breakdown. Nothing is searched."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.app.plan_set import PlanSet, ranked
from meshwright.app.requests.estimate import EstimateRequest
from meshwright.errors import InputError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import inexact
from meshwright.planning.job_inputs import job_fields
from meshwright.planning.offload import host_assumptions
from meshwright.planning.plan_source import PlanLike, plan_question
from meshwright.planning.reason import Reason, idle_reason
from meshwright.planning.reasons import plan_reasons
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import run_sentence, sentence, verdict_of
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:
    from meshwright.app.schedules_of_plan import ScheduleComparison


def estimate(request: EstimateRequest) -> PlanSet | ScheduleComparison:
    """Price one plan.

    Returns:
        A plan set of one plan and no search, whether the plan fits or not; with schedules, the plan under each.

    Raises:
        InputError: the plan is not legal, or anything is malformed or contradictory, all problems together.
        UnsupportedError: an unknown name, or a plan that no model prices.
    """
    job, workload = request.job, request.workload
    if workload is not None:
        asked = job_fields(None, None, workload)
        job = replace(
            asked,
            model=job.model,
            cluster=job.cluster,
            gpus=job.gpus,
            tokens_per_step=job.tokens_per_step,
            price=job.price,
            host_ram=job.host_ram,
            nvme=job.nvme,
            pcie=job.pcie,
            calibration=workload.calibration if job.calibration is None else job.calibration,
        )
    if request.schedule:
        from meshwright.app.schedules_of_plan import schedules_of_plan

        return schedules_of_plan(request.plan, job, schedules=request.schedule)
    return estimate_one(request.plan, job)


def estimate_one(plan: PlanLike | ExecutionPlan | PlanRow, job: JobFields) -> PlanSet:
    """One plan as `estimate` answers it."""
    question = plan_question(plan, job)
    if question.plan is None:
        raise InputError(question.problems, code="MW231")
    return priced_set(question.job, question.inputs.assumptions, question.warnings)


def priced_set(job: Job, assumptions: tuple[Assumption, ...] = (), warnings: tuple[str, ...] = ()) -> PlanSet:
    """A job as an answer of one plan."""
    priced = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    only = ranked(job, priced)
    run = whole_run(job, priced)
    warnings = (*warnings, *inexact(line.schedule.name for line in job.plan.pipelines if len(line.workers) > 1))
    if job.plan.devices < job.cluster.devices:
        warnings = (*warnings, reason_text(idle_reason(job.plan.devices, job.cluster.devices, "plan")))
    return PlanSet(
        model=job.model,
        cluster=job.cluster,
        workload=job.workload,
        assumptions=(*assumptions, *host_assumptions(job.cluster, priced)),
        verdict=verdict_of(
            sentence(job, priced) + (f" {run_sentence(run)}." if run else ""),
            (Reason.of("identity", text=only.identities()[0]), *plan_reasons(job, priced, None)),
        ),
        plans=(only,),
        warnings=(*warnings, *only.rank_map().warnings),
        run=run,
    )
