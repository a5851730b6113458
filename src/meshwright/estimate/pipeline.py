"""Counts x items -> the columns a step is composed from. One plan of many strategies or many plans of one shape."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from meshwright.estimate.data.network import DataGroups
from meshwright.estimate.data.sync import LayerSync
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.estimate.layers.states import HELD
from meshwright.estimate.run import PipelineColumns, live
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
        """The counts of one of several shapes."""
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
    """Whether FSDP gathers the item as one unit (layers and edges, not corrections)."""
    edges: Bool[np.ndarray, "items"] | None = None
    """Embedding and head; only rings of weights ask for them."""
    uneven_delay: Float[np.ndarray, "plans"] | None = None
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
        schedule: the schedule of the pipeline.
        micro_batches: the number of micro-batches per step.
        counts: how often each item stands in each chunk.
        items: what they cost.
        boundary: transfers between workers.
        sharding: the data-parallel choice, columns of shape plans x 1 or plans x workers.
        groups: its ranks.
        offload_weights: share of weights on the host.

    Returns:
        Columns for `run_pipeline`.
    """
    spread = _Spread(schedule, micro_batches, counts, items)
    costs, whole = items.costs, items.whole
    passes = spread.passes()
    passes.part_backward(spread)
    passes.park_activations(spread, boundary)
    passes.exchange_keys(spread, boundary)
    alone_s = spread.unpaired_exchanges_s()
    passes.parts_s["ep"] = passes.parts_s["ep"] + alone_s
    bare = counts.bare if needs_bare(schedule) else None
    return PipelineColumns(
        schedule=schedule,
        p=spread.workers,
        m=micro_batches,
        v=spread.stages,
        runs=spread.runs,
        forward_s=passes.forward_s,
        backward_s=passes.backward_s,
        weight_s=passes.weight_s,
        recompute_s=passes.recompute_s,
        kept_bytes=passes.kept_bytes,
        made_bytes=None if bare is None else spread.cells(costs.kept_bytes, bare),
        away_bytes=spread.cells(costs.away_bytes) if costs.away_bytes.any() else None,
        parts_s=passes.parts_s,
        **{name: getattr(costs, name) @ spread.held for name in HELD},
        largest_frozen_bytes=spread.largest(costs.gathered_bytes * whole),
        largest_dense=spread.largest(costs.dense_parameters * whole),
        largest_expert=spread.largest(costs.expert_parameters * whole),
        transient_bytes=spread.largest(costs.transient_bytes),
        recompute_flop=costs.recompute_flop @ spread.whole_step,
        transfer_s=boundary.transfer_s,
        alone_s=alone_s,
        meeting_s=spread.exchanged_s(costs.meeting_s),
        ahead_s=spread.exchanged_s(costs.ahead_s),
        waits_s=spread.uneven_delay_s() + spread.passing_s(sharding),
        tied_s=boundary.tied_s * ends_apart(spread.placement),
        devices_apart=boundary.devices_apart,
        communicators=boundary.communicators.reshape(spread.plans, -1),
        offload_weights=offload_weights.reshape(spread.plans, -1),
        sharding=sharding,
        groups=groups,
    )


