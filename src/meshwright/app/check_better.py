"""A plan that beats the one checked: the best of the default space that the user's target runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepEstimate
from meshwright.planning.one_kind import find_plans
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.plan_shape import title
from meshwright.planning.repair.of_target import JobRule, of_degrees
from meshwright.planning.run_by import run_by_none
from meshwright.planning.target_space import restricted
from meshwright.planning.ties import tied
from meshwright.records import Record
from meshwright.report.words.verdict import against
from meshwright.search.result import FoundPlan
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow

_TRIED = 64
"""Plans of a search that are tried in a trainer's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Better(Record):
    """The best plan of the same question, where it beats the one checked."""

    name: str
    step_time_s: float
    gain: float
    """Relative time saved."""
    because: str
    job: Job | None = field(default=None, repr=False)
    """The plan with what it is for."""

    def to_dict(self) -> dict[str, Any]:
        """As data, without the job."""
        return {name: getattr(self, name) for name in ("name", "step_time_s", "gain", "because")}


def better_plan(
    question: PlanQuestion,
    estimate: StepEstimate | None,
    warnings: list[str],
    rule: JobRule | None,
    sayable: Callable[[PlanRow], bool] | None,
) -> Better | None:
    """The best plan of the default space that the target can run, if it beats this one by more than a tie.

    Of a trainer whose keys say fewer plans, it is the best of the first few that they say, where they say any. Adapters
    of no stated target are compared with plans that some framework runs.

    Args:
        question: the plan that is checked, and what it is for.
        estimate: the estimate of that plan; None where it is not legal.
        warnings: takes one where no plan can be searched.
        rule: what the target refuses; None for a plan of no target.
        sayable: whether the keys of a trainer say a plan; None where they say all.
    """
    inputs = question.inputs
    refuses = rule if rule is None or sayable is None else partial(of_degrees, rule)
    if rule is None and inputs.model.lora is not None:
        refuses = run_by_none  # as `plan` answers adapters with what a trainer runs

    def space_for(part: ClusterSpec) -> Space:
        return restricted(Space(), inputs.model, part, inputs.workload, refuses) if refuses else Space()

    try:
        found = find_plans(
            inputs.model, inputs.cluster, inputs.workload, space_for, top=_TRIED if sayable else 1, refuses=refuses
        )
    except MeshwrightError as error:
        first = error.problems[0]
        warnings.append(f"no other plan was searched: {first.what.removeprefix('plan: ')}: {first.why}")
        return None
    if not found.result.plans:
        return None
    best = _first_sayable(found.result.plans, sayable)
    job = found.job(best, inputs.model, inputs.workload)
    name = title(best.plan, inputs.model, job.name)
    if estimate is None or estimate.fits == "no":
        return Better(
            name=name, step_time_s=best.estimate.step_time_s, gain=0.0, because="the best plan that fits", job=job
        )
    gain = 1.0 - best.estimate.step_time_s / estimate.step_time_s
    if gain < 0 or tied(gain, best.estimate):
        return None
    because = against(estimate, best.estimate)
    return Better(name=name, step_time_s=best.estimate.step_time_s, gain=gain, because=because, job=job)


def _first_sayable(plans: Sequence[FoundPlan], sayable: Callable[[PlanRow], bool] | None) -> FoundPlan:
    """The first plan that the keys of a trainer say, where they say any; the first of all otherwise."""
    if sayable is None:
        return plans[0]
    return next((one for one in plans if one.row is not None and sayable(one.row)), plans[0])
