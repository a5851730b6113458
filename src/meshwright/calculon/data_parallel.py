"""Data-parallel gradient traffic, and how much of it shows beside the backward pass.

Gradients of a block are ready when its backward pass ends. Chunks but the last send theirs beside the next chunk's
backward pass of all stages; the last chunk's blocks each beside the next one; the very last block shows.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.pipeline import Flow
from meshwright.calculon.rows import Column, Rows
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


def gradient_traffic(rows: Rows, flow: Flow, *, needs: bool) -> GradientTraffic:
    """Traffic, and what of it shows.

    Args:
        rows: the executions.
        flow: their blocks' backward times.
        needs: also the two required bandwidths.
    """
    columns, c, v = rows.columns, rows.chunk_blocks, rows.chunks
    active = columns.training & (columns.data_par > 1)
    one_s = traffic_s(rows, rows["block_weight_space"])
    link_s = np.where(active, rows.blocks * one_s, 0.0)
    overlapped = active & columns.data_par_overlap
    size = np.where(active, rows["block_weight_space"], 0.0) if needs else one_s
    if not overlapped.any():
        zeros = np.zeros(one_s.shape) if needs else None
        return GradientTraffic(size_bytes=size, link_s=link_s, exposed_s=link_s, chunk_need=zeros, tail_need=zeros)

    usage = rows.of_network(columns.data_par_net, [one.processor_usage for one in rows.prepared.system.networks])
    window = _Window.of(rows, flow)
    chunk_s = c * one_s
    inner = chunk_s - (window.all_stages_s - window.collisions(rows, flow, chunk_s) * flow.stage_bw_s)
    inner = inner + window.compute_s * usage
    hidden_inner, hidden_tail = chunk_s * usage, (c - 1) * one_s * usage
    tail = (c - 1) * one_s + window.block_compute_s * usage - window.last_s
    if rows.prepared.fixed:
        inner_s, tail_s = np.maximum(inner, hidden_inner), np.maximum(tail, hidden_tail)
    else:
        # B16: traffic that only just fits shows more (its share of the processor) than traffic that only just does not.
        inner_s, tail_s = np.where(inner > 0, inner, hidden_inner), np.where(tail > 0, tail, hidden_tail)
    # B1: recompute's memory and compute time, both too large, widen or narrow the window: more may show than is sent.
    exposed_s = np.where(overlapped, one_s + (v - 1) * inner_s + tail_s, link_s)
    if not needs:
        return GradientTraffic(size_bytes=size, link_s=link_s, exposed_s=exposed_s, chunk_need=None, tail_need=None)
    chunk_room = (window.all_stages_s + window.compute_s * usage - window.same_as_stage * flow.stage_bw_s) * (v - 1)
    tail_room = window.last_s + hidden_tail
    factor = c * rows["block_weight_space"] * _scalars(rows)
    return GradientTraffic(
        size_bytes=size,
        link_s=link_s,
        exposed_s=exposed_s,
        chunk_need=_need(factor, chunk_room, overlapped),
        tail_need=_need(factor, tail_room, overlapped),
    )


def _need(sent: Column, room: Column, asked: np.ndarray) -> Column:
    there = asked & (room > 0)
    return np.where(there, sent / np.where(there, room, 1.0), 0.0)


def _scalars(rows: Rows) -> Column:
    scalars = [
        sum(network.operations[name][0] for name in collectives(sharded))
        for network in rows.prepared.system.networks
        for sharded in (False, True)
    ]
    return np.asarray(scalars)[rows.columns.data_par_net * 2 + rows.columns.optimizer_sharding]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """What the traffic may hide behind."""

    all_stages_s: Column
    """A chunk's backward pass through all stages, without memory time and busy links."""
    last_s: Column
    """The last chunk's backward pass of one stage."""
    block_compute_s: Column
    """Compute of one block's backward pass, slowed by traffic beside it."""
    compute_s: Column
    """The same of a chunk through all stages."""
    same_as_stage: np.ndarray
    """Whether stage traffic runs on the same network."""

    @classmethod
    def of(cls, rows: Rows, flow: Flow) -> _Window:
        columns, c, p = rows.columns, rows.chunk_blocks, rows.stages
        unsharded = ~columns.optimizer_sharding
        step_s = unsharded * (rows["block_optim_time"] - rows["block_optim_mem_time"])
        compute_s = rows["bw_flops_time"] + unsharded * rows["block_optim_flops_time"]
        free_s = step_s - rows["busy_mem_time"]
        same_as_tensor = columns.data_par_net == columns.tensor_par_net
        base_s = flow.bw_base_s + free_s - same_as_tensor * rows["bw_link_base"]
        edge_s = flow.bw_edge_s + free_s - same_as_tensor * rows["bw_link_edge"]
        chunk_s = (c - 1) * base_s + edge_s
        tail_s = chunk_s - flow.stage_bw_s - (flow.bw_base_s + flow.bw_edge_s) / 2 + step_s
        return cls(
            all_stages_s=p * chunk_s,
            last_s=np.where(c == 1, 0.0, tail_s),
            block_compute_s=compute_s,
            compute_s=p * c * compute_s,
            same_as_stage=columns.data_par_net == columns.pipeline_par_net,
        )

    def collisions(self, rows: Rows, flow: Flow, chunk_s: Column) -> Column:
        """Stage transfers that meet a chunk's gradient traffic on a shared network."""
        n, p = rows.micro_batches, rows.stages
        backward_s = (rows.chunk_blocks - 1) * flow.bw_base_s + flow.bw_edge_s
        left = n - p * np.floor(n / p)
        most = np.where(left > 0, left, p)
        busy = np.where(backward_s > 0, backward_s, 1.0)
        return self.same_as_stage * np.minimum(np.floor(chunk_s / busy), most)
