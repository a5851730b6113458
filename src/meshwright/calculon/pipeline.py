"""Blocks through a pipeline stage: stage traffic, offload beside compute, and the bubble.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.rows import Column, ExecutionRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Seconds of one micro-batch through one block of a stage, everything that shows included."""

    stage_fw_s: Column
    """Sending a block's output to the next stage."""
    stage_bw_s: Column
    """Sending its gradient back."""
    alone_fw_edge_s: Column
    """The edge block with its stage traffic, without offload."""
    alone_bw_edge_s: Column
    fw_base_s: Column
    fw_edge_s: Column
    bw_base_s: Column
    bw_edge_s: Column
    """The same with offload: not less than memory and offload on the memory's port."""
    fw_offload_bytes: Column
    bw_offload_bytes: Column
    """Volume of a block's offload."""
    unpaid_s: Column
    """B5: latency in the edge block's time (and in the bubble) for a transfer that nobody makes or pays for."""
    base_s: Column
    edge_s: Column
    """Forward and backward together."""


def flow(rows: ExecutionRows) -> Flow:
    """Times of base and edge blocks.

    Nothing of stage traffic overlaps. Offload hides behind all that is not memory time: what shows is
    max(0, offload + memory time - time of the block).
    """
    stage_fw_s, stage_bw_s = _stage_traffic_s(rows)
    fw_bytes, bw_bytes = _offload_bytes(rows)
    rate = rows.prepared.system.mem2.rate
    columns = rows.columns
    fw_floor_s, bw_floor_s = rows["block_fw_mem_time"], rows["bw_mem_time"]
    if (columns.weight_offload | columns.activations_offload | columns.optimizer_offload).any():
        fw_floor_s = rate.time_s(fw_bytes) + fw_floor_s
        bw_floor_s = rate.time_s(bw_bytes) + bw_floor_s
    alone = columns.pipeline_par == 1
    if rows.trains:
        unpaid_s = alone * (stage_fw_s + stage_bw_s)
    else:
        unpaid_s = alone * stage_fw_s + (alone | ~columns.training) * stage_bw_s
    alone_fw_edge_s = rows["alone_fw_edge"] + stage_fw_s
    alone_bw_edge_s = rows["alone_bw_edge"] + stage_bw_s
    fw_base_s, fw_edge_s = np.maximum(rows["alone_fw_base"], fw_floor_s), np.maximum(alone_fw_edge_s, fw_floor_s)
    bw_base_s, bw_edge_s = np.maximum(rows["alone_bw_base"], bw_floor_s), np.maximum(alone_bw_edge_s, bw_floor_s)
    return Flow(
        stage_fw_s=stage_fw_s,
        stage_bw_s=stage_bw_s,
        alone_fw_edge_s=alone_fw_edge_s,
        alone_bw_edge_s=alone_bw_edge_s,
        fw_base_s=fw_base_s,
        fw_edge_s=fw_edge_s,
        bw_base_s=bw_base_s,
        bw_edge_s=bw_edge_s,
        fw_offload_bytes=fw_bytes,
        bw_offload_bytes=bw_bytes,
        unpaid_s=unpaid_s,
        base_s=fw_base_s + bw_base_s,
        edge_s=fw_edge_s + bw_edge_s,
    )


def _stage_traffic_s(rows: ExecutionRows) -> tuple[Column, Column]:
    """Seconds of a transfer to the next stage and of its gradient back.

    B5: one stage, and the backward pass in inference, pay the latency of a transfer that nobody makes.
    """
    columns, prepared = rows.columns, rows.prepared
    networks = prepared.system.networks
    latency_s = rows.of_network(columns.pipeline_par_net, [one.latency_s for one in networks])
    sent_s = rows["p2p_0"]
    for place in range(1, len(networks)):
        sent_s = np.where(columns.pipeline_par_net == place, rows[f"p2p_{place}"], sent_s)
    idle_s = np.zeros(latency_s.shape) if prepared.fixed else latency_s
    forward_s = np.where(columns.pipeline_par > 1, sent_s, idle_s)
    backward_s = forward_s if rows.trains else np.where(columns.training, forward_s, idle_s)
    return forward_s, backward_s


def _offload_bytes(rows: ExecutionRows) -> tuple[Column, Column]:
    """Bytes a block moves to or from the second tier: the larger of weights and activations forward, all backward."""
    columns = rows.columns
    weights = columns.weight_offload * rows["block_weight_space"]
    activations = columns.activations_offload * rows["offloaded_act"]
    backward = weights + activations + columns.optimizer_offload * rows["block_optimizer_space"]
    return np.maximum(weights, activations), rows.in_training(backward)


def chunk_s(rows: ExecutionRows, blocks: Flow) -> Column:
    """Seconds of one micro-batch through one chunk, forward and backward."""
    return rows.inner_blocks * blocks.base_s + blocks.edge_s


def bubble_s(rows: ExecutionRows, blocks: Flow, chunk: Column) -> Column:
    """Idle seconds of 1F1B: what the rounds take, less what stages with fewer blocks save."""
    idle_s = rows.rounds * chunk
    if not rows.uneven:
        return idle_s
    both_s = (blocks.base_s + blocks.edge_s) / 2
    return idle_s - rows.missing * np.where(rows.chunk_blocks > 1, both_s, blocks.edge_s)
