"""Is this plan legal, does it fit, is there a better one, and what is the smallest change that mends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from meshwright.app.check_report import Better, CheckReport
from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.estimate.legality import plan_problems
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.planning.axes import target_rule
from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.planning.job_inputs import Count
from meshwright.planning.launch_script import script_question
from meshwright.planning.one_kind import find_plans, restricted
from meshwright.planning.plan_source import PlanLike, PlanQuestion, measured_plan, plan_question
from meshwright.planning.repair.of_plan import mends_of
from meshwright.planning.repair.post_mortem import REMEDIES, PostMortem, post_mortem
from meshwright.planning.ties import tied
from meshwright.planning.violation import Violation
from meshwright.report.words.measured import folder_notes, measured_sentence, planned_title
from meshwright.report.words.titles import title, title_of
from meshwright.report.words.verdict import against, sentence
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.units import gib, of_capacity, percent


def check(
    model: ModelSpec | str | os.PathLike[str] | None,
    plan: PlanLike | ExecutionPlan | PlanRow | None = None,
    cluster: ClusterSpec | str | os.PathLike[str] | None = None,
    *,
    gpus: str | None = None,
    source: str | os.PathLike[str] | None = None,
    source_format: str = "megatron",
    seq_len: Count | None = None,
    global_batch: Count | None = None,
    tokens_per_step: Count | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    attention_kernel: str | None = None,
    expert_imbalance: float | None = None,
    tokens: Count | None = None,
    price: float | None = None,
    search: bool = True,
    oom_log: str | os.PathLike[str] | None = None,
) -> CheckReport:
    """Check a plan or an existing launch configuration.

    Args:
        model: library name, path or spec; None where a plan file carries it.
        plan: the one-line form, a row, a plan file, a job or an execution plan.
        cluster: `64xH100`, the path of a cluster file, or a spec.
        gpus: `64xH100`, instead of `cluster`.
        source: a launch script instead of a plan: its path, or its text where that has several lines.
        source_format: the framework that starts it: megatron.
        seq_len, global_batch, tokens_per_step, dtype, optimizer, attention_kernel, expert_imbalance, tokens, price: as
            `estimate` takes them; a launch script's own by default.
        search: also look for a better plan in the default space.
        oom_log: of a run of this plan that ran out of memory: says which part of the memory was predicted low, and
            mends only with what that run's numbers leave room for.

    Returns:
        Violations, warnings, the mends and a better plan.

    Raises:
        InputError: malformed input; a plan that is only illegal or too large is an answer, not an error.
        UnsupportedError: an unknown name, or a plan nobody prices.
    """
    given: dict[str, Any] = {
        "seq_len": seq_len,
        "dtype": dtype,
        "optimizer": optimizer,
        "attention_kernel": attention_kernel,
        "expert_imbalance": expert_imbalance,
        "tokens": tokens,
    }
    if (plan is None) == (source is None):
        what = "neither a plan nor a launch script is given" if plan is None else "a plan and a launch script are given"
        raise InputError(Problem(what=what, why="one of them is checked", fix="use --plan or --from", field="plan"))
    if source is not None:
        given |= {"global_batch": global_batch, "tokens_per_step": tokens_per_step}
        given |= {"price": price, "cluster": cluster, "gpus": gpus}
        question, violations = script_question(model, source, source_format, given)
    else:
        assert plan is not None
        asked = {"global_batch": global_batch, "tokens_per_step": tokens_per_step, "price": price, "oom_log": oom_log}
        measured = measured_plan(plan, {"model": model, "cluster": cluster, "gpus": gpus, **asked, **given})
        if measured is not None:
            return _measured_report(*measured)
        question = plan_question(
            model,
            plan,
            cluster=cluster,
            gpus=gpus,
            global_batch=global_batch,
            tokens_per_step=tokens_per_step,
            price=price,
            **given,
        )
        violations = []
    target = source_format if source is not None else None
    return _report(question, violations, search=search, target=target, oom_log=oom_log)


def _measured_report(job: MeasuredJob, warnings: tuple[str, ...]) -> CheckReport:
    """A plan of measured layers: its file is legal by being read, so that memory is what can be wrong."""
    estimate, shown = price_job(job), planned_title(job)
    notes = [*warnings, *folder_notes(job), "no other plan was looked for: `plan --profiles` searches"]
    if estimate.fits == "tight":
        full = estimate.fullest
        peak = of_capacity(full.peak_memory_bytes, full.capacity_bytes)
        notes.append(f"tight: {estimate.place(full)} needs {peak}; under 8% are left for what is not modelled")
    return CheckReport(
        name=None,
        title=shown,
        text=measured_sentence(job, estimate),
        violations=tuple(_too_large(estimate)),
        estimate=estimate,
        better=None,
        mends=(),
        warnings=tuple(notes),
        inputs=job,
    )


def _report(
    question: PlanQuestion,
    violations: list[Violation],
    *,
    search: bool,
    target: str | None,
    oom_log: str | os.PathLike[str] | None,
) -> CheckReport:
    inputs, row = question.inputs, question.row
    warnings = list(question.warnings)
    violations = [*violations, *(_illegal(problem) for problem in question.problems)]
    estimate = None
    if question.plan is not None:
        estimate = estimate_plan(question.plan, inputs.model, inputs.cluster, inputs.workload)
        violations += _too_large(estimate)
        if row is None:
            found = plan_problems(question.plan, inputs.model, inputs.workload.seq_len)
            violations += [_illegal(problem) for problem in found]
        if estimate.fits == "tight":
            full = estimate.fullest
            peak = of_capacity(full.peak_memory_bytes, full.capacity_bytes)
            warnings.append(f"tight: {estimate.place(full)} needs {peak}; under 8% are left for what is not modelled")
    died = post_mortem(oom_log, question.job, estimate, row) if oom_log is not None and estimate is not None else None
    if died is not None:
        violations.append(_ran_out(died))
        search = False
    better = None
    if search and inputs.cluster.homogeneous:
        better = _better(question, estimate, warnings, target)
    elif search:
        warnings.append("no other plan was looked for: `plan` searches clusters of several groups")
    bad = estimate is None or estimate.fits == "no" or died is not None
    mends = mends_of(row, inputs, died.short_bytes if died else 0.0) if bad and row is not None else ()
    name = row.format() if row is not None else None
    shown = title_of(question.job, row) if question.plan else name or "the launch script"
    return CheckReport(
        name=name,
        title=shown,
        text=_text(shown, question, estimate, violations, better),
        violations=tuple(violations),
        estimate=estimate,
        better=better,
        mends=mends,
        warnings=tuple(warnings),
        inputs=inputs,
        post_mortem=died,
    )


def _ran_out(died: PostMortem) -> Violation:
    low = died.low
    return Violation(
        code="MEM_STAGE",
        what=next(died.lines()),
        why=f"{low.name} took {gib(low.short_bytes)} more than predicted" if low else "",
        fix=REMEDIES[low.name] if low else "",
        field="memory",
        stage=died.stage.stage,
        need_bytes=died.stage.peak_memory_bytes + died.short_bytes,
        have_bytes=died.message.capacity_bytes or died.stage.capacity_bytes,
    )


def _illegal(problem: Problem) -> Violation:
    return Violation(code="LEGAL", what=problem.what, why=problem.why, fix=problem.fix, field=problem.field)


def _too_large(estimate: StepPrice) -> Iterator[Violation]:
    over = [stage for stage in estimate.stages if stage.peak_memory_bytes > stage.capacity_bytes]
    for stage in over[:8]:
        kinds = sorted(stage.memory_bytes, key=lambda kind: -kind[1])[:3]
        largest = ", ".join(f"{kind.replace('_', ' ')} {gib(size)}" for kind, size in kinds)
        peak = of_capacity(stage.peak_memory_bytes, stage.capacity_bytes)
        yield Violation(
            code="MEM_STAGE",
            what=f"{estimate.place(stage)} needs {peak}",
            why=f"at its peak ({stage.peak_moment}): {largest}",
            field="memory",
            stage=stage.stage,
            need_bytes=stage.peak_memory_bytes,
            have_bytes=stage.capacity_bytes,
        )


def _text(
    shown: str,
    question: PlanQuestion,
    estimate: StepEstimate | None,
    violations: list[Violation],
    better: Better | None,
) -> str:
    if estimate is None:
        reason = f"{len(violations)} violation{'s' if len(violations) != 1 else ''}"
        return f"{shown} is not legal for {question.inputs.model.name} on {question.inputs.cluster.name}: {reason}."
    text = sentence(question.job, estimate)
    if better is not None and better.gain > 0:
        text += f" {better.name} is {percent(better.gain)} faster."
    return text


def _better(
    question: PlanQuestion, estimate: StepEstimate | None, warnings: list[str], target: str | None
) -> Better | None:
    """The best plan of the default space that the target can run, if it beats this one by more than a tie."""
    inputs = question.inputs
    refuses = target_rule(target)

    def space_for(part: ClusterSpec) -> Space:
        return restricted(Space(), inputs.model, part, inputs.workload, refuses) if refuses else Space()

    try:
        found = find_plans(inputs.model, inputs.cluster, inputs.workload, space_for, top=1, refuses=refuses)
    except MeshwrightError as error:
        warnings.append(f"no other plan was looked for: {error.problems[0].what}")
        return None
    if not found.result.plans:
        return None
    best = found.result.plans[0]
    job = found.job(best, inputs.model, inputs.workload)
    name = title(best.plan, inputs.model, job.name)
    if estimate is None or estimate.fits == "no":
        return Better(name=name, step_time_s=best.estimate.step_time_s, gain=0.0, because="the best plan that fits")
    gain = 1.0 - best.estimate.step_time_s / estimate.step_time_s
    if gain < 0 or tied(gain, best.estimate):
        return None
    because = f"this one is {against(best.estimate, estimate)}"
    return Better(name=name, step_time_s=best.estimate.step_time_s, gain=gain, because=because)
