"""Why a plan of unequal stages is what it is: its layers and shares undone, and what is one change away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meshwright.errors import MeshwrightError
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.legality import plan_problems
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.planning.variants import equal_shares, evenly, variants
from meshwright.report.words.explanation import Step, neighbour_step, rung
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan

MOST_OF_A_LEVER = 5
"""Neighbours shown of each kind of change, those that fit first, the quickest first."""
RIVALS = 6
"""Plans nearest to the chosen one that are looked at when assumptions move."""


def mixed_steps(
    job: Job, chosen: StepEstimate
) -> tuple[tuple[Step, ...], tuple[Step, ...], list[tuple[str, ExecutionPlan]]]:
    """Ladder, neighbours, and the nearest rivals of a plan that is no row.

    Args:
        job: the plan.
        chosen: its estimate.

    Returns:
        Rungs from even layers and shares to the plan; neighbours by time; the slower ones nearest to it by name.
    """
    pricer = PlanPricer(job.model, job.cluster, job.workload)
    found = []
    for variant in variants(job):
        if plan_problems(variant.plan, job.model, job.workload.seq_len):
            continue
        estimate = _priced(variant.plan, job, pricer)
        if estimate is not None:
            found.append((estimate.fits == "no", estimate.step_time_s, variant, estimate))
    found.sort(key=lambda one: one[:2])
    seen = Counter[str]()
    around = []
    for _, _, variant, estimate in found:
        seen[variant.lever] += 1
        if seen[variant.lever] <= MOST_OF_A_LEVER:
            around.append(neighbour_step(variant.change, estimate, chosen))
    rivals = [(one.change, one.plan) for large, time_s, one, _ in found if not large and time_s >= chosen.step_time_s]
    return tuple(_ladder(job, chosen, pricer)), tuple(around), rivals[:RIVALS]


def _priced(plan: ExecutionPlan, job: Job, pricer: PlanPricer) -> StepEstimate | None:
    try:
        check_plan(plan, job.model, job.cluster, job.workload)
        return estimate_of(plan, pricer)
    except MeshwrightError:
        return None


def _ladder(job: Job, chosen: StepEstimate, pricer: PlanPricer) -> Iterator[Step]:
    """Even layers and equal shares of the batch, then the plan's layers, then its shares."""
    plan = job.plan
    shared = equal_shares(plan) if len(plan.pipelines) > 1 else None
    rungs: list[tuple[str, ExecutionPlan]] = []
    even = evenly(shared or plan)
    if even is not None:
        rungs.append(("start: layers and batch shared evenly" if shared else "start: layers shared evenly", even))
    if shared is not None:
        rungs.append(("add its layers by stage", shared))
    before: StepEstimate | None = None
    for label, variant in rungs:
        estimate = _priced(variant, job, pricer)
        if estimate is None or variant == plan:
            continue
        yield rung(label, estimate, before)
        before = estimate
    yield rung("add its shares of the batch" if shared else "add its layers by stage", chosen, before)
