"""What workers hold under one layout of degrees and shards, those of all pipelines as columns of one row.

Layers of a worker may differ in layout; then it has one holding for each, and what they cost at the end of a step and
keep in memory is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.estimate.data.network import DataGroups
from meshwright.estimate.layers.states import HELD, HeldParameters
from meshwright.estimate.pipeline import StageCounts
from meshwright.estimate.run import PipelineColumns, sync_rounds
from meshwright.shapes import Bool, Float, Int, spread
from meshwright.specs.plan import ExecutionPlan, Worker
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies.data import ShardingColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUpdates(HeldParameters):
    """What the end of a step works on, one column per worker, whatever pipelines they belong to."""

    forward_s: Float[np.ndarray, "plans workers"]
    """Seconds of forward per micro-batch."""
    last_s: Float[np.ndarray, "plans workers"]
    """Seconds of the backward that gradients may hide behind."""
    meeting_s: Float[np.ndarray, "plans workers"]
    """The part of `last_s` in exchanges of tokens that share their links with gradients, and in those that go before
    gradients."""
    ahead_s: Float[np.ndarray, "plans workers"]
    micro_batches: Float[np.ndarray, "#plans #workers"]
    """Micro-batches that each chunk runs per update."""
    updates: Float[np.ndarray, "#plans #workers"]
    """Updates per step."""
    last_passes: Float[np.ndarray, "#plans #workers"]
    """Backwards behind which gradients may hide, as `StepCompute.passes`."""
    hops_s: Float[np.ndarray, "plans #workers"]
    """Transfers of a micro-batch between a worker and its neighbour, of all its chunks in one direction; none where it
    has one chunk, whose gradients meet a single transfer."""
    apart: Int[np.ndarray, "plans #workers"]
    """Devices between the two copies of a worker's stages; 0 where there is one."""
    passes: Float[np.ndarray, "#plans #workers"]
    """Times that a step reads or writes the weights besides."""
    sharding: ShardingColumns
    groups: DataGroups


def updates_of(columns: PipelineColumns) -> WorkerUpdates:
    """What pipelines of one shape leave to the end of the step.

    Args:
        columns: the plans.
    """
    schedule = columns.schedule
    micro_batches, updates = sync_rounds(schedule, columns.m)
    # Replicas are not summed.
    two_copies = schedule.chains > 1 and not schedule.averages
    slowest_s = columns.transfer_s.reshape(len(columns.transfer_s), -1).max(axis=1)
    # Where the backward is split, gradients of weights are there when the last weight gradients end.
    last_s = columns.backward_s if columns.weight_s is None else columns.weight_s
    if schedule.pages:
        # The gradients of a stage leave once, beside the backwards of the next one's micro-batches.
        last_s, micro_batches = last_s * micro_batches, 1
    return WorkerUpdates(
        **{name: getattr(columns, name) for name in HELD},
        forward_s=columns.forward_s.sum(axis=2),
        last_s=last_s.sum(axis=2),
        meeting_s=columns.meeting_s,
        ahead_s=columns.ahead_s,
        micro_batches=np.full((1, 1), float(micro_batches)),
        updates=np.full((1, 1), float(updates)),
        last_passes=np.full((1, 1), schedule.last_passes(columns.p, columns.m, columns.v)),
        hops_s=slowest_s[:, None] * (columns.v if columns.p > 1 and columns.v > 1 else 0),
        apart=columns.devices_apart[:, None] * two_copies,
        passes=np.full((1, 1), float(schedule.weight_passes)),
        sharding=columns.sharding,
        groups=columns.groups,
    )


