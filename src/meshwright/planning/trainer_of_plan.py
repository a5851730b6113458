"""One plan under each trainer that is asked: who can run it, whose software prices it, and what it takes there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.planning.for_target import priced_as, refusals_in_search
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.run_by import asked_about
from meshwright.planning.under_trainers import TrainerPlan, trainer_plan, why_not
from meshwright.schedules.plan_rows import row_of
from meshwright.targets import FINE_TUNING, TARGETS
from meshwright.units import of_capacity, seconds

Asking = Callable[[JobFields], PlanQuestion]
"""The plan brought together with a model, cluster and workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    plan: TrainerPlan
    question: PlanQuestion | None = None
    """None where the trainer cannot run the plan."""

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key: plans that fit first, the quickest of them; then by memory."""
        measure = self.plan.step_time_s if self.plan.fits else self.plan.peak_memory_bytes
        return not self.plan.fits, math.inf if measure is None else measure


def under_a_trainer(question: PlanQuestion, asked: JobFields, asking: Asking) -> PlanQuestion:
    """A legal plan of adapters priced as the quickest trainer that can run it does, beside what every trainer says.

    Args:
        question: the plan as it was asked, which names no framework.
        asked: model, cluster and workload.
        asking: brings the plan together with them again, priced otherwise.

    Returns:
        The question of that trainer; the one given where none can run the plan, with a warning.
    """
    tried = _under_each(FINE_TUNING, question, asked, asking)
    trainers = tuple(one.plan for one in tried)
    able = [one for one in tried if one.question is not None]
    if not able:
        warnings = (*question.warnings, _none_of(trainers))
        return replace(question, trainers=trainers, warnings=warnings)
    best = min(able, key=lambda one: one.order)
    assert best.question is not None
    found, count = best.question, len(able)
    others = f", the {'quickest' if best.plan.fits else 'leanest'} of {count} that can run it" if count > 1 else ""
    note = Assumption(name="trainer", value=f"priced as {_title(best.plan.trainer)} runs it{others}", basis="assumed")
    inputs = replace(found.inputs, assumptions=(*found.inputs.assumptions, note))
    return replace(found, inputs=inputs, trainers=trainers, trainer=best.plan.trainer)


def beside_trainers(question: PlanQuestion, asked: JobFields, asking: Asking) -> PlanQuestion:
    """A legal plan that trains a whole model on few devices, with who runs it as it is priced, and what others take.

    Args:
        question: the plan as it was asked, which names no framework.
        asked: model, cluster and workload.
        asking: brings the plan together with them again, priced otherwise.

    Returns:
        The question with a note on it, and what every trainer says.
    """
    tried = _under_each(asked_about(question.inputs.cluster), question, asked, asking)
    note = Assumption(name="trainer", value=_priced_for(question.inputs, tried), basis="assumed")
    inputs = replace(question.inputs, assumptions=(*question.inputs.assumptions, note))
    return replace(question, inputs=inputs, trainers=tuple(one.plan for one in tried))


def _priced_for(inputs: JobInputs, tried: Sequence[_Tried]) -> str:
    """Who runs a plan as it is priced; and the quickest of the others, where those do not or take longer."""
    able = [one for one in tried if one.question is not None]
    here = [one for one in able if one.question and one.question.inputs.workload == inputs.workload]
    others = [one for one in able if one not in here]
    own = f"priced as {', '.join(_title(one.plan.trainer) for one in here)} run{'s' * (len(here) == 1)} it"
    own = own if here else f"priced under {inputs.workload.software}, with which no framework known here runs this plan"
    quicker = [one for one in others if not here or one.order < here[0].order]
    if not quicker:
        return own
    best = min(quicker, key=lambda one: one.order).plan
    took = "" if best.step_time_s is None else f"{seconds(best.step_time_s)}, "
    memory = of_capacity(best.peak_memory_bytes or 0.0, best.capacity_bytes or 0.0)
    return f"{own}; under {_title(best.trainer)} it takes {took}{memory}{'' if best.fits else ', which does not fit'}"


def same_trainer(questions: Sequence[PlanQuestion]) -> str | None:
    """The trainer that can run several plans and is the quickest on all of them together; None where none runs all.

    Args:
        questions: the questions of the same adapters, each asked under every trainer.
    """
    by_trainer = [{one.trainer: one for one in question.trainers if one.plan is not None} for question in questions]
    able = [name for name in FINE_TUNING if all(name in one for one in by_trainer)]

    def order(name: str) -> tuple[bool, float]:
        plans = [one[name] for one in by_trainer]
        return not all(plan.fits for plan in plans), sum(plan.step_time_s or 0.0 for plan in plans)

    return min(able, key=order, default=None)


def _under_each(trainers: Sequence[str], question: PlanQuestion, asked: JobFields, asking: Asking) -> list[_Tried]:
    """The plan under each trainer; what several price alike is priced once."""
    price = cache(estimate_plan)
    return [_under(name, question, asked, asking, price) for name in trainers]


def _under(
    trainer: str, question: PlanQuestion, asked: JobFields, asking: Asking, price: Callable[..., StepEstimate]
) -> _Tried:
    """The plan under one trainer."""
    whole = replace(question.inputs.model, tuning=None) if asked.model is None else asked.model
    try:
        found = asking(priced_as(replace(asked, model=whole), trainer))
        refused = refusals_in_search(trainer)(found.job)
    except (InputError, UnsupportedError) as error:
        return _Tried(plan=TrainerPlan(trainer=trainer, why=why_not(error.problems[0])))
    if refused:
        return _Tried(plan=TrainerPlan(trainer=trainer, why=why_not(refused[0])))
    job = found.job
    estimate = price(job.plan, job.model, job.cluster, job.workload)
    row = row_of(job.plan, job.model)
    line = row.format() if row is not None else "the plan"
    return _Tried(plan=trainer_plan(trainer, line, estimate, fits=estimate.fits != "no"), question=found)


def _none_of(trainers: tuple[TrainerPlan, ...]) -> str:
    """A sentence that no trainer runs the plan, and why; trainers with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for one in trainers:
        reasons.setdefault(one.why, []).append(_title(one.trainer))
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    return f"no trainer known here runs this plan with adapters: {said}"


def _title(trainer: str) -> str:
    return TARGETS[trainer].title
