"""Workers of pipeline shapes whose memory may be the largest, at the moments when it may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.estimate.pipeline import StageCounts, computed_counts
from meshwright.estimate.run import Live, Vectors
from meshwright.schedules import Schedule
from meshwright.shapes import Float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Fullest:
    """These workers of each of some shapes, the last one repeated where a shape has fewer than another."""

    held: Float[np.ndarray, "shapes fullest items"]
    """Items of these workers."""
    alive: Float[np.ndarray, "shapes fullest items"]
    """Items of these workers times the micro-batches in flight."""
    versions: Float[np.ndarray, "shapes fullest"]
    """Versions of the weights they keep."""
    first: Float[np.ndarray, "shapes items"]
    """Items of worker 0, at which the paths end."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OneMicroBatch:
    """Worker 0 with what no order of a schedule's tasks can keep less of."""

    first: Float[np.ndarray, "shapes items"]
    """Items of worker 0."""
    alive: Float[np.ndarray, "shapes one items"]
    """Items of one micro-batch: before its last stage turns back, all chunks of its chain keep what it left there."""


def one_micro_batch(schedule: Schedule, counts: StageCounts) -> OneMicroBatch:
    """Worker 0 while one micro-batch, or one section of one, is on its way.

    Args:
        schedule: the schedule of the pipeline.
        counts: items of each chunk, of all shapes.
    """
    work = computed_counts(schedule, counts)[:, 0]
    # Chunks of another chain are those of other micro-batches.
    alive = work.sum(axis=1, keepdims=True) if schedule.chains == 1 else work[:, :1]
    return OneMicroBatch(first=_held(counts)[:, 0], alive=alive)


def fullest_workers(
    schedule: Schedule,
    now: Live,
    counts: StageCounts,
    versions: Float[np.ndarray, " workers"],
) -> Fullest:
    """The workers that may need the most memory: no other one has as many of each item.

    Args:
        schedule: the schedule of the pipeline.
        now: what is alive.
        counts: items of each chunk, of all shapes.
        versions: the versions of the weights that each worker keeps.
    """
    own = _held(counts)
    work = computed_counts(schedule, counts)
    worker = np.repeat(np.arange(own.shape[1]), [len(living) for living in now.kept])
    held = own[:, worker]
    alive = _in_flight(now.kept, work)
    if counts.bare is not None:
        alive = alive + _in_flight(now.made, counts.bare)
    if now.guests.any():
        alive = alive + (now.guests[:, None] * work[:, ::-1].sum(axis=2))[:, worker]
    kept = []
    for own_held, own_alive in zip(held, alive, strict=True):
        several = [] if (versions == 1.0).all() else [versions[worker, None]]
        rows = np.concatenate([own_held, own_alive, *several], axis=1)
        rows = rows[:, rows.any(axis=0)]
        kept.append(_undominated(rows.tobytes(), *rows.shape))
    longest = max(len(numbers) for numbers in kept)
    index = np.array([(*numbers, *numbers[-1:] * (longest - len(numbers))) for numbers in kept])
    shape = np.arange(len(kept))[:, None]
    return Fullest(
        held=held[shape, index], alive=alive[shape, index], versions=versions[worker[index]], first=own[:, 0]
    )


@lru_cache(maxsize=4096)
def _undominated(values: bytes, count: int, columns: int) -> tuple[int, ...]:
    """Rows that no other one covers, by number; one of equal rows. Pipelines that recompute otherwise have the same.

    Args:
        values: the values of all rows, in 64 bits.
        count: the count of rows.
        columns: the number of columns of each.
    """
    rows = np.frombuffer(values).reshape(count, columns)
    # In descending order, column after column, of equal rows the earlier first: nothing covers the first that is left.
    left = np.lexsort((-rows).T[::-1])
    kept = []
    while len(left):
        kept.append(int(left[0]))
        left = left[(rows[left] > rows[left[0]]).any(axis=1)]
    return tuple(sorted(kept))


def _in_flight(
    living: Vectors, items: Float[np.ndarray, "shapes workers chunks items"]
) -> Float[np.ndarray, "shapes moments items"]:
    """Items of the chunk activations that live at the moments of all workers."""
    return np.concatenate([own.astype(float) @ items[:, worker] for worker, own in enumerate(living)], axis=1)


def _held(counts: StageCounts) -> Float[np.ndarray, "shapes workers items"]:
    """What each worker holds, its stages for others included."""
    own = counts.work.sum(axis=2)
    return own if counts.shadow is None else own + counts.shadow
