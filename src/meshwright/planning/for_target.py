"""Plans for one target: what a search may propose, and with whose kernels and memory it is priced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.library.software import canonical
from meshwright.planning.one_kind import BestPlans
from meshwright.planning.question.job_inputs import resolve_model
from meshwright.planning.used_nodes import on_used_nodes
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.software import DEFAULT_SOFTWARE, PEFT_SOFTWARE
from meshwright.specs.tuning import BITSANDBYTES
from meshwright.targets import Target, target_named
from meshwright.units import of_capacity, percent

TIE = 0.02
"""Largest difference of two predicted steps that a simpler launch is worth."""


def refusals_in_search(target: str) -> Callable[[Job], tuple[Problem, ...]]:
    """What a search for a target may not propose.

    Args:
        target: its name.

    Returns:
        What the target refuses of a job on the nodes that it uses. A plan that the target's memory holds as another
        plan is refused as well: for the other one, which is priced as it runs, or, where no row says that one, for not
        fitting.

    Raises:
        UnsupportedError: for a target nobody taught us.
    """
    found = target_named(target)

    def refuses(job: Job) -> tuple[Problem, ...]:
        alone = on_used_nodes(job)
        if job.model.tuning is not None:
            alone = replace(alone, model=found.loaded(alone.model))
        return found.problems(alone) or _held_otherwise(found, alone)

    return refuses


def _held_otherwise(target: Target, job: Job) -> tuple[Problem, ...]:
    run = target.as_run(job)
    if run.plan == job.plan:
        return ()
    row = row_of(run.plan, job.model)
    if row is not None:
        why = f"its memory there is that of {row.format()}"
        return (
            Problem(
                what=f"plan: {target.title} keeps other states in memory",
                why=why,
                fix=f"use {row.format()}",
                field="data.family",
            ),
        )
    estimate = estimate_plan(run.plan, run.model, run.cluster, run.workload)
    if estimate.fits != "no":
        return ()
    peak = of_capacity(estimate.fullest.peak_memory_bytes, estimate.fullest.capacity_bytes)
    what = f"plan: under {target.title} it needs {peak}"
    return (Problem(what=what, why="it does not fit", fix="shard over more devices", field="memory"),)


def simplest_first(found: BestPlans) -> tuple[BestPlans, Assumption | None]:
    """The plan that needs fewest options first, among those that tie with the quickest; and why, where it moved.

    Args:
        found: plans in order of their time.
    """
    plans = found.result.plans
    if len(plans) < 2 or plans[0].row is None:
        return found, None
    best = plans[0]
    limit = min(TIE, best.estimate.tie)
    tied = [one for one in plans if one.estimate.step_time_s <= best.estimate.step_time_s * (1 + limit)]
    chosen = min(tied, key=lambda one: (_options(one.row), one.estimate.step_time_s))
    if chosen is best or chosen.row is None:
        return found, None
    ordered = (chosen, *(one for one in plans if one is not chosen))
    lost = chosen.estimate.step_time_s / best.estimate.step_time_s - 1
    quicker = f"{plans[0].row.format()} is predicted {percent(lost)} quicker"
    said = f"simplest to launch of those within {percent(limit)}; {quicker}"
    result = replace(found.result, plans=ordered)
    return replace(found, result=result), Assumption(name="chosen", value=said, basis="assumed")


def _options(row: PlanRow | None) -> int:
    """Words of a plan's line beside its degrees and batch, and degrees that cut a model in more than one way."""
    if row is None:
        return 99
    cuts = sum(degree > 1 for degree in (row.tp, row.pp, row.cp_degree, row.ep))
    plain = PlanRow(dp=row.dp, mbs=row.mbs, gbs=row.gbs).format().count(".")
    return 2 * cuts + row.format().count(".") - plain


