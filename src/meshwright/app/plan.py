"""The best plans of a model on a cluster, with the reasons."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from meshwright.app.plan_mixed import check_mixed, plan_mixed
from meshwright.app.plan_set import PlanSet, RankedPlan
from meshwright.formats.cluster import Assumption
from meshwright.library.calibration import calibration as calibration_of
from meshwright.planning.axes import check_axes, inexact, space_of, target_rule
from meshwright.planning.compose.sources.parallelizers.registry import Names, parallelizers_named
from meshwright.planning.job_inputs import Count, Gathered, JobInputs, job_inputs
from meshwright.planning.objectives import QUICKEST, Aim, Duration, aim_of
from meshwright.planning.one_kind import Found, check_options, find_best, restricted
from meshwright.planning.rank_map import rank_map
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons, price_reasons
from meshwright.planning.repair.no_plan import no_plan
from meshwright.planning.reserve import reserve_reason
from meshwright.planning.unequal import with_unequal
from meshwright.planning.usable_islands import usable_islands
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import RunnerUp, run_sentence, sentence, verdict_of
from meshwright.search.front import FrontPlan, device_front
from meshwright.search.space import Space
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec


def plan(
    model: ModelSpec | str | os.PathLike[str],
    *,
    cluster: ClusterSpec | str | os.PathLike[str] | None = None,
    gpus: str | None = None,
    seq_len: Count | None = None,
    global_batch: Count | None = None,
    tokens_per_step: Count | None = None,
    dtype: str = "bf16",
    optimizer: str = "adam",
    top: int = 5,
    objective: str | None = None,
    max_step_time: Duration | None = None,
    max_price_per_step: Count | None = None,
    days: Count | None = None,
    max_price: Count | None = None,
    pin: str | Iterable[str] = (),
    forbid: str | Iterable[str] = (),
    schedule: str | Iterable[str] | None = None,
    target: str | None = None,
    tokens: Count | None = None,
    price: float | None = None,
    attention_kernel: str = "flash",
    expert_imbalance: float = 1.0,
    pareto: bool = False,
    tolerance: float | None = None,
    parallelizer: Names | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> PlanSet:
    """The best plans, one per layout of degrees, with verdict, runner-up and certificate.

    Args:
        model: library name, alias, path of a config.json or a folder with one, `-`, or a spec.
        cluster: the path of a cluster file, `64xH100`, or a spec.
        gpus: `64xH100`, instead of `cluster`.
        seq_len: tokens of a sequence; 4,096 or the model's maximum by default.
        global_batch: sequences per step.
        tokens_per_step: instead of `global_batch`; 4,194,304 by default.
        dtype: bf16, fp16, fp8 or fp32.
        optimizer: adam, sgd, ...
        top: how many plans.
        objective: time, the default; memory, the least among plans at most 10% slower than the quickest; or cost, the
            cheapest step on any part of the cluster that is looked at, where links with a price count too.
        max_step_time: that a step may take, in seconds or as `40s`; alone it asks for the cheapest such step.
        max_price_per_step: USD that a step may cost.
        days: that the run may take; needs `tokens`.
        max_price: USD that the run may cost; needs `tokens`.
        pin: axes held to values: `tp=8`, `sharding=z1`.
        forbid: axes left at their plain value, `vpp`, or values left out, `pp=4`, `fsdp`.
        schedule: pipeline schedules that may be used, `all` for the whole catalogue; 1f1b, gpipe and interleaved by
            default.
        target: only plans this framework can run.
        tokens: of the whole run, for days and cost: `15T`.
        price: of one device and hour.
        attention_kernel: flash or materialised.
        expert_imbalance: tokens of the fullest expert rank over the mean.
        pareto: also find the front of time, memory, devices and cost: on all devices to plans 10% slower than the best,
            and the quickest plan of each halving of them; takes longer.
        tolerance: of a cluster of several groups: those whose devices are alike within it, 0.1 for 10%, are planned as
            one island, which counts as the weakest of them.
        parallelizer: who plans slices of the model on equal devices, `native,calculon`, `module:Class` or objects;
            plans are composed of what they answer. Our own search by default.
        calibration: of predictions: a record, or a file that `meshwright calibrate` wrote; the library's by default.

    Returns:
        The plans, best first.

    Raises:
        InputError: malformed or contradictory input, all problems together.
        UnsupportedError: an unknown model, device, dtype, optimizer or target.
        InfeasibleError: no plan fits, or none keeps to the limits; says which constraint binds and what would help.
    """
    gathered = Gathered([])
    gathered.attempt(lambda: check_options(top))
    found_aim = gathered.attempt(
        lambda: aim_of(
            objective,
            max_step_time=max_step_time,
            max_price_per_step=max_price_per_step,
            days=days,
            max_price=max_price,
        )
    )
    refuses = gathered.attempt(lambda: target_rule(target))
    gathered.attempt(lambda: check_axes(pin=pin, forbid=forbid, schedule=schedule))
    named = None
    if parallelizer is not None:
        asked_for = parallelizer
        named = gathered.attempt(lambda: parallelizers_named(asked_for))
    found_inputs = gathered.attempt(
        lambda: job_inputs(
            model,
            cluster=cluster,
            gpus=gpus,
            seq_len=seq_len,
            global_batch=global_batch,
            tokens_per_step=tokens_per_step,
            dtype=dtype,
            optimizer=optimizer,
            attention_kernel=attention_kernel,
            expert_imbalance=expert_imbalance,
            tokens=tokens,
            price=price,
            calibration=calibration,
        )
    )
    if found_inputs is not None and found_aim is not None:
        asked, workload = found_aim, found_inputs.workload
        found_aim = gathered.attempt(lambda: asked.of_run(workload))
    gathered.done()
    assert found_inputs is not None
    assert found_aim is not None
    aim, inputs, left_out = found_aim, found_inputs, tuple[str, ...]()
    if not inputs.cluster.homogeneous:
        inputs, left_out = usable_islands(inputs, tolerance)
    if named or not inputs.cluster.homogeneous:
        check_mixed(pareto=pareto, by="--parallelizer" if named else "several groups of nodes")
        mixed = plan_mixed(
            inputs,
            parallelizers=named or (),
            top=top,
            aim=aim,
            pin=pin,
            forbid=forbid,
            schedule=schedule,
            target=target,
        )
        return replace(mixed, warnings=(*left_out, *mixed.warnings))
    spec, workload = inputs.model, inputs.workload

    def space_for(part: ClusterSpec) -> Space:
        space = space_of(spec, workload, part.devices, pin=pin, forbid=forbid, schedule=schedule)
        return restricted(space, spec, part, workload, refuses) if refuses else space

    space = space_for(inputs.cluster)
    found = find_best(spec, inputs.cluster, workload, space_for, aim, top=max(top, 2), refuses=refuses, pareto=pareto)
    if aim == QUICKEST and refuses is None and not pareto:
        found = with_unequal(inputs, found, space_for, top=max(top, 2))
    if not found.result.plans:
        raise no_plan(spec, inputs.cluster, workload, space_for, found)
    if calibration_of(workload.calibration).run is not None and aim.by.exact:
        found = _measured_again(found)
    front = device_front(spec, found.cluster, workload, space_for, found.result) if pareto else ()
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