_PLAIN = tuple(f.name for f in fields(WorkerUpdates) if f.name not in ("sharding", "groups"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """One layout of some workers of a pipeline, or of several side by side."""

    places: Int[np.ndarray, " held"]
    """The workers that have it."""
    updates: WorkerUpdates
    """Update columns of these workers."""
    communicators: Float[np.ndarray, "plans #held"]
    offload_weights: Float[np.ndarray, "plans #held"]


def layout_key(strategy: LayerStrategy) -> tuple[object, ...]:
    """What is priced once for all layers of a holding."""
    expert, states = strategy.expert, replace(strategy.offload, activations=0.0)
    return (strategy.tp, strategy.cp, expert.ep, expert.etp, strategy.data, states)


def layouts(plan: ExecutionPlan, worker: Worker, edge: int) -> list[list[int]]:
    """The strategies of a worker by layout, those that gather weights first.

    Args:
        plan: has the strategies.
        worker: one of its workers.
        edge: strategy of its embedding and head where it has no layers.
    """
    used = sorted({run.strategy for chunk in worker.chunks for run in chunk.runs} | {edge})
    if len(used) == 1:
        return [used]
    by_key: dict[tuple[object, ...], list[int]] = {}
    for index in used:
        by_key.setdefault(layout_key(plan.strategies[index]), []).append(index)
    return sorted(by_key.values(), key=lambda group: -plan.strategies[group[0]].data.zero)


def counts_of_rows(counts: StageCounts, kept: Bool[np.ndarray, "workers rows"]) -> StageCounts:
    """The counts of some rows of each worker.

    Args:
        counts: the counts of a pipeline, rows x items flattened.
        kept: the rows that are kept.
    """
    cells = np.repeat(kept, counts.work.shape[-1] // kept.shape[1], axis=1)
    return StageCounts(
        work=counts.work * cells[:, None, :],
        bare=None if counts.bare is None else counts.bare * cells[:, None, :],
        shadow=None if counts.shadow is None else counts.shadow * cells,
    )


def holding(columns: PipelineColumns, updates: WorkerUpdates, places: Int[np.ndarray, " held"]) -> Holding:
    """What some workers of a pipeline hold.

    Args:
        columns: the columns of one layout.
        updates: the updates of one layout.
        places: the workers that have it.
    """
    wide = _each(updates, lambda values: spread(values, (1, columns.p)), updates.sharding, updates.groups)
    return Holding(
        places=places,
        # All of them are in order.
        updates=wide if len(places) == columns.p else picked(wide, places),
        communicators=columns.communicators[:, places],
        offload_weights=columns.offload_weights[:, places],
    )


def whole_holding(columns: PipelineColumns) -> Holding:
    """What all workers of a pipeline hold under one layout, one row per plan."""
    return Holding(
        places=np.arange(columns.p),
        updates=updates_of(columns),
        communicators=columns.communicators,
        offload_weights=columns.offload_weights,
    )


def beside(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Columns of several pipelines side by side."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def all_updates(parts: Sequence[WorkerUpdates]) -> WorkerUpdates:
    """Workers of all pipelines side by side."""
    if len(parts) == 1:
        return parts[0]
    sharding = {f.name: beside([getattr(p.sharding, f.name) for p in parts]) for f in fields(ShardingColumns)}
    groups = {f.name: beside([getattr(p.groups, f.name) for p in parts]) for f in fields(DataGroups)}
    plain = {name: beside([getattr(part, name) for part in parts]) for name in _PLAIN}
    return WorkerUpdates(**plain, sharding=ShardingColumns(**sharding), groups=DataGroups(**groups))


def picked(work: WorkerUpdates, index: Int[np.ndarray, "picked"]) -> WorkerUpdates:
    """Some of the columns."""
    groups = DataGroups(**{f.name: getattr(work.groups, f.name)[:, index] for f in fields(DataGroups)})
    sharding = ShardingColumns(**{f.name: getattr(work.sharding, f.name)[:, index] for f in fields(ShardingColumns)})
    return _each(work, lambda values: values[:, index], sharding, groups)


def _each(
    work: WorkerUpdates, change: Callable[[np.ndarray], np.ndarray], sharding: ShardingColumns, groups: DataGroups
) -> WorkerUpdates:
    plain = {name: change(getattr(work, name)) for name in _PLAIN}
    return WorkerUpdates(**plain, sharding=sharding, groups=groups)
