"""Counts x items -> the columns a step is composed from. One plan of many strategies or many plans of one shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.items import ItemCosts
from meshwright.estimate.step import PipelineColumns
from meshwright.estimate.sync import DataGroups, DataNetwork, LayerSync, layer_sync
from meshwright.kernels.collectives import all_reduce_s, group_span, point_to_point_s
from meshwright.schedules import Schedule
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.strategies.base import StrategyColumns, local_units
from meshwright.strategies.data import ShardingColumns

PARTS = ("compute", "recompute", "tp", "cp", "ep", "host", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Degrees that are not part of a layer's own strategy, one row per plan."""

    pp: Int[np.ndarray, "plans"]
    dp: Int[np.ndarray, "plans"]


def pipeline_columns(
    *,
    schedule: Schedule,
    micro_batches: int,
    counts: Float[np.ndarray, "workers chunks items"],
    costs: ItemCosts,
    layer_sync: LayerSync,
    whole: Bool[np.ndarray, "items"],
    boundary: BoundaryColumns,
    sharding: ShardingColumns,
    groups: DataGroups,
    offload_weights: Float[np.ndarray, "plans"],
) -> PipelineColumns:
    """Spread item costs over workers and chunks.

    Args:
        schedule: of the pipeline.
        micro_batches: per step.
        counts: how often each item stands in each chunk.
        costs: one row per plan.
        layer_sync: what sharded weights add to each item, one row per plan.
        whole: items that FSDP gathers as one unit (layers and edges, not corrections).
        boundary: transfers between workers.
        sharding: the data-parallel choice, columns of shape plans x 1 or plans x workers.
        groups: its ranks.
        offload_weights: share of weights on the host.

    Returns:
        Columns for `step_columns`.
    """
    workers, chunks, items = counts.shape
    plans = len(costs.forward_s)
    flat = counts.reshape(-1, items).T.astype(float)
    by_worker = counts.sum(axis=1).T.astype(float)

    def cells(values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers chunks"]:
        return (values @ flat).reshape(plans, workers, chunks)

    parts = {name: getattr(costs, f"{name}_s") @ by_worker for name in PARTS}
    parts["dp"] = (layer_sync.forward_s + layer_sync.backward_s) @ by_worker
    present = by_worker > 0

    def largest(values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers"]:
        found = np.zeros((plans, workers))
        for item in np.flatnonzero(present.any(axis=1)):
            found = np.maximum(found, np.where(present[item], values[:, item : item + 1], 0.0))
        return found

    return PipelineColumns(
        schedule=schedule,
        p=workers,
        m=micro_batches,
        v=chunks,
        forward_s=cells(costs.forward_s + layer_sync.forward_s),
        backward_s=cells(costs.backward_s + layer_sync.backward_s),
        kept_bytes=cells(costs.kept_bytes),
        parts_s=parts,
        dense_parameters=costs.dense_parameters @ by_worker,
        expert_parameters=costs.expert_parameters @ by_worker,
        largest_dense=largest(costs.dense_parameters * whole),
        largest_expert=largest(costs.expert_parameters * whole),
        transient_bytes=largest(costs.transient_bytes),
        recompute_flop=costs.recompute_flop @ by_worker,
        transfer_s=boundary.transfer_s,
        tied_s=boundary.tied_s,
        communicators=boundary.communicators,
        offload_weights=offload_weights,
        sharding=sharding,
        groups=groups,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryColumns:
    """What passes between workers, one row per plan."""

    transfer_s: Float[np.ndarray, "plans"]
    """One boundary tensor, T h / (cp, and tp with sequence parallelism), on the slowest link any hop crosses."""
    tied_s: Float[np.ndarray, "plans"]
    communicators: Float[np.ndarray, "plans"]


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
    sent = columns.sequence_tokens * (model.hidden * precision.bytes_of("activations")) * (placed.pp > 1)
    transfer_s = np.asarray(point_to_point_s(sent, inside=span, rates=hardware.rates), dtype=float)
    if model.tied_embeddings:
        table = local_units(model.vocab, columns.tp) * (model.hidden * precision.bytes_of("reduce"))
        ends = group_span(block * np.maximum(placed.pp - 1, 1), np.full_like(placed.pp, 2), hardware.domain_sizes)
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
    return layer_sync(
        np.maximum(costs.dense_parameters, 0.0),
        costs.expert_parameters,
        costs.forward_s,
        costs.backward_s,
        sharding,
        network,
        workload,
    )
