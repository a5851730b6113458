"""Counts x items -> the columns a step is composed from. One plan of many strategies or many plans of one shape."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.estimate.data_network import DataGroups, DataNetwork
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.item_costs import ItemCosts
from meshwright.estimate.run import PipelineColumns, live
from meshwright.estimate.states import HELD
from meshwright.estimate.sync import LayerSync, layer_sync
from meshwright.kernels.collectives import all_reduce_s, point_to_point_s
from meshwright.kernels.lines import group_span
from meshwright.schedules import Kind, Placement, Schedule
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.strategies import PASSINGS
from meshwright.strategies.columns import StrategyColumns, local_units
from meshwright.strategies.data import ShardingColumns

PARTS = ("compute", "recompute", "tp", "cp", "ep", "host", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Degrees that are not part of a layer's own strategy, one row per plan."""

    pp: Int[np.ndarray, "plans"]
    dp: Int[np.ndarray, "plans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCounts:
    """How often each item stands where; of several shapes along a first axis, or of one."""

    work: Float[np.ndarray, "*shapes workers chunks items"]
    bare: Float[np.ndarray, "*#shapes workers chunks items"] | None = None
    """The same layers with nothing recomputed; for schedules that `needs_bare`."""
    shadow: Float[np.ndarray, "*shapes workers items"] | None = None
    """Stages that workers hold for another one; for schedules that shadow."""

    def of_shape(self, number: int) -> StageCounts:
        """Those of one of several shapes."""
        return StageCounts(
            work=self.work[number],
            bare=None if self.bare is None else self.bare[number],
            shadow=None if self.shadow is None else self.shadow[number],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedItems:
    """What one of each item costs, one row per plan; per section of a micro-batch where the schedule cuts it."""

    costs: ItemCosts
    sync: LayerSync
    """What sharded weights add."""
    whole: Bool[np.ndarray, "items"]
    """Those that FSDP gathers as one unit (layers and edges, not corrections)."""
    edges: Bool[np.ndarray, "items"] | None = None
    """Embedding and head; only rings of weights ask for them."""
    held_up: Float[np.ndarray, "plans"] | None = None
    """Micro-batches' worth of uneven seconds that workers wait for each other; None where micro-batches are alike."""


def needs_bare(schedule: Schedule) -> bool:
    """Whether a schedule tells what a layer does from what it does again: by tasks R, or by what is kept for W."""
    return bool(schedule.kinds & {Kind.R, Kind.W}) and not schedule.shadows


def pipeline_columns(
    *,
    schedule: Schedule,
    micro_batches: int,
    counts: StageCounts,
    items: PricedItems,
    boundary: BoundaryColumns,
    sharding: ShardingColumns,
    groups: DataGroups,
    offload_weights: Float[np.ndarray, "plans *workers"],
) -> PipelineColumns:
    """Spread item costs over workers and chunks.

    Args:
        schedule: of the pipeline.
        micro_batches: per step.
        counts: how often each item stands in each chunk.
        items: what they cost.
        boundary: transfers between workers.
        sharding: the data-parallel choice, columns of shape plans x 1 or plans x workers.
        groups: its ranks.
        offload_weights: share of weights on the host.

    Returns:
        Columns for `run_pipeline`.
    """
    work = computed_counts(schedule, counts)
    costs, layer_sync, whole = items.costs, items.sync, items.whole
    workers, chunks, kinds = work.shape
    plans = len(costs.forward_s)
    placement = schedule.placement(workers, chunks // schedule.chains)
    runs = task_runs(schedule, workers, micro_batches, chunks)
    held = work.sum(axis=1).T.astype(float)
    if counts.shadow is not None:
        held = held + counts.shadow.T
    whole_step = np.einsum("wc,wci->iw", runs, work)

    def cells(
        values: Float[np.ndarray, "plans items"], where: Float[np.ndarray, "workers chunks items"] = work
    ) -> Float[np.ndarray, "plans workers chunks"]:
        return (values @ where.reshape(-1, kinds).T.astype(float)).reshape(plans, workers, chunks)

    forward_s = cells(costs.forward_s + layer_sync.forward_s)
    backward_s = cells(costs.backward_s + layer_sync.backward_s)
    kept_bytes = cells(costs.kept_bytes)
    parts = {name: getattr(costs, f"{name}_s") @ whole_step for name in PARTS}
    parts["dp"] = (layer_sync.forward_s + layer_sync.backward_s) @ whole_step
    made_bytes = weight_s = recompute_s = None
    if counts.bare is not None and needs_bare(schedule):
        made_bytes = cells(costs.kept_bytes, counts.bare)
    if Kind.W in schedule.kinds:
        weight_s = np.minimum(cells(costs.weight_gradient_s), backward_s)
    if counts.shadow is not None:
        shadow_s = (costs.forward_s + layer_sync.forward_s) @ counts.shadow.T
        recompute_s = np.repeat(shadow_s[:, :, None], chunks, axis=2)
        parts["recompute"] = parts["recompute"] + shadow_s * runs.sum(axis=1)
    elif Kind.R in schedule.kinds and counts.bare is not None:
        bare_s = cells(costs.backward_s + layer_sync.backward_s, counts.bare)
        recompute_s, backward_s = np.maximum(backward_s - bare_s, 0.0), bare_s
    guests = live(schedule, workers, micro_batches, chunks // placement.chains).guests
    if guests.any():
        parked_s = _parked_s(kept_bytes[:, :, 0], guests, forward_s[:, :, 0] + backward_s[:, :, 0], boundary)
        backward_s = backward_s + parked_s[:, :, None]
        parts["pp"] = parked_s * runs.sum(axis=1)
    if (shared := schedule.shared_keys(workers)) is not None:
        from meshwright.estimate.shared_attention import exposed_exchanges_s  # few schedules share attention

        added_s = exposed_exchanges_s(costs, shared, _byte_s(boundary))
        ahead_s, back_s = (cells(seconds) for seconds in added_s)
        forward_s, backward_s = forward_s + ahead_s, backward_s + back_s
        parts["pp"] = sum(added_s) @ whole_step
    alone_s = np.zeros((plans, workers))
    if costs.hidden_s.any():
        alone_s = (
            cells(costs.hidden_s).sum(axis=2)
            * (schedule.unpaired(workers, micro_batches, chunks // placement.chains) or 0)
            / chunks
        )
        parts["ep"] = parts["ep"] + alone_s
    present = held > 0
    stages = chunks // placement.chains
    waits_s = np.zeros(plans)
    if items.held_up is not None:
        waits_s = items.held_up * cells(costs.uneven_s).sum(axis=2).max(axis=1)
    for name, rows in sharding.passings():
        assert items.edges is not None
        own_s = costs.forward_s + layer_sync.forward_s, costs.backward_s + layer_sync.backward_s
        ranks = sharding.shard[:, 0].astype(float)
        found_s = PASSINGS[name].waits_s(*own_s, work[0, 0], items.edges, ranks, micro_batches)
        waits_s = waits_s + np.where(rows[:, 0], found_s, 0.0)

    def largest(values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers"]:
        found = np.zeros((plans, workers))
        for item in np.flatnonzero(present.any(axis=1)):
            found = np.maximum(found, np.where(present[item], values[:, item : item + 1], 0.0))
        return found

    def exchanged_s(values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers"]:
        # Gradients of weights that are made apart hide behind products alone.
        if weight_s is not None or not values.any():
            return np.zeros((plans, workers))
        return cells(values).sum(axis=2)

    return PipelineColumns(
        schedule=schedule,
        p=workers,
        m=micro_batches,
        v=stages,
        runs=runs,
        forward_s=forward_s,
        backward_s=backward_s,
        weight_s=weight_s,
        recompute_s=recompute_s,
        kept_bytes=kept_bytes,
        made_bytes=made_bytes,
        away_bytes=cells(costs.away_bytes) if costs.away_bytes.any() else None,
        parts_s=parts,
        **{name: getattr(costs, name) @ held for name in HELD},
        largest_frozen_bytes=largest((costs.frozen_dense_bytes + costs.frozen_expert_bytes) * whole),
        largest_dense=largest(costs.dense_parameters * whole),
        largest_expert=largest(costs.expert_parameters * whole),
        transient_bytes=largest(costs.transient_bytes),
        recompute_flop=costs.recompute_flop @ whole_step,
        transfer_s=boundary.transfer_s,
        alone_s=alone_s,
        meeting_s=exchanged_s(costs.meeting_s),
        ahead_s=exchanged_s(costs.ahead_s),
        waits_s=waits_s,
        tied_s=boundary.tied_s * ends_apart(placement),
        devices_apart=boundary.devices_apart,
        communicators=boundary.communicators.reshape(plans, -1),
        offload_weights=offload_weights.reshape(plans, -1),
        sharding=sharding,
        groups=groups,
    )


def computed_counts(schedule: Schedule, counts: StageCounts) -> Float[np.ndarray, "*shapes workers chunks items"]:
    """What workers do; the last one recomputes nothing where recomputations are tasks: its backward follows at once."""
    if Kind.R not in schedule.kinds or counts.bare is None:
        return counts.work
    return np.concatenate([counts.work[..., :-1, :, :], counts.bare[..., -1:, :, :]], axis=-3)


def ends_apart(placement: Placement) -> bool:
    """Whether the first and the last stage of a model are on different workers, so that a shared table is there twice.

    Pipelines in both directions hold both ends on both outer workers.
    """
    return placement.chains == 1 and bool(placement.worker[0] != placement.worker[-1])


def task_runs(schedule: Schedule, p: int, m: int, chunks: int) -> Int[np.ndarray, "workers chunks"]:
    """How often a step runs each chunk forward: micro-batches of its chain, times their sections.

    Args:
        schedule: of the pipeline.
        p: workers.
        m: micro-batches per step.
        chunks: of a worker, all chains together.
    """
    runs = np.full((p, chunks), m * schedule.sections())
    chains = schedule.chains
    if chains > 1:
        table = schedule.table(p, m, chunks // chains)
        placement = table.placement
        runs[placement.worker, placement.chunk] = np.asarray(table.micro_batches)[placement.chain]
    return runs


def _parked_s(
    kept_bytes: Float[np.ndarray, "plans workers"],
    guests: Int[np.ndarray, " workers"],
    pair_s: Float[np.ndarray, "plans workers"],
    boundary: BoundaryColumns,
) -> Float[np.ndarray, "plans workers"]:
    """Seconds per micro-batch by which an activation's way to its host and back outlasts the worker's pair of tasks.

    The link is taken to be as quick as that of the slowest hop of the pipeline.
    Source: Kim et al. 2023 (BPipe), section 3: hidden if 2 bytes / bandwidth <= forward + backward.
    """
    there_s = kept_bytes * _byte_s(boundary)[:, None]
    return np.asarray(np.maximum(2.0 * there_s - pair_s, 0.0) * (guests[::-1] > 0))


def _byte_s(boundary: BoundaryColumns) -> Float[np.ndarray, " plans"]:
    """Seconds per byte on the slowest hop of the pipeline."""
    slowest_s = boundary.transfer_s.reshape(len(boundary.sent_bytes), -1).max(axis=1)
    return np.asarray(slowest_s / np.maximum(boundary.sent_bytes, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryColumns:
    """What passes between workers, one row per plan."""

    transfer_s: Float[np.ndarray, "plans *hops"]
    """One boundary tensor, T h / (cp, and tp with sequence parallelism), on the slowest link any hop crosses; behind
    each worker and chunk where hops differ."""
    sent_bytes: Float[np.ndarray, "plans"]
    """That tensor."""
    devices_apart: Int[np.ndarray, "plans"]
    """Devices between the first and the last worker."""
    tied_s: Float[np.ndarray, "plans"]
    communicators: Float[np.ndarray, "plans *workers"]

    def take(self, index: Int[np.ndarray, "picked"]) -> BoundaryColumns:
        """The rows of this index."""
        return BoundaryColumns(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def boundary_columns(
    columns: StrategyColumns, placed: Placed, model: ModelSpec, hardware: Hardware, workload: Workload
) -> BoundaryColumns:
    """Transfers between workers that stand tp x cp x dp devices apart.

    Args:
        columns: strategies, one row per plan.
        placed: pipeline and data degrees.
        model: for the width of the residual stream and the shared table.
        hardware: links.
        workload: formats.

    Returns:
        Seconds per plan, and the number of process groups with more than one rank.
    """
    precision = workload.precision
    block = columns.tp * columns.cp * placed.dp
    span = group_span(block, placed.pp, hardware.domain_sizes)
    passed = model.boundary_width(columns.seq_len) * precision.bytes_of("activations")
    sent = columns.boundary_tokens * passed * (placed.pp > 1)
    transfer_s = np.asarray(point_to_point_s(sent, inside=span, rates=hardware.rates), dtype=float)
    if model.sums_tied_table:
        table = local_units(model.vocab, columns.tp) * (model.hidden * precision.bytes_of("reduce"))
        ends = hardware.pair_span(block * np.maximum(placed.pp - 1, 1))
        shared = table * (placed.pp > 1) * workload.training
        tied_s = np.asarray(all_reduce_s(shared, inside=ends, rates=hardware.rates), dtype=float)
    else:
        tied_s = np.zeros(columns.rows)
    expert_data = np.maximum(block // (columns.ep * columns.etp), 1)
    has_experts = model.is_moe
    degrees = [columns.tp, columns.cp, columns.cp * placed.dp, placed.pp]
    if has_experts:
        degrees += [columns.ep, columns.etp, expert_data]
    communicators = sum(np.asarray(degree > 1, dtype=float) for degree in degrees)
    return BoundaryColumns(
        transfer_s=np.broadcast_to(transfer_s, (columns.rows,)),
        sent_bytes=np.broadcast_to(sent, (columns.rows,)),
        devices_apart=block * np.maximum(placed.pp - 1, 1),
        tied_s=np.broadcast_to(tied_s, (columns.rows,)),
        communicators=np.asarray(communicators, dtype=float),
    )


def data_groups(columns: StrategyColumns) -> DataGroups:
    """Strides of the groups that share gradients, shape plans x 1."""
    return DataGroups(dense_stride=columns.tp[:, None], expert_stride=(columns.etp * columns.ep)[:, None])


def sync_layers(
    costs: ItemCosts,
    columns: StrategyColumns,
    sharding: ShardingColumns,
    hardware: Hardware,
    workload: Workload,
    *,
    anything: bool,
) -> LayerSync:
    """What gathering sharded weights adds to every item, plans x items; zero at once where nobody shards weights."""
    if not anything:
        zero = np.zeros_like(costs.forward_s)
        return LayerSync(forward_s=zero, backward_s=zero)
    network = DataNetwork(sharding, data_groups(columns), hardware)
    found = layer_sync(
        np.maximum(costs.dense_parameters, 0.0),
        costs.expert_parameters,
        costs.forward_s,
        costs.backward_s,
        sharding,
        network,
        workload,
        frozen_bytes=(np.maximum(costs.frozen_dense_bytes, 0.0), costs.frozen_expert_bytes),
    )
    if not workload.sequence_lengths:
        return found
    waits = sharding.gathers_layers
    return LayerSync(
        forward_s=found.forward_s + costs.lockstep_forward_s * waits,
        backward_s=found.backward_s + costs.lockstep_backward_s * waits,
    )
