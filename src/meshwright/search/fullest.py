"""Workers of a pipeline shape whose memory may be the largest, at the moments when it may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.estimate.pipeline import StageCounts, computed_counts
from meshwright.estimate.run import Live
from meshwright.schedules import Schedule
from meshwright.shapes import Float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Fullest:
    """These workers."""

    held: Float[np.ndarray, "fullest items"]
    """Their items."""
    alive: Float[np.ndarray, "fullest items"]
    """Their items times what is in flight."""
    versions: Float[np.ndarray, "fullest"]
    """Versions of the weights they keep."""
    first: Float[np.ndarray, "items"]
    """Items of worker 0, at which the paths end."""


def fullest_workers(
    schedule: Schedule,
    now: Live,
    counts: StageCounts,
    versions: Float[np.ndarray, " workers"],
) -> Fullest:
    """The workers that may need the most memory: no other one has as many of each item.

    Args:
        schedule: of the pipeline.
        now: what is alive.
        counts: items of each chunk.
        versions: of the weights that each worker keeps.
    """
    own = _held(counts)
    work = computed_counts(schedule, counts)
    worker = np.repeat(np.arange(len(own)), [len(living) for living in now.kept])
    held = own[worker]
    alive = np.einsum("nv,nvi->ni", np.concatenate(now.kept).astype(float), work[worker])
    if counts.bare is not None:
        alive = alive + np.einsum("nv,nvi->ni", np.concatenate(now.made).astype(float), counts.bare[worker])
    if now.guests.any():
        alive = alive + (now.guests[:, None] * work[::-1].sum(axis=1))[worker]
    several = [] if (versions == 1.0).all() else [versions[worker, None]]
    rows = np.concatenate([held, alive, *several], axis=1)
    rows = rows[:, rows.any(axis=0)]
    kept = np.array(_undominated(rows.tobytes(), *rows.shape))
    return Fullest(held=held[kept], alive=alive[kept], versions=versions[worker[kept]], first=own[0])


@lru_cache(maxsize=4096)
def _undominated(values: bytes, count: int, columns: int) -> tuple[int, ...]:
    """Rows that no other one covers, by number; one of equal rows. Pipelines that recompute otherwise have the same.

    Args:
        values: of all rows, in 64 bits.
        count: of rows.
        columns: of each.
    """
    rows = np.frombuffer(values).reshape(count, columns)
    # In descending order, column after column, of equal rows the earlier first: nothing covers the first that is left.
    left = np.lexsort((-rows).T[::-1])
    kept = []
    while len(left):
        kept.append(int(left[0]))
        left = left[(rows[left] > rows[left[0]]).any(axis=1)]
    return tuple(sorted(kept))


def _held(counts: StageCounts) -> Float[np.ndarray, "workers items"]:
    """What each worker holds, its stages for others included."""
    own = counts.work.sum(axis=1)
    return own if counts.shadow is None else own + counts.shadow
