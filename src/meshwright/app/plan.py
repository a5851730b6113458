"""The best plans of a model on a cluster, with the reasons."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from meshwright.app.plan_set import PlanSet, RankedPlan
from meshwright.app.requests.plan import PlanRequest
from meshwright.formats.cluster import Assumption
from meshwright.library.calibration import calibration as calibration_of
from meshwright.planning.axes import inexact, space_of, target_rule
from meshwright.planning.job_inputs import JobInputs, job_inputs
from meshwright.planning.objectives import QUICKEST, Aim, aim_of
from meshwright.planning.one_kind import Found, find_best, restricted
from meshwright.planning.rank_map import rank_map
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons, price_reasons
from meshwright.planning.reserve import reserve_reason
from meshwright.planning.unequal import with_unequal
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import RunnerUp, run_sentence, sentence, verdict_of
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    from meshwright.search.front import FrontPlan


def plan(request: PlanRequest) -> PlanSet:
    """The best plans of a model on a cluster, one per layout of degrees, with verdict, runner-up and certificate.

    Raises:
        InputError: malformed or contradictory input, all problems together.
        UnsupportedError: an unknown model, device, dtype, optimizer or target.
        InfeasibleError: no plan fits, or none keeps to the limits; says which constraint binds and what would help.
    """
    inputs, left_out = job_inputs(request.job), tuple[str, ...]()
    aim = aim_of(request.aim).of_run(inputs.workload)
    top, limits, target, pareto = request.top, request.space.keywords(), request.target, request.pareto
    if not inputs.cluster.homogeneous:
        from meshwright.planning.usable_islands import usable_islands

        inputs, left_out = usable_islands(inputs, request.tolerance)
    if request.parallelizer or not inputs.cluster.homogeneous:
        from meshwright.app.plan_mixed import check_mixed, plan_mixed
        from meshwright.planning.compose.sources.parallelizers.registry import parallelizers_named

        named = parallelizers_named(request.parallelizer) if request.parallelizer else ()
        check_mixed(pareto=pareto, by="--parallelizer" if named else "several groups of nodes")
        mixed = plan_mixed(inputs, parallelizers=named, top=top, aim=aim, target=target, **limits)
        return replace(mixed, warnings=(*left_out, *mixed.warnings))
    spec, workload, refuses = inputs.model, inputs.workload, target_rule(target)

    def space_for(part: ClusterSpec) -> Space:
        space = space_of(spec, workload, part.devices, **limits)
        return restricted(space, spec, part, workload, refuses) if refuses else space

    space = space_for(inputs.cluster)
    found = find_best(spec, inputs.cluster, workload, space_for, aim, top=max(top, 2), refuses=refuses, pareto=pareto)
    if aim == QUICKEST and refuses is None and not pareto:
        found = with_unequal(inputs, found, space_for, top=max(top, 2))
    if not found.result.plans:
        from meshwright.planning.repair.no_plan import no_plan

        raise no_plan(spec, inputs.cluster, workload, space_for, found)
    if calibration_of(workload.calibration).run is not None and aim.by.exact:
        found = _measured_again(found)
    front: tuple[FrontPlan, ...] = ()
    if pareto:
        from meshwright.search.front import device_front

        front = device_front(spec, found.cluster, workload, space_for, found.result)
    notes = _space_notes(space, target, aim)
    answer = plan_set(inputs, found, top=top, aim=aim, notes=notes, front=front, space=space)
    return replace(answer, warnings=(*left_out, *answer.warnings))


def plan_set(
    inputs: JobInputs,
    found: Found,
    *,
    top: int,
    aim: Aim = QUICKEST,
    notes: tuple[Assumption, ...] = (),
    front: tuple[FrontPlan, ...] = (),
    space: Space | None = None,
) -> PlanSet:
    """The answer made of what a search found.

    Args:
        inputs: the question.
        found: at least one plan; the second is the runner-up.
        top: how many plans to keep.
        aim: what they were ordered by.
        notes: further assumptions.
        front: plans that no other beats in time, memory, devices and cost, if asked for.
        space: what was searched; with it the reasons say what the memory reserve keeps out.
    """
    job = partial(found.job, model=inputs.model, workload=inputs.workload)
    plans = tuple(
        RankedPlan(rank=rank, job=job(plan), row=plan.row, estimate=plan.estimate)
        for rank, plan in enumerate(found.result.plans, start=1)
    )
    best, first, certificate = plans[0], found.result.plans[0], found.result.certificate
    where = rank_map(best.job)
    warnings = [reason_text(found.idle)] if found.idle else []
    warnings += where.warnings
    if found.result.relaxed:
        warnings.insert(0, "no plan leaves 8% of the memory free; these leave less")
    warnings += inexact(plan.row.schedule for plan in plans if plan.row is not None and plan.row.pp > 1)
    run = whole_run(best.job, best.estimate)
    why = [Reason.of("identity", text=best.identities()[0])]
    why += plan_reasons(best.job, best.estimate, certificate, aim.objective)
    why += price_reasons(best.job, best.estimate, aim)
    if space is not None and aim.by.exact and not found.result.relaxed:
        kept_out = reserve_reason(job(first), first.row, first.estimate, space)
        why += [kept_out] if kept_out else []
    text = sentence(best.job, best.estimate) + (f" {run_sentence(run)}." if run else "")
    return PlanSet(
        model=inputs.model,
        cluster=inputs.cluster,
        workload=inputs.workload,
        assumptions=(*inputs.assumptions, *notes),
        verdict=verdict_of(text, why, _runner_up(plans, aim)),
        plans=plans[:top],
        certificate=certificate,
        pareto=front,
        aim=aim,
        warnings=tuple(warnings),
        run=run,
    )


def _measured_again(found: Found) -> Found:
    """Ordered once more: the plan whose own step was measured stands where the measurement puts it."""
    plans = tuple(sorted(found.result.plans, key=lambda plan: plan.estimate.step_time_s))
    return replace(found, result=replace(found.result, plans=plans))


def _runner_up(plans: tuple[RankedPlan, ...], aim: Aim) -> RunnerUp | None:
    """The best plan of another layout."""
    best = plans[0]
    other = next((p for p in plans[1:] if p.layout != best.layout), None)
    if other is None:
        return None
    because = reason_text(aim.by.difference(best.estimate, other.estimate))
    time_s = other.estimate.step_time_s
    return RunnerUp(name=other.name, title=other.title, step_time_s=time_s, loses_because=because)


def _space_notes(space: Space, target: str | None, aim: Aim) -> tuple[Assumption, ...]:
    """What narrows the search."""
    notes = [
        Assumption(name=f"only {axis}", value=", ".join(map(str, values)), basis="assumed")
        for axis, values in space.pins
        if len(values) <= 8
    ]
    if aim.by.rule:
        notes.append(Assumption(name="objective", value=f"{aim.objective}: {aim.by.rule}", basis="assumed"))
    if target:
        notes.append(Assumption(name="target", value=f"plans that {target} can run", basis="assumed"))
    return tuple(notes)
