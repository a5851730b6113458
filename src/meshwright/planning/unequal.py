"""Unequal pipelines, chunks, or shares of ranks on one kind of device: where batch, nodes or layers do not divide."""

from __future__ import annotations

from dataclasses import replace

from meshwright.estimate.result import StepEstimate
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.one_kind import BestPlans, SpaceFor
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.reason import idle_reason
from meshwright.search.result import FoundPlan, SearchResult
from meshwright.specs.plan import ExecutionPlan

LOOKED_AT = 4
"""Compositions that are priced in full."""
GAIN = 0.01
"""Share of the step that unequal pipelines must save to stand in for equal ones."""


def with_unequal(inputs: JobInputs, found: BestPlans, space_for: SpaceFor, *, top: int) -> BestPlans:
    """The plans found, behind those of unequal pipelines or chunks that are clearly quicker.

    Args:
        inputs: model, cluster of one group, workload.
        found: plans of equal pipelines, on all devices or on a part of them.
        space_for: what is pinned.
        top: how many plans to keep.
    """
    whole = inputs.cluster
    source = NativeSource(inputs, space_for)
    (group,) = source.whole
    composed = [one for one in source.by_itself(group, LOOKED_AT) if _beyond_rows(one.plan)]
    equal_s = found.result.plans[0].estimate.step_time_s if found.result.plans else float("inf")
    least_s = min([equal_s, *(one.step_time_s for one in composed)])
    shared = [one for one in source.in_one_group(source.whole, least_s) if _beyond_rows(one.plan)]
    quicker = [one for one in (*shared, *composed) if one.step_time_s < equal_s * (1 - GAIN)]
    if not quicker:
        return found
    proven = found.result.certificate
    bounds = [bound for bound in (proven.bound_step_time_s, source.bound_s()) if bound is not None]
    certificate = replace(proven, optimal=False, bound_step_time_s=min(bounds))
    plans = (*(_found(one) for one in quicker[: max(1, top - 1)]), *found.result.plans)
    result = SearchResult(plans=plans[:top], pareto=found.result.pareto, certificate=certificate, relaxed=False)
    used = sum(stage.devices for stage in quicker[0].estimate.stages)
    # Where they leave as many idle as equal ones, or no degree takes a factor of all, the reason is the same.
    idle = found.idle
    if used == whole.devices:
        idle = None
    elif idle is not None and idle.facts["why"] == "factor":
        idle = replace(idle, facts={**idle.facts, "used": used})
    elif used != found.cluster.devices:
        idle = idle_reason(used, whole.devices, "no faster plan")
    return BestPlans(result=result, cluster=whole, idle=idle)


def _beyond_rows(plan: ExecutionPlan) -> bool:
    """Whether no row of the exact search says this plan: several pipelines, or chunks of unequal numbers of layers."""
    return len(plan.pipelines) > 1 or len(plan.pipelines[0].workers[0].chunks) > 1


def _found(one: PricedPlan) -> FoundPlan:
    assert isinstance(one.estimate, StepEstimate)
    return FoundPlan(row=None, plan=one.plan, estimate=one.estimate)
