"""The best plans of a model on a cluster, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from meshwright.app.plans.plan_set import PlanSet, RankedPlan, runner_up
from meshwright.app.requests.plan import PlanRequest
from meshwright.budget import spent
from meshwright.errors import InfeasibleError, Problem
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.fields.limits import stopped_warning
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import inexact
from meshwright.planning.objectives import QUICKEST, Aim, aim_of
from meshwright.planning.one_kind import BestPlans
from meshwright.planning.one_kind_plans import OneKindPlans, one_kind_plans, pinned_notes, target_note
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.planning.rank_map import rank_map
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons, price_reasons
from meshwright.planning.reserve import reserve_reason
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.identities import identities
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import plan_sentence, run_sentence, verdict_of
from meshwright.search.watching import part
from meshwright.specs.job import Job
from meshwright.units import percent

if TYPE_CHECKING:
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.under_trainers import Searched, UnderTrainer
    from meshwright.specs.cluster import ClusterSpec


OWN_SHARE = 0.3
"""About how much of a search the answer itself takes, where the best plan of each trainer is looked for, too."""


def plan_job(request: PlanRequest, *, trainers: bool = True) -> PlanSet:
    """The best plans of a model on a cluster, one per layout of degrees, with verdict, runner-up and certificate.

    Args:
        request: the question.
        trainers: whether to ask who runs the best plan on one kind of device, on few devices for the best of each
            trainer.

    Raises:
        InputError: malformed or contradictory input, all problems together.
        UnsupportedError: an unknown model, device, dtype, optimizer or target.
        InfeasibleError: no plan fits, or none keeps to the limits; says which constraint binds and what would help.
    """
    inputs, aim = job_inputs(priced_fields(request)), aim_of(request.aim)
    aim = aim.of_run(inputs.workload, inputs.cluster.devices)
    left_out, warnings = tuple[Problem, ...](), tuple[str, ...]()
    if not inputs.cluster.homogeneous:
        from meshwright.planning.usable_islands import left_out_note, usable_islands

        inputs, left_out = usable_islands(inputs, request.tolerance)
        warnings = tuple(map(left_out_note, left_out))
        if inputs.cluster.homogeneous:
            request = replace(request, job=_as_planned(request.job, inputs))
    try:
        answer = _answer(inputs, request, aim, trainers=trainers)
    except InfeasibleError as none:
        none.add(left_out)
        raise
    return replace(answer, warnings=(*warnings, *answer.warnings))


def _as_planned(job: JobFields, inputs: JobInputs) -> JobFields:
    """The question over the one kind of device that its groups are planned as, with the same batch."""
    batch = inputs.workload.global_batch
    return replace(job, cluster=inputs.cluster, gpus=None, global_batch=batch, tokens_per_step=None)


def _answer(inputs: JobInputs, request: PlanRequest, aim: Aim, *, trainers: bool) -> PlanSet:
    alone = request.target is None and inputs.model.lora is not None
    if alone and not request.parallelizer and not inputs.cluster.homogeneous:
        from meshwright.app.plans.mixed_trainers import plan_mixed_trainers

        return plan_mixed_trainers(inputs, request, aim)
    if request.parallelizer or not inputs.cluster.homogeneous:
        return _mixed(inputs, request, aim)
    if alone:
        return _fine_tuning(inputs, request, aim)
    asks = trainers and request.target is None
    with part(OWN_SHARE if asks and _tries_trainers(inputs) else 1.0):
        answer = _of_one_kind(inputs, request, aim)
    return with_trainers(answer, inputs, request.job, request.space, aim, top=request.top) if asks else answer


def _mixed(inputs: JobInputs, request: PlanRequest, aim: Aim) -> PlanSet:
    """The best plans on several kinds of device; where nothing fits, repairs as trainers run them."""
    from meshwright.app.plans.mixed import plan_mixed
    from meshwright.planning.repair.no_plan import NoPlanError

    try:
        return plan_mixed(inputs, request, aim)
    except NoPlanError as error:
        if request.target is not None or request.parallelizer:
            raise
        from meshwright.app.plans.mixed_trainers import trained_repairs

        raise trained_repairs(error, request, aim) from None


def _of_one_kind(inputs: JobInputs, request: PlanRequest, aim: Aim) -> PlanSet:
    """The best plans on one kind of device, of the target where one is named."""
    # The runner-up of the answer is the second plan, however few are shown.
    top, target, pareto = max(request.top, 2), request.target, request.pareto
    found = one_kind_plans(inputs, request.space, aim, top=top, target=target, pareto=pareto)
    return plan_set(inputs, found, top=request.top, aim=aim, target=target)


def _tries_trainers(inputs: JobInputs) -> bool:
    """Whether the best plan of each trainer is looked for beside the answer: on few devices."""
    from meshwright.planning.run_by import few  # loads the targets

    return few(inputs.cluster) and not inputs.software_given


def with_trainers(
    answer: PlanSet,
    inputs: JobInputs,
    job: JobFields,
    limits: SpaceFields,
    aim: Aim,
    *,
    top: int,
    usual_devices: int | None = None,
    launched: bool = True,
) -> PlanSet:
    """The answer with who runs it; on few devices beside the best plan of each, unless the framework is stated.

    Args:
        answer: plans on one kind of device.
        inputs: what they are for.
        job: the same as it was asked.
        limits: pinned and forbidden axes, and schedules.
        aim: what the plans are ordered by, and limits of time and price.
        top: how many plans are shown.
        usual_devices: the number of usual devices for whose number a batch that nobody gave is chosen; None for those
            of the cluster.
        launched: whether plans that a framework runs may stand for an answer that none runs, where they tie with it.
    """
    from meshwright.planning.run_by import asked_about, run_and_hold, run_by, run_by_reason  # loads the targets

    jobs = [one.job for one in answer.plans if isinstance(one.job, Job)]
    own_memory = not inputs.software_given and _tries_trainers(inputs)
    able = any((run_and_hold if own_memory else run_by)(job) for job in jobs[:1])
    found: tuple[UnderTrainer, ...] = ()
    best = None
    if not inputs.software_given and (_tries_trainers(inputs) or not (able or spent())):
        from meshwright.planning.under_trainers import best_trainer, under_trainers

        names = asked_about(inputs.cluster)
        search = partial(under_trainers, job, limits, aim, top=max(top, 2), usual_devices=usual_devices)
        if _tries_trainers(inputs):
            found = search(names, best_alone=True)
            best = best_trainer(found, aim)
        else:
            best = _quickest_launched(answer, search, aim, names)
        if launched and best is not None and not able and _ties(best, answer, aim):
            answer = _launched(answer, best, search, aim, top=top)
            known = {note.name for note in answer.assumptions}
            others = (note for note in inputs.assumptions if note.name not in known)
            answer = replace(answer, assumptions=(*answer.assumptions, *others))
            jobs = [one.job for one in answer.plans if isinstance(one.job, Job)]
    # The answer itself is what a trainer of the same software would run.
    if best is not None and best.inputs.workload.software == inputs.workload.software:
        best = None if best.trainer in run_by(jobs[0]) else best
    best_row = None if best is None else {"title": best.title, **best.table_row.to_dict()}
    verdict = answer.verdict
    reasons = (*verdict.reasons, run_by_reason(jobs, searched=bool(found), best=best_row))
    verdict = verdict_of(verdict.text, reasons, verdict.runner_up)
    return replace(answer, trainers=tuple(one.plan for one in found), verdict=verdict)


def _quickest_launched(
    answer: PlanSet, search: Callable[..., tuple[UnderTrainer, ...]], aim: Aim, names: Sequence[str]
) -> Searched | None:
    """The trainer with the quickest plan of its own; the first whose plan ties with the answer, which none runs."""
    from meshwright.planning.under_trainers import best_trainer

    found = search(names, best_alone=True, enough=lambda best: _ties(best, answer, aim))
    return best_trainer(found, aim)


def _ties(best: Searched, answer: PlanSet, aim: Aim) -> bool:
    """Whether the best plan that a trainer runs is about as quick as the answer, and leaves as much memory free.

    Only under the same software, or the plan's name alone would be priced otherwise than in the answer.
    """
    from meshwright.planning.for_target import TIE

    quickest, own = answer.plans[0].estimate, best.plans.found.result.plans[0].estimate
    within = quickest.step_time_s * (1.0 + min(TIE, quickest.tie))
    roomy = own.fits == "yes" or quickest.fits != "yes"  # no memory is given up for it
    job = answer.plans[0].job
    alike = isinstance(job, Job) and best.inputs.workload.software == job.workload.software
    return aim == QUICKEST and alike and roomy and own.step_time_s <= within


def _launched(
    answer: PlanSet, best: Searched, search: Callable[..., tuple[UnderTrainer, ...]], aim: Aim, *, top: int
) -> PlanSet:
    """The plans that a trainer runs, for an answer that ties with their best and that no framework runs."""
    from meshwright.planning.under_trainers import best_trainer

    whole = search((best.trainer,), pareto=bool(answer.pareto))
    best = best_trainer(whole, aim) or best  # the first search looked for its best plan alone
    quickest, own = answer.plans[0], best.plans.found.result.plans[0].estimate
    lost = own.step_time_s / quickest.estimate.step_time_s - 1.0
    beside = f"predicted {percent(lost)} quicker" if lost > 0.0005 else "predicted as quick"
    other = quickest.name or "a plan of unequal parts"
    said = f"{best.title} runs it as it is; {other} is {beside}, and no framework known here runs it"
    plans = replace(best.plans, chosen=Assumption(name="chosen", value=said, basis="assumed"))
    return plan_set(best.inputs, plans, top=top, aim=aim)


def fine_tuned(
    job: JobFields,
    limits: SpaceFields,
    aim: Aim,
    *,
    top: int,
    pareto: bool = False,
    usual_devices: int | None = None,
) -> tuple[PlanSet | None, tuple[UnderTrainer, ...]]:
    """The best plans of adapters that a trainer runs, priced as it runs them, beside the best of each other trainer.

    Args:
        job: the question, on one kind of device, with adapters.
        limits: pinned and forbidden axes, and schedules.
        aim: what the plans are ordered by, and limits of time and price.
        top: how many plans to keep.
        pareto: whether to find the front.
        usual_devices: the number of usual devices for whose number a batch that nobody gave is chosen; None for those
            of the cluster.

    Returns:
        The answer, None where no trainer runs a plan that fits; and what each trainer found.
    """
    from meshwright.planning.under_trainers import best_trainer, trainer_reason, under_trainers
    from meshwright.targets import FINE_TUNING

    tried = under_trainers(job, limits, aim, FINE_TUNING, top=max(top, 2), pareto=pareto, usual_devices=usual_devices)
    best = best_trainer(tried, aim)
    if best is None:
        return None, tried
    answer = plan_set(best.inputs, best.plans, top=top, aim=aim, target=best.trainer)
    named = trainer_reason(best.title, [one.plan.trainer for one in tried], job)
    verdict = answer.verdict
    verdict = verdict_of(verdict.text, (*verdict.reasons, named), verdict.runner_up)
    return replace(answer, trainers=tuple(one.plan for one in tried), verdict=verdict), tried


def _fine_tuning(inputs: JobInputs, request: PlanRequest, aim: Aim) -> PlanSet:
    """The answer of the best trainer; what fits nowhere as an error, and what no trainer runs as of no framework."""
    answer, tried = fine_tuned(request.job, request.space, aim, top=request.top, pareto=request.pareto)
    if answer is not None:
        return answer
    from meshwright.planning.under_trainers import no_trainer

    if none_fits := no_trainer(tried, inputs, request.space):
        raise none_fits
    answer = _of_one_kind(inputs, request, aim)
    none = "no trainer known here runs a plan of this question; what each lacks is listed under Trainers"
    if inputs.software_given:
        none = f"priced as {inputs.workload.software} runs it, as stated; {none}"
    return replace(answer, trainers=tuple(one.plan for one in tried), warnings=(none, *answer.warnings))


def priced_fields(request: PlanRequest) -> JobFields:
    """Fields of the job, with the framework of the target."""
    if request.target is None:
        return request.job
    from meshwright.planning.for_target import priced_as

    return priced_as(request.job, request.target)


def plan_set(
    inputs: JobInputs, one_kind: OneKindPlans, *, top: int, aim: Aim = QUICKEST, target: str | None = None
) -> PlanSet:
    """The answer made of what a search found.

    Args:
        inputs: the question.
        one_kind: the plans of one kind, at least one; the second is the runner-up.
        top: how many plans to keep.
        aim: what they are ordered by.
        target: framework whose plans were searched.
    """
    found, result = one_kind.found, one_kind.found.result
    plans = tuple(
        RankedPlan(rank=rank, job=found.job(plan, inputs.model, inputs.workload), row=plan.row, estimate=plan.estimate)
        for rank, plan in enumerate(result.plans, start=1)
    )
    best, job = plans[0], found.job(result.plans[0], inputs.model, inputs.workload)
    run = whole_run(best.job, best.estimate)
    text = plan_sentence(best.job, best.estimate) + (f" {run_sentence(run)}." if run else "")
    other = next((plan for plan in plans[1:] if plan.layout != best.layout), None)
    return PlanSet(
        model=inputs.model,
        cluster=inputs.cluster,
        workload=inputs.workload,
        assumptions=(
            *inputs.assumptions,
            *_notes(one_kind, aim, target),
            *_of_hosts(inputs.cluster, best.estimate),
        ),
        verdict=verdict_of(text, _reasons(one_kind, job, aim), runner_up(best, other, aim)),
        plans=plans[:top],
        certificate=result.certificate,
        pareto=one_kind.front,
        aim=aim,
        warnings=tuple(_warnings(found, plans)),
        run=run,
    )


def _of_hosts(cluster: ClusterSpec, estimate: StepPrice) -> Iterator[Assumption]:
    """What a plan takes of its hosts that nobody stated; few plans take anything."""
    if any(stage.host_bytes or stage.disk_bytes for stage in estimate.stages):
        from meshwright.planning.axes.offload import host_assumptions

        yield from host_assumptions(cluster, estimate)


def _notes(one_kind: OneKindPlans, aim: Aim, target: str | None) -> Iterator[Assumption]:
    """What narrowed the search, and the rule of the objective."""
    if one_kind.space is not None:
        yield from pinned_notes(one_kind.space)
    if aim.by.rule:
        yield Assumption(name="objective", value=f"{aim.objective}: {aim.by.rule}", basis="assumed")
    if target:
        yield target_note(target)
    if one_kind.chosen is not None:
        yield one_kind.chosen


def _reasons(one_kind: OneKindPlans, job: Job, aim: Aim) -> Iterator[Reason]:
    """Why the best plan is the answer."""
    result, space = one_kind.found.result, one_kind.space
    best = result.plans[0]
    yield Reason.of("identity", text=identities(job, best.row)[0])
    yield from plan_reasons(job, best.estimate, result.certificate, aim.objective)
    yield from price_reasons(job, best.estimate, aim)
    if space is not None and aim.by.exact and not result.relaxed:
        kept_out = reserve_reason(job, best.row, best.estimate, space)
        if kept_out:
            yield kept_out


def _warnings(found: BestPlans, plans: tuple[RankedPlan, ...]) -> Iterator[str]:
    """Tight memory, idle devices, groups that leave their domain, schedules that change the gradient."""
    if found.result.certificate.stopped:
        yield stopped_warning(found.result.certificate.stopped)
    if found.result.relaxed:
        yield "no plan leaves 8% of the memory free; these leave less"
    if found.idle:
        yield reason_text(found.idle)
    yield from rank_map(plans[0].job).warnings
    yield from inexact(plan.row.schedule for plan in plans if plan.row is not None and plan.row.pp > 1)
