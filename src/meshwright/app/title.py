"""What to call a plan, also one that has no one-line form."""

from __future__ import annotations

from dataclasses import replace

from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import row_of
from meshwright.specs.strategy import Recompute


def bare_row(plan: ExecutionPlan, model: ModelSpec) -> PlanRow | None:
    """The row a plan would be if nothing were recomputed; None where its layers differ in more than that."""
    strategies = tuple(replace(strategy, recompute=Recompute()) for strategy in plan.strategies)
    return row_of(replace(plan, strategies=strategies), model)


def title(plan: ExecutionPlan, model: ModelSpec, name: str | None) -> str:
    """The one-line form, or the nearest to it in words."""
    if name is not None:
        return name
    row = bare_row(plan, model)
    if row is not None:
        return f"{row.format()} + recompute per layer"
    return f"{len(plan.pipelines)} pipelines, {len(plan.strategies)} strategies"
