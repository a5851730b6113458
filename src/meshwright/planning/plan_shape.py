"""What kind of plan it is: the row its layers share, and the groups its stages stand on."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from meshwright.schedules.plan_rows import row_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import Recompute

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob


def bare_row(plan: ExecutionPlan, model: ModelSpec) -> PlanRow | None:
    """The row a plan would be if nothing were recomputed; None where its layers differ in more than that."""
    strategies = tuple(replace(strategy, recompute=Recompute()) for strategy in plan.strategies)
    return row_of(replace(plan, strategies=strategies), model)


def title(plan: ExecutionPlan, model: ModelSpec, name: str | None) -> str:
    """The one-line form, or the nearest to it in words."""
    if name is not None:
        return name
    if (row := row_of(plan, model)) is not None:
        unequal = len({chunk.num_layers for chunk in plan.pipelines[0].chunks()}) > 1
        return row.format() + (f" + unequal {'chunks' if row.vpp > 1 else 'stages'}" if unequal else "")
    if (row := bare_row(plan, model)) is not None:
        return f"{row.format()} + recompute per layer"
    if len(plan.pipelines) == 1:
        return f"1 pipeline, {len(plan.strategies)} strategies"
    sizes = ([worker.num_devices for worker in pipeline.workers] for pipeline in plan.pipelines)
    runs = ([(size, len(list(run))) for size, run in groupby(own)] for own in sizes)
    return " | ".join(" > ".join(f"{count} x {size} devices" for size, count in run) for run in runs)


def groups_of(job: PlannedJob, pipeline: int) -> list[str]:
    """The group of each stage of a pipeline."""
    starts = list(accumulate((group.devices for group in job.cluster.groups), initial=0))

    def group(device: int) -> str:
        return next(g.name for g, start in zip(job.cluster.groups, starts, strict=False) if device < start + g.devices)

    return [group(worker.devices[0][0]) for worker in job.plan.pipelines[pipeline].workers]
