"""A whole batch: every statistic that is not a single block's, from blocks, memory, pipeline and data-parallel traffic.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.data_parallel import GradientTraffic, gradient_traffic
from meshwright.calculon.memory import Spaces, spaces
from meshwright.calculon.pipeline import Flow, bubble_s, chunk_s, flow
from meshwright.calculon.rows import Column, ExecutionRows
from meshwright.calculon.vocabulary import VocabularyTimes, vocabulary_times

OF_BLOCKS = (
    *(
        f"block_{stage}_{amount}"
        for stage in ("fw", "re", "agrad", "wgrad", "optim")
        for amount in ("flops", "flops_time", "mem_accessed", "mem_time", "time")
    ),
    *(
        f"{block}block_{name}"
        for block in ("base", "edge")
        for name in (
            "fw_tp_time",
            "fw_tp_time_exposed",
            "recomm_time",
            "recomm_time_exposed",
            "agrad_tp_time",
            "agrad_tp_time_exposed",
            "fw_tp_size",
            "bw_tp_size",
            "recomm_size",
        )
    ),
    "tp_bw_overlap_req",
    "block_weight_space",
    "block_act_working_space",
    "block_act_storage_space",
    "block_act_checkpoint_size",
    "block_weight_grad_space",
    "block_weight_grad_space_no_sharding",
    "block_act_grad_space",
    "block_optimizer_space",
)
"""Statistics that a row takes from its block or its optimizer step unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a batch takes."""

    blocks: Flow
    chunk_s: Column
    """One micro-batch through one chunk of a stage."""
    bubble_s: Column
    gradients: GradientTraffic
    vocabulary: VocabularyTimes | None
    optimizer_s: Column
    total_s: Column


def batch(rows: ExecutionRows, *, needs: bool = False) -> Batch:
    """Seconds of a batch: n v T + bubble + data-parallel traffic that shows + optimizer step.

    T is one micro-batch through one chunk; the sum of the eleven times Calculon adds up is the same.

    Args:
        rows: the executions.
        needs: whether to give the bandwidths that would hide data-parallel traffic.
    """
    blocks = flow(rows)
    chunk = chunk_s(rows, blocks)
    bubble = bubble_s(rows, blocks, chunk)
    gradients = gradient_traffic(rows, blocks, needs=needs)
    words = vocabulary_times(rows)
    optimizer_s = rows.blocks * rows["block_optim_time"]
    total_s = rows.passes * (chunk - blocks.unpaid_s) + bubble + gradients.exposed_s + optimizer_s
    if words is not None:
        total_s = total_s + words.fw_s + words.bw_s + words.optimizer_s + words.traffic_s
    return Batch(
        blocks=blocks,
        chunk_s=chunk,
        bubble_s=bubble,
        gradients=gradients,
        vocabulary=words,
        optimizer_s=optimizer_s,
        total_s=total_s,
    )


def statistics(rows: ExecutionRows) -> Iterator[tuple[str, Column]]:
    """All 96 statistics by name."""
    whole, memory = batch(rows, needs=True), spaces(rows)
    for name in OF_BLOCKS:
        yield name, rows[name]
    yield from _times(rows, whole)
    yield from _spaces(rows, memory)
    yield from _needs(rows, whole)


def _times(rows: ExecutionRows, whole: Batch) -> Iterator[tuple[str, Column]]:
    columns, blocks, words = rows.columns, whole.blocks, whole.vocabulary
    per_stage = rows.blocks * rows.micro_batches
    fw_s = rows["block_fw_time"] * per_stage
    bw_s = (rows["block_agrad_time"] + rows["block_wgrad_time"]) * per_stage
    optimizer_s = whole.optimizer_s
    link_s, exposed_s = whole.gradients.link_s, whole.gradients.exposed_s
    if words is not None:
        fw_s, bw_s, optimizer_s = fw_s + words.fw_s, bw_s + words.bw_s, optimizer_s + words.optimizer_s
        link_s, exposed_s = link_s + words.traffic_s, exposed_s + words.traffic_s
    yield "fw_time", fw_s
    yield "bw_time", bw_s
    yield "optim_step_time", optimizer_s
    yield "recompute_time", rows["block_re_time"] * per_stage
    yield "bubble_time", whole.bubble_s
    yield "dp_comm_link_time", link_s
    yield "dp_comm_exposed_time", exposed_s
    for kind, suffix in (("link", ""), ("exposed", "_exposed")):
        base, edge = (rows[f"{block}block_recomm_time{suffix}"] for block in ("base", "edge"))
        yield f"recomm_{kind}_time", rows.per_batch(base, edge)
        base, edge = (
            rows[f"{block}block_fw_tp_time{suffix}"] + rows[f"{block}block_agrad_tp_time{suffix}"]
            for block in ("base", "edge")
        )
        yield f"tp_comm_{kind}_time", rows.per_batch(base, edge)
    sent = columns.pipeline_par > 1
    stage_s = np.where(sent, blocks.stage_fw_s + rows.in_training(blocks.stage_bw_s), 0.0)
    stage_s = rows.micro_batches * rows.chunks * stage_s
    yield "pp_comm_link_time", stage_s
    yield "pp_comm_exposed_time", stage_s
    size = np.where(sent, rows["stage_bytes"], 0.0)
    yield "block_fw_pp_size", size
    yield "block_bw_pp_size", rows.in_training(size)
    yield "block_dp_size", whole.gradients.size_bytes
    yield (
        "fw_offload_exposed_time",
        rows.per_batch(blocks.fw_base_s - rows["alone_fw_base"], blocks.fw_edge_s - blocks.alone_fw_edge_s),
    )
    yield (
        "bw_offload_exposed_time",
        rows.per_batch(blocks.bw_base_s - rows["alone_bw_base"], blocks.bw_edge_s - blocks.alone_bw_edge_s),
    )
    yield "total_time", whole.total_s

    # B2: optimizer flop count once per micro-batch, and sums of tensor traffic as useful.
    trained = rows["block_agrad_flops"] + rows["block_wgrad_flops"]
    useful = rows["block_fw_flops"] + trained + rows["block_optim_flops"]
    if rows.prepared.fixed:
        useful = rows["block_fw_flops"] + trained - rows["sum_flops"]
    perfect_s = per_stage * useful / rows["peak_flop_per_s"]
    if words is not None:
        perfect_s = perfect_s + words.flop / rows["peak_flop_per_s"]
    working_s = fw_s + bw_s + optimizer_s
    yield "useful_flops", useful
    yield "compute_efficiency", perfect_s / working_s
    yield "system_efficiency", working_s / whole.total_s
    yield "total_efficiency", perfect_s / whole.total_s
    yield "sample_rate", columns.batch_size / whole.total_s


def _spaces(rows: ExecutionRows, memory: Spaces) -> Iterator[tuple[str, Column]]:
    # B13: in inference the original says None.
    none = 0.0 if rows.prepared.fixed else np.nan
    yield "weight_space", memory.weights
    yield "act_space", memory.activations
    yield "act_checkpoint_size", memory.checkpoints
    yield "act_grad_space", memory.act_grads
    yield "weight_grad_space", memory.weight_grads
    yield "optimizer_space", memory.optimizer
    yield "weight_space_with_offload", memory.weights_resident
    yield "act_space_with_offload", memory.activations_resident
    yield "act_checkpoint_size_with_offload", np.where(rows.columns.training, memory.checkpoints_resident, none)
    yield "act_grad_space_with_offload", memory.act_grads
    yield "weight_grad_space_with_offload", memory.weight_grads_resident
    yield "optimizer_space_with_offload", memory.optimizer_resident
    yield "proc_mem_tier1_cap_req", memory.tier1
    yield "proc_mem_tier2_cap_req", memory.tier2


def _needs(rows: ExecutionRows, whole: Batch) -> Iterator[tuple[str, Column]]:
    """Bandwidths that would hide traffic and offload; infinite where there is nothing to hide it behind."""
    blocks, training = whole.blocks, rows.columns.training
    fw_gap_s = np.minimum(rows["alone_fw_base"], blocks.alone_fw_edge_s) - rows["block_fw_mem_time"]
    bw_gap_s = np.minimum(rows["alone_bw_base"], blocks.alone_bw_edge_s) - rows["bw_mem_time"]
    state = rows["block_weight_grad_space"] + rows["block_optimizer_space"]
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.nan_to_num(blocks.fw_offload_bytes / fw_gap_s, posinf=np.inf)
        backward = np.nan_to_num(blocks.bw_offload_bytes / bw_gap_s, posinf=np.inf)
        yield "act_offload_bw_req", rows["offloaded_act"] / fw_gap_s
        yield "weight_offload_bw_req", rows["block_weight_space"] / fw_gap_s
        yield "optim_offload_bw_req", np.where(training, state / bw_gap_s, 0.0)
    yield "offload_mem_bw_req", np.where(training, np.maximum(forward, backward), forward)
    assert whole.gradients.chunk_need is not None
    assert whole.gradients.tail_need is not None
    yield "dp_bw_overlap_req_chunk", whole.gradients.chunk_need
    yield "dp_bw_overlap_req_tail", whole.gradients.tail_need
