"""How many activations a schedule keeps alive at once: kept from a forward, or made and still needed.

A forward keeps what the plan's recompute leaves. A task R makes all activations again until the backward ends. A split
backward needs inputs of its products and gradients of their outputs until the weight gradient has run: about what a
forward without recompute keeps (32 of 34 s b h in a GPT layer; Qi et al. 2024, Zero Bubble, table 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.schedules import Kind, Schedule
from meshwright.schedules.base import largest_vectors
from meshwright.shapes import Int

Vectors = tuple[Int[np.ndarray, "_ chunks"], ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Live:
    """Per worker the largest counts by chunk that live at the same time; entry n of both is one moment."""

    kept: Vectors
    """From the forward to the backward or the input gradient."""
    made: Vectors
    """From a recomputation to its backward, and from an input gradient to its weight gradient."""
    guests: Int[np.ndarray, " workers"]
    """Activations of worker p - 1 - r that lie on worker r at its peak."""


def live(schedule: Schedule, p: int, m: int, v: int) -> Live:
    """What is alive at the moments that may be the fullest.

    Args:
        schedule: of the pipeline.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker.

    Returns:
        Counts; peak bytes of a worker = max over its moments of kept @ bytes kept + made @ bytes made, and its guests.
    """
    return _live(schedule, p, m if schedule.flushes else max(m, p), v)


@lru_cache(maxsize=1024)
def _live(schedule: Schedule, p: int, m: int, v: int) -> Live:
    limits = schedule.parked(p, m)
    makes = bool(schedule.kinds & {Kind.W, Kind.R}) and not schedule.shadows
    if makes:
        both = _moments(schedule, p, m, v)
        kept, made = tuple(b[:, 0] for b in both), tuple(b[:, 1] for b in both)
    else:
        kept = tuple(
            np.minimum(vectors, own * schedule.sections())
            for vectors, own in zip(schedule.in_flight(p, m, v), limits[:, 0].tolist(), strict=True)
        )
        made = tuple(np.zeros_like(vectors) for vectors in kept)
    return Live(kept=kept, made=made, guests=limits[:, 1])


def _moments(schedule: Schedule, p: int, m: int, v: int) -> list[Int[np.ndarray, "_ 2 chunks"]]:
    """Counts along the table behind every task that adds something, without those that others cover."""
    table = schedule.table(p, m, v)
    kind, chunks = table.kind, table.v
    change = np.zeros((table.tasks, 2, chunks), np.int32)
    at = np.arange(table.tasks)
    split = np.isin(kind, [Kind.I, Kind.W])
    change[at, 0, table.chunk] = np.select([kind == Kind.F, np.isin(kind, [Kind.B, Kind.I])], [1, -1], 0)
    again = _recomputed(table.kind, table.stage, table.micro_batch) if Kind.R in schedule.kinds else split
    change[at, 1, table.chunk] = np.select(
        [kind == Kind.R, kind == Kind.I, kind == Kind.W, (kind == Kind.B) & again], [1, 1, -1, -1], 0
    )
    adds = np.isin(kind, [Kind.F, Kind.R, Kind.I])
    found = []
    for low, high in zip(table.first[:-1], table.first[1:], strict=True):
        counts = np.cumsum(change[low:high].reshape(high - low, -1), axis=0)
        found.append(largest_vectors(counts[adds[low:high]]).reshape(-1, 2, chunks))
    return found


def _recomputed(
    kind: Int[np.ndarray, " tasks"], stage: Int[np.ndarray, " tasks"], unit: Int[np.ndarray, " tasks"]
) -> np.ndarray:
    """Tasks whose virtual stage and micro-batch have a recomputation."""
    code = stage.astype(np.int64) * (int(unit.max()) + 1) + unit
    return np.isin(code, code[kind == Kind.R])
