"""Data-parallel gradient traffic, and how much of it shows beside the backward pass.

Gradients of a block are ready when its backward pass ends. Chunks but the last send theirs beside the next chunk's
backward pass of all stages; the last chunk's blocks each beside the next one; the very last block shows.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.pipeline import Flow
from meshwright.calculon.rows import Column, ExecutionRows
from meshwright.calculon.traffic import collectives, traffic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraffic:
    """Data-parallel traffic of a batch; 0 in inference and with one replica."""

    size_bytes: Column
    """Gradients of a block."""
    link_s: Column
    exposed_s: Column
    chunk_need: Column | None
    """Bandwidth (bytes/s) that would hide the traffic of all chunks but the last; none where not asked for."""
    tail_need: Column | None
    """The same of the last chunk."""


def gradient_traffic(rows: ExecutionRows, flow: Flow, *, needs: bool) -> GradientTraffic:
    """Traffic, and what of it shows.

    Args:
        rows: the executions.
        flow: their blocks' backward times.
        needs: whether to give the two required bandwidths.
    """
    columns = rows.columns
    block_s, link_s = reduction_s(rows)
    overlapped = columns.training & (columns.data_par > 1) & columns.data_par_overlap
    size = np.where(columns.training & (columns.data_par > 1), rows["block_weight_space"], 0.0) if needs else block_s
    if not overlapped.any():
        zeros = np.zeros(block_s.shape) if needs else None
        return GradientTraffic(size_bytes=size, link_s=link_s, exposed_s=link_s, chunk_need=zeros, tail_need=zeros)
    window = _Window.of(rows, flow, room_of(rows, flow))
    exposed_s = np.where(overlapped, window.exposed_s(rows, flow, block_s), link_s)
    if not needs:
        return GradientTraffic(size_bytes=size, link_s=link_s, exposed_s=exposed_s, chunk_need=None, tail_need=None)
    c, usage = rows.chunk_blocks, window.usage
    chunk_room = window.all_stages_s + window.compute_s * usage - window.same_as_stage * flow.stage_bw_s
    tail_room = window.last_s + rows.inner_blocks * block_s * usage
    factor = c * rows["block_weight_space"] * _scalars(rows)
    return GradientTraffic(
        size_bytes=size,
        link_s=link_s,
        exposed_s=exposed_s,
        chunk_need=_need(factor, chunk_room * (rows.chunks - 1), overlapped),
        tail_need=_need(factor, tail_room, overlapped),
    )


def reduction_s(rows: ExecutionRows) -> tuple[Column, Column]:
    """Seconds to reduce a block's gradients, and those of a stage: 0 in inference and with one replica."""
    columns = rows.columns
    block_s = traffic_s(rows, rows["block_weight_space"])
    return block_s, np.where(columns.training & (columns.data_par > 1), rows.blocks * block_s, 0.0)


