"""A composed plan whose tokens reach their experts in other ways: sent once, or beside another micro-batch's work.

Stages are composed with plain exchanges, which price a layer alone. What runs beside an exchange depends on the
schedule, so the quickest plans are priced again under every other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from meshwright.planning.mixed.source import PricedPlan
from meshwright.search.axes import searched_ways
from meshwright.search.space import Space
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import about_hot_experts
from meshwright.specs.workload import Workload
from meshwright.strategies.data import Z3

WAY_GAIN = 0.001
"""Share of a step that another way must save."""


def quicker_ways(
    one: PricedPlan, space: Space, workload: Workload, priced: Callable[[ExecutionPlan], PricedPlan | None]
) -> Iterator[PricedPlan]:
    """A plan with its experts reached in other ways, where that is quicker; or plainly, where that is no slower.

    Args:
        one: the plan.
        space: what is pinned of the ways.
        workload: the workload with the load of experts, where one is stated.
        priced: prices a plan in full; None where it does not fit.
    """
    for plan in of_other_ways(one.plan, space, workload):
        other = priced(plan)
        plain = all(strategy.expert.dispatcher == "alltoall" for strategy in plan.strategies)
        if other is not None and other.step_time_s <= one.step_time_s * (1.0 if plain else 1.0 - WAY_GAIN):
            yield other


def of_other_ways(plan: ExecutionPlan, space: Space, workload: Workload) -> Iterator[ExecutionPlan]:
    """The plan with all of its experts reached in each other way that a search goes through.

    Args:
        plan: composed.
        space: what is pinned of dispatcher, overlap, hot experts and the order of exchanges.
        workload: the workload with the load of experts, where one is stated.
    """
    if all(strategy.expert.ep == 1 for strategy in plan.strategies):
        return
    for dispatcher, overlap, hot, order in searched_ways(space, workload.expert_load):
        way = {"dispatcher": dispatcher, "overlap": overlap, **about_hot_experts(hot)}
        strategies = tuple(
            replace(
                strategy,
                expert=replace(strategy.expert, **way, prioritised=order == "first" and strategy.data.zero < Z3),
            )
            if strategy.expert.ep > 1
            else strategy
            for strategy in plan.strategies
        )
        if strategies != plan.strategies:
            yield replace(plan, strategies=strategies)