class _Spread:
    """Columns of items, plans x items, as sums over what stands on each worker or in each chunk."""

    def __init__(self, schedule: Schedule, micro_batches: int, counts: StageCounts, items: PricedItems) -> None:
        self.schedule, self.micro_batches, self.counts, self.items = schedule, micro_batches, counts, items
        self.costs, self.sync = items.costs, items.sync
        self.work = computed_counts(schedule, counts)
        self.workers, self.chunks, self.kinds = self.work.shape
        self.plans = len(self.costs.forward_s)
        self.stages = self.chunks // schedule.chains
        self.placement = schedule.placement(self.workers, self.stages)
        self.runs = task_runs(schedule, self.workers, micro_batches, self.chunks)
        self.whole_step = np.einsum("wc,wci->iw", self.runs, self.work)
        self.held = self.work.sum(axis=1).T.astype(float)
        if counts.shadow is not None:
            self.held = self.held + counts.shadow.T

    @property
    def forward_s(self) -> Float[np.ndarray, "plans items"]:
        """Forward with what sharded weights add."""
        return self.costs.forward_s + self.sync.forward_s

    @property
    def backward_s(self) -> Float[np.ndarray, "plans items"]:
        """Backward with what sharded weights add."""
        return self.costs.backward_s + self.sync.backward_s

    def cells(
        self,
        values: Float[np.ndarray, "plans items"],
        where: Float[np.ndarray, "workers chunks items"] | None = None,
    ) -> Float[np.ndarray, "plans workers chunks"]:
        """Sums over the items of each chunk, or over others that would stand there."""
        counts = self.work if where is None else where
        flat = values @ counts.reshape(-1, self.kinds).T.astype(float)
        return flat.reshape(self.plans, self.workers, self.chunks)

    def largest(self, values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers"]:
        """The largest value among the items that a worker holds."""
        present = self.held > 0
        found = np.zeros((self.plans, self.workers))
        for item in np.flatnonzero(present.any(axis=1)):
            found = np.maximum(found, np.where(present[item], values[:, item : item + 1], 0.0))
        return found

    def exchanged_s(self, values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers"]:
        """Seconds by worker; none where weight gradients are made apart: exchanges hide behind products alone then."""
        if Kind.W in self.schedule.kinds or not values.any():
            return np.zeros((self.plans, self.workers))
        return self.cells(values).sum(axis=2)

    def passes(self) -> _Passes:
        """Both passes of every chunk, and the parts of a step."""
        parts_s = {name: getattr(self.costs, f"{name}_s") @ self.whole_step for name in PARTS}
        parts_s["dp"] = (self.sync.forward_s + self.sync.backward_s) @ self.whole_step
        return _Passes(
            forward_s=self.cells(self.forward_s),
            backward_s=self.cells(self.backward_s),
            kept_bytes=self.cells(self.costs.kept_bytes),
            parts_s=parts_s,
        )

    def unpaired_exchanges_s(self) -> Float[np.ndarray, "plans workers"]:
        """Exchanges hidden behind the other pass, of micro-batches whose passes find no partner."""
        if not self.costs.hidden_s.any():
            return np.zeros((self.plans, self.workers))
        unpaired = self.schedule.unpaired(self.workers, self.micro_batches, self.stages)
        if unpaired is None:
            unpaired = self.micro_batches * self.chunks
        return self.cells(self.costs.hidden_s).sum(axis=2) * unpaired / self.chunks

    def uneven_delay_s(self) -> Float[np.ndarray, "plans"]:
        """Waits of workers for each other, where micro-batches are uneven."""
        if self.items.uneven_delay is None:
            return np.zeros(self.plans)
        return np.asarray(self.items.uneven_delay * self.cells(self.costs.uneven_s).sum(axis=2).max(axis=1))

    def passing_s(self, sharding: ShardingColumns) -> Float[np.ndarray, "plans"]:
        """Waits of plans that pass weights around instead of gathering them."""
        waits_s = np.zeros(self.plans)
        for name, rows in sharding.passings():
            edges = self.items.edges
            assert edges is not None
            ranks, layers = sharding.shard[:, 0].astype(float), self.work[0, 0]
            found_s = PASSINGS[name].waits_s(self.forward_s, self.backward_s, layers, edges, ranks, self.micro_batches)
            waits_s = waits_s + np.where(rows[:, 0], found_s, 0.0)
        return waits_s


@dataclass(slots=True, kw_only=True)
class _Passes:
    """Seconds of both passes by chunk, and of a step by part, as a schedule changes them."""

    forward_s: Float[np.ndarray, "plans workers chunks"]
    backward_s: Float[np.ndarray, "plans workers chunks"]
    kept_bytes: Float[np.ndarray, "plans workers chunks"]
    parts_s: dict[str, Float[np.ndarray, "plans workers"]]
    weight_s: Float[np.ndarray, "plans workers chunks"] | None = None
    recompute_s: Float[np.ndarray, "plans workers chunks"] | None = None

    def part_backward(self, spread: _Spread) -> None:
        """Weight gradients, recomputations and shadows as tasks of their own, where the schedule has them."""
        schedule, counts = spread.schedule, spread.counts
        if Kind.W in schedule.kinds:
            self.weight_s = np.minimum(spread.cells(spread.costs.weight_gradient_s), self.backward_s)
        if counts.shadow is not None:
            shadow_s = spread.forward_s @ counts.shadow.T
            self.recompute_s = np.repeat(shadow_s[:, :, None], spread.chunks, axis=2)
            self.parts_s["recompute"] = self.parts_s["recompute"] + shadow_s * spread.runs.sum(axis=1)
        elif Kind.R in schedule.kinds and counts.bare is not None:
            bare_s = spread.cells(spread.backward_s, counts.bare)
            self.recompute_s, self.backward_s = np.maximum(self.backward_s - bare_s, 0.0), bare_s

    def park_activations(self, spread: _Spread, boundary: BoundaryColumns) -> None:
        """Activations that wait on another worker, as far as their way outlasts the passes of a micro-batch."""
        guests = live(spread.schedule, spread.workers, spread.micro_batches, spread.stages).guests
        if guests.any():
            pair_s = self.forward_s[:, :, 0] + self.backward_s[:, :, 0]
            parked_s = _parked_s(self.kept_bytes[:, :, 0], guests, pair_s, boundary)
            self.backward_s = self.backward_s + parked_s[:, :, None]
            self.parts_s["pp"] = parked_s * spread.runs.sum(axis=1)

    def exchange_keys(self, spread: _Spread, boundary: BoundaryColumns) -> None:
        """Keys and values that workers exchange where they share attention."""
        if (shared := spread.schedule.shared_keys(spread.workers)) is None:
            return
        from meshwright.estimate.shared_attention import exposed_exchanges_s  # few schedules share attention

        added_s = exposed_exchanges_s(spread.costs, shared, _byte_s(boundary))
        ahead_s, back_s = (spread.cells(seconds) for seconds in added_s)
        self.forward_s, self.backward_s = self.forward_s + ahead_s, self.backward_s + back_s
        self.parts_s["pp"] = sum(added_s) @ spread.whole_step


def computed_counts(schedule: Schedule, counts: StageCounts) -> Float[np.ndarray, "*shapes workers chunks items"]:
    """What workers do; the last one recomputes nothing where recomputations are tasks: its backward follows at once."""
    if Kind.R not in schedule.kinds or counts.bare is None:
        return counts.work
    return np.concatenate([counts.work[..., :-1, :, :], counts.bare[..., -1:, :, :]], axis=-3)


@lru_cache(maxsize=512)
def ends_apart(placement: Placement) -> int:
    """Chains whose first and last stage are on different workers, so that a shared table is there twice.

    Pipelines in both directions hold both ends on both outer workers.
    """
    each = placement.stages // placement.chains
    first, last = ({*placement.worker[at::each].tolist()} for at in (0, each - 1))
    return 0 if first & last else placement.chains


def task_runs(schedule: Schedule, p: int, m: int, chunks: int) -> Int[np.ndarray, "workers chunks"]:
    """How often a step runs each chunk forward: micro-batches of its chain, times their sections.

    Args:
        schedule: the schedule of the pipeline.
        p: workers.
        m: micro-batches per step.
        chunks: the number of chunks of a worker, all chains together.
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
    """Bytes of one boundary tensor."""
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
        model: the model for the width of the residual stream and the shared table.
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
