"""Activations that live at the same time, counted along a schedule's table."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.bounds import covering
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Int


def live_vectors(table: ScheduleTable) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
    """Per worker the largest vectors of live activations by chunk, counted along its order.

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
