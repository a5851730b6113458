"""One plan of adapters under each trainer that has them: who can run it, and whose software prices it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.planning.for_target import priced_as, refusals_in_search
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.under_trainers import TrainerPlan, trainer_plan, why_not
from meshwright.schedules.plan_rows import row_of
from meshwright.targets import FINE_TUNING, TARGETS

Asking = Callable[[JobFields], PlanQuestion]
"""The plan brought together with a model, cluster and workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    plan: TrainerPlan
    question: PlanQuestion | None = None
    """None where the trainer cannot run the plan."""

    @property
    def order(self) -> tuple[bool, float]:
        """Those that fit first, the quickest of them; then by memory."""
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
    tried = [_under(name, question, asked, asking) for name in FINE_TUNING]
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


def same_trainer(questions: Sequence[PlanQuestion]) -> str | None:
    """The trainer that can run several plans and is the quickest on all of them together; None where none runs all.

    Args:
        questions: of the same adapters, each asked under every trainer.
    """
    told = [{one.trainer: one for one in question.trainers if one.plan is not None} for question in questions]
    able = [name for name in FINE_TUNING if all(name in one for one in told)]

    def order(name: str) -> tuple[bool, float]:
        plans = [one[name] for one in told]
        return not all(plan.fits for plan in plans), sum(plan.step_time_s or 0.0 for plan in plans)

    return min(able, key=order, default=None)


def _under(trainer: str, question: PlanQuestion, asked: JobFields, asking: Asking) -> _Tried:
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
    estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    row = row_of(job.plan, job.model)
    line = row.format() if row is not None else "the plan"
    return _Tried(plan=trainer_plan(trainer, line, estimate, fits=estimate.fits != "no"), question=found)


def _none_of(trainers: tuple[TrainerPlan, ...]) -> str:
    """That nothing runs the plan, and why each does not; those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for one in trainers:
        reasons.setdefault(one.why, []).append(_title(one.trainer))
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    return f"no trainer known here runs this plan with adapters: {said}"


def _title(trainer: str) -> str:
    return TARGETS[trainer].title
