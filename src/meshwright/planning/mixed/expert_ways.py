"""A composed plan whose tokens reach their experts in other ways: sent once, or beside another micro-batch's work.

Stages are composed with plain exchanges, which price a layer alone. What runs beside an exchange depends on the
schedule, so the quickest plans are priced again under every other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.search.axes import searched_ways
from meshwright.search.space import Space
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import about_hot_experts
from meshwright.specs.workload import Workload
from meshwright.strategies.data import Z3


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
