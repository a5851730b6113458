"""The order that 1F1B and its relatives share: warm up with forwards, alternate, drain with backwards."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.shapes import Int


def alternating_table(
    placement: Placement,
    micro_batches: int,
    warmup: Int[np.ndarray, " workers"],
    forward: tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]],
    backward: tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]],
) -> ScheduleTable:
    """Every worker runs `warmup` forwards, then one forward and one backward in turn, then the backwards that are left.

    Args:
        placement: a loop of virtual stages.
        micro_batches: of the step.
        warmup: forwards before the first pair, at most all.
        forward: chunk and micro-batch of the forwards in order, the same on every worker.
        backward: chunk and micro-batch of the backwards in order.
    """
    p, count = placement.p, len(forward[0])
    index = np.arange(count)
    first = warmup[:, None]
    forward_at = np.where(index < first, index, 2 * index - first)
    backward_at = np.where(index < count - first, first + 2 * index + 1, count + index)
    kind = np.empty((p, 2 * count), np.int32)
    chunk, micro_batch = np.empty_like(kind), np.empty_like(kind)
    for what, at, (chunks, units) in ((Kind.F, forward_at, forward), (Kind.B, backward_at, backward)):
        np.put_along_axis(kind, at, int(what), axis=1)
        np.put_along_axis(chunk, at, chunks[None, :], axis=1)
        np.put_along_axis(micro_batch, at, units[None, :], axis=1)
    worker = np.repeat(np.arange(p, dtype=np.int32), 2 * count)
    return ScheduleTable(
        placement=placement,
        micro_batches=(micro_batches,),
        worker=worker,
        kind=kind.reshape(-1),
        stage=chunk.reshape(-1) * p + worker,
        micro_batch=micro_batch.reshape(-1),
    )
