"""Activations that live at the same time, counted along a schedule's table."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.bounds import covering
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Float, Int


def live_vectors(table: ScheduleTable) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
    """Largest vectors of live activations by chunk, per worker, counted along its order.

    Args:
        table: the schedule.
    """
    change = np.zeros((table.tasks, table.v), np.int32)
    change[np.arange(table.tasks), table.chunk] = np.select(
        [table.kind == Kind.F, (table.kind == Kind.B) | (table.kind == Kind.W)], [1, -1], 0
    )
    workers = []
    for low, high in zip(table.first[:-1], table.first[1:], strict=True):
        own = change[low:high]
        rises = own.sum(axis=1) > 0
        peaks = rises & np.append(~rises[1:], True)
        workers.append(largest_vectors(np.cumsum(own, axis=0)[peaks]))
    return tuple(workers)


def peak_live_bytes(
    table: ScheduleTable,
    stage_bytes: Float[np.ndarray, "workers chunks"],
    released_by_input: Float[np.ndarray, "workers chunks"],
) -> Float[np.ndarray, " workers"]:
    """Most bytes of live activations per worker along its order, where input gradients free a part of them.

    Args:
        table: the schedule.
        stage_bytes: activation of one micro-batch by worker and chunk.
        released_by_input: share of it that I frees; W frees the rest.
    """
    share = released_by_input[table.worker, table.chunk]
    kinds = [table.kind == kind for kind in (Kind.F, Kind.I, Kind.W, Kind.B)]
    change = np.select(kinds, [1.0, -share, share - 1.0, -1.0], 0.0) * stage_bytes[table.worker, table.chunk]
    return np.array(
        [
            np.cumsum(change[low:high]).max(initial=0.0)
            for low, high in zip(table.first[:-1], table.first[1:], strict=True)
        ]
    )


def largest_vectors(vectors: Int[np.ndarray, "vectors chunks"]) -> Int[np.ndarray, "largest chunks"]:
    """The distinct vectors that no other one covers in every entry (the Pareto-maximal ones).

    Args:
        vectors: counts.
    """
    in_order = vectors[np.lexsort(vectors.T[::-1])]
    kept = in_order[np.append(True, (in_order[1:] != in_order[:-1]).any(axis=1))]
    totals = kept.sum(axis=1)
    # Of distinct vectors with the same total none covers another.
    if totals.min() < totals.max():
        kept = kept[covering(kept).sum(axis=1) == 1]
    kept.setflags(write=False)
    return kept