def hidden_s(rows: ExecutionRows, flow: Flow, room: Room, block_s: Column) -> Column:
    """Seconds that show of traffic that overlaps, for rows that train with more than one replica.

    Args:
        rows: the executions.
        flow: their blocks' backward times.
        room: what the traffic may hide behind.
        block_s: the block seconds to reduce a block's gradients.
    """
    return _Window.of(rows, flow, room).exposed_s(rows, flow, block_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a block's backward pass and its optimizer step leave free, whatever network the traffic runs on."""

    free_base_s: Column
    free_edge_s: Column
    """Backward pass and optimizer step without memory time."""
    busy_base_s: Column
    busy_edge_s: Column
    """The part of it in which the link of tensor traffic is busy."""
    step_s: Column
    """Optimizer step without memory time."""
    compute_s: Column
    """Compute of the backward pass and the optimizer step, slowed by traffic beside it."""


def room_of(rows: ExecutionRows, flow: Flow) -> Room:
    """The room of every row's blocks; only an optimizer that is not sharded steps while traffic runs."""
    unsharded = ~rows.columns.optimizer_sharding
    step_s = unsharded * (rows["block_optim_time"] - rows["block_optim_mem_time"])
    free_s = step_s - rows["busy_mem_time"]
    return Room(
        free_base_s=flow.bw_base_s + free_s,
        free_edge_s=flow.bw_edge_s + free_s,
        busy_base_s=rows["bw_link_base"],
        busy_edge_s=rows["bw_link_edge"],
        step_s=step_s,
        compute_s=rows["bw_flops_time"] + unsharded * rows["block_optim_flops_time"],
    )


def _need(sent: Column, room: Column, asked: np.ndarray) -> Column:
    there = asked & (room > 0)
    return np.where(there, sent / np.where(there, room, 1.0), 0.0)


def _scalars(rows: ExecutionRows) -> Column:
    scalars = [
        sum(network.operations[name][0] for name in collectives(sharded))
        for network in rows.prepared.system.networks
        for sharded in (False, True)
    ]
    return np.asarray(scalars)[rows.columns.data_par_net * 2 + rows.columns.optimizer_sharding]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """What the traffic of a chunk may hide behind."""

    all_stages_s: Column
    """A chunk's backward pass through all stages, without memory time and busy links."""
    last_s: Column
    """The last chunk's backward pass of one stage."""
    block_compute_s: Column
    """Compute of one block's backward pass, slowed by traffic beside it."""
    compute_s: Column
    """The same of a chunk through all stages."""
    usage: Column
    """Share of the processor that the traffic takes."""
    same_as_stage: np.ndarray
    """Whether stage traffic runs on the same network."""

    @classmethod
    def of(cls, rows: ExecutionRows, flow: Flow, room: Room) -> _Window:
        columns, c, p = rows.columns, rows.chunk_blocks, rows.stages
        same_as_tensor = columns.data_par_net == columns.tensor_par_net
        base_s = room.free_base_s - same_as_tensor * room.busy_base_s
        edge_s = room.free_edge_s - same_as_tensor * room.busy_edge_s
        chunk_s = rows.inner_blocks * base_s + edge_s
        tail_s = chunk_s - flow.stage_bw_s - (flow.bw_base_s + flow.bw_edge_s) / 2 + room.step_s
        return cls(
            all_stages_s=p * chunk_s,
            last_s=np.where(c == 1, 0.0, tail_s),
            block_compute_s=room.compute_s,
            compute_s=p * c * room.compute_s,
            usage=rows.of_network(columns.data_par_net, [one.processor_usage for one in rows.prepared.system.networks]),
            same_as_stage=columns.data_par_net == columns.pipeline_par_net,
        )

    def exposed_s(self, rows: ExecutionRows, flow: Flow, block_s: Column) -> Column:
        """What shows of traffic that takes `block_s` per block.

        B1: recompute's memory and compute time, both too large, widen or narrow the window: more may show than is sent.
        """
        chunk_s, inner_s = rows.chunk_blocks * block_s, rows.inner_blocks * block_s
        inner = chunk_s - (self.all_stages_s - self._collisions(rows, flow, chunk_s) * flow.stage_bw_s)
        inner = inner + self.compute_s * self.usage
        tail = inner_s + self.block_compute_s * self.usage - self.last_s
        hidden_inner, hidden_tail = chunk_s * self.usage, inner_s * self.usage
        if rows.prepared.fixed:
            chunks_s, tail_s = np.maximum(inner, hidden_inner), np.maximum(tail, hidden_tail)
        else:
            # B16: traffic that only just fits shows more (its share of the processor) than what only just does not.
            chunks_s, tail_s = np.where(inner > 0, inner, hidden_inner), np.where(tail > 0, tail, hidden_tail)
        return block_s + (rows.chunks - 1) * chunks_s + tail_s

    def _collisions(self, rows: ExecutionRows, flow: Flow, chunk_s: Column) -> Column:
        """Stage transfers that meet a chunk's gradient traffic on a shared network."""
        n, p = rows.micro_batches, rows.stages
        backward_s = rows.inner_blocks * flow.bw_base_s + flow.bw_edge_s
        left = n - p * np.floor(n / p)
        most = np.where(left > 0, left, p)
        busy = np.where(backward_s > 0, backward_s, 1.0)
        return self.same_as_stage * np.minimum(np.floor(chunk_s / busy), most)
