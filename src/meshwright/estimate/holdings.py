"""What workers hold under one layout of degrees and shards, those of all pipelines as columns of one row.

Layers of a worker may differ in layout; then it has one holding for each, and what they cost at the end of a step and
keep in memory is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from meshwright.estimate.pipeline import StageCounts
from meshwright.estimate.step import PipelineColumns, Updates
from meshwright.estimate.sync import DataGroups
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.plan import ExecutionPlan, Worker
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies.data import ShardingColumns

_PLAIN = tuple(f.name for f in fields(Updates) if f.name not in ("sharding", "groups"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """One layout of some workers of a pipeline."""

    places: Int[np.ndarray, " held"]
    """The workers that have it."""
    updates: Updates
    """Of these workers."""
    communicators: Float[np.ndarray, "1 held"]
    offload_weights: Float[np.ndarray, "1 held"]


def layout_key(strategy: LayerStrategy) -> tuple[object, ...]:
    """What is priced once for all layers of a holding."""
    expert, offload = strategy.expert, strategy.offload
    return (strategy.tp, strategy.cp, expert.ep, expert.etp, strategy.data, offload.weights, offload.optimizer)


def layouts(plan: ExecutionPlan, worker: Worker, edge: int) -> list[list[int]]:
    """The strategies of a worker by layout, those that gather weights first.

    Args:
        plan: has the strategies.
        worker: one of its workers.
        edge: strategy of its embedding and head where it has no layers.
    """
    used = sorted({run.strategy for chunk in worker.chunks for run in chunk.runs} | {edge})
    by_key: dict[tuple[object, ...], list[int]] = {}
    for index in used:
        by_key.setdefault(layout_key(plan.strategies[index]), []).append(index)
    return sorted(by_key.values(), key=lambda group: -plan.strategies[group[0]].data.zero)


def only(counts: StageCounts, kept: Bool[np.ndarray, "workers rows"]) -> StageCounts:
    """The counts of some rows of each worker.

    Args:
        counts: of a pipeline, rows x items flattened.
        kept: which rows.
    """
    cells = np.repeat(kept, counts.work.shape[-1] // kept.shape[1], axis=1)
    return StageCounts(
        work=counts.work * cells[:, None, :],
        bare=None if counts.bare is None else counts.bare * cells[:, None, :],
        shadow=None if counts.shadow is None else counts.shadow * cells,
    )


def holding(columns: PipelineColumns, updates: Updates, places: Int[np.ndarray, " held"]) -> Holding:
    """What some workers of a pipeline hold.

    Args:
        columns: of one layout.
        updates: likewise.
        places: the workers that have it.
    """
    wide = _each(updates, lambda values: np.broadcast_to(values, (1, columns.p)), updates.sharding, updates.groups)
    return Holding(
        places=places,
        updates=picked(wide, places),
        communicators=columns.communicators[:, places],
        offload_weights=columns.offload_weights[:, places],
    )


def beside(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Columns of several pipelines side by side."""
    return np.concatenate(parts, axis=1)


def all_updates(parts: Sequence[Updates]) -> Updates:
    """Workers of all pipelines side by side."""
    if len(parts) == 1:
        return parts[0]
    sharding = {f.name: beside([getattr(p.sharding, f.name) for p in parts]) for f in fields(ShardingColumns)}
    groups = {f.name: beside([getattr(p.groups, f.name) for p in parts]) for f in fields(DataGroups)}
    plain = {name: beside([getattr(part, name) for part in parts]) for name in _PLAIN}
    return Updates(**plain, sharding=ShardingColumns(**sharding), groups=DataGroups(**groups))


def picked(work: Updates, index: Int[np.ndarray, "picked"]) -> Updates:
    """Some of the columns."""
    groups = DataGroups(**{f.name: getattr(work.groups, f.name)[:, index] for f in fields(DataGroups)})
    sharding = ShardingColumns(**{f.name: getattr(work.sharding, f.name)[:, index] for f in fields(ShardingColumns)})
    return _each(work, lambda values: values[:, index], sharding, groups)


def _each(
    work: Updates, change: Callable[[np.ndarray], np.ndarray], sharding: ShardingColumns, groups: DataGroups
) -> Updates:
    plain = {name: change(getattr(work, name)) for name in _PLAIN}
    return Updates(**plain, sharding=sharding, groups=groups)