def priced_as(job: JobFields, target: str | None) -> JobFields:
    """The question priced with the kernels, memory, number formats and adapters of a target, unless it states them.

    Args:
        job: the job of the question.
        target: name of a target; None for none.

    Raises:
        UnsupportedError: for a target nobody taught us.
        InputError: the framework named is JAX's and the target PyTorch's, or the other way round.
    """
    if target is None:
        return job
    found = target_named(target)
    own = found.software
    formats = found.formats.get(job.dtype, {}) if isinstance(job.dtype, str) else {}
    own_formats: dict[str, Any] = {role: value for role, value in formats.items() if getattr(job, role) is None}
    job = _loaded(job, found)
    job = _with_adapters(replace(job, **own_formats), found)
    if job.software is None:
        # Without kernels of its own a target is Megatron's whatever is trained, but for a calibration's framework.
        if own is None and job.calibration is not None:
            return job
        return replace(job, software=software_of(found, _stored_base(job)))
    line = canonical(job.software).partition("@")[0]
    if (line == _JAX) != (own == _JAX):
        why = f"{found.title} runs on {'JAX' if own == _JAX else 'PyTorch'}, {line} prices the other"
        fix = f"leave it out, or use --software {own or DEFAULT_SOFTWARE}"
        raise InputError(
            what=f"--software is {job.software} for --target {target}", why=why, fix=fix, field="software", code="MW203"
        )
    return job


def _stored_base(job: JobFields) -> str | None:
    """Stored format of the frozen weights that a question names; None for none, and where it cannot be read."""
    if job.lora is None:
        own = job.model.lora if isinstance(job.model, ModelSpec) else None
        return own.base if own is not None else None
    from meshwright.planning.question.tuning_text import read_lora  # few questions are of adapters

    with suppress(MeshwrightError):  # what is wrong is refused where the question is read
        return read_lora(job.lora).base
    return None


def running(trainers: Sequence[str], job: JobFields) -> tuple[str, ...]:
    """Trainers that run on the framework that a question states; all where it states none, or none of theirs.

    Args:
        trainers: names of targets.
        job: the job of the question.
    """
    if job.software is None:
        return tuple(trainers)
    line, base = canonical(job.software).partition("@")[0], _stored_base(job)
    return tuple(name for name in trainers if software_of(target_named(name), base) == line) or tuple(trainers)


def software_of(target: Target, base: str | None) -> str:
    """What a target's plans run under: models of the transformers library load weights of bitsandbytes through PEFT.

    Args:
        target: a framework.
        base: stored format of the frozen weights beside adapters; None where they are as trained weights are.
    """
    return software_with(target.software or DEFAULT_SOFTWARE, base)


def software_with(own: str, base: str | None) -> str:
    """The framework that runs models of the transformers library as their weights are stored.

    Args:
        own: what runs them where weights are stored as they are trained.
        base: stored format of the frozen weights beside adapters; None where they are as trained weights are.
    """
    return PEFT_SOFTWARE if own in _OF_TRANSFORMERS and base in BITSANDBYTES else own


def _loaded(job: JobFields, target: Target) -> JobFields:
    """The question with its model as a target loads it."""
    with suppress(MeshwrightError):  # a model that is wrong is refused where its question is read
        if not target.predicts_ahead and (model := resolve_model(job.model)).mtp_layers:
            return replace(job, model=target.loaded(model))
    return job


def _with_adapters(job: JobFields, target: Target) -> JobFields:
    """The question with adapters on the modules that a target has them for, where it names none."""
    if job.lora is None:
        return job
    from meshwright.planning.question.tuning_text import read_lora  # few questions are of adapters

    with suppress(MeshwrightError):  # what is wrong is refused where its question is read
        asked, model = read_lora(job.lora), resolve_model(job.model)
        unnamed = isinstance(job.lora, (str, int)) and "targets" not in str(job.lora)
        modules = target.adapters(model) if unnamed else ""
        named = replace(asked, targets=tuple(modules.split(","))) if modules else asked
        if (made := target.adapted(model, named)) != asked:
            return replace(job, lora=made)
    return job


_JAX = "xla"
_OF_TRANSFORMERS = ("pytorch-eager", "pytorch-eager-no-sync")
"""Software of the targets whose models are those of the transformers library."""
