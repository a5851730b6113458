"""What a pipeline takes longer because its micro-batches differ in attended pairs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.estimate.sequences import WHOLE, SequenceRows, rows_of
from meshwright.schedules import Kind, Schedule, Times
from meshwright.shapes import Float
from meshwright.specs.workload import Workload

DRAWS = 16
"""Random steps that are simulated where no formula is known."""
STEADY = 4
"""Times p micro-batches, beyond which the wait grows with their number."""


def uneven_delay(
    schedule: Schedule, shape: tuple[int, int, int], at_once: Float[np.ndarray, " plans"], workload: Workload
) -> Float[np.ndarray, " plans"] | None:
    """Mean micro-batches' worth of attention that a pipeline takes longer.

    With M_i the expected largest of i micro-batches over the mean, workers that alternate directions wait for the
    largest of those that run at the same time, at most a = min(p, m), fewer while they fill and drain; all forwards and
    then all backwards are two flow shops:

        1F1B    2 sum over i < a of (M_i - 1) + (m + p - 1 - 2 (a - 1)) (M_a - 1)
        GPipe   (p - 1) (M_m - 1)
        others  mean of simulated steps of random micro-batches, less that of equal ones

    Args:
        schedule: the schedule of the pipeline.
        shape: workers, micro-batches, chunks.
        at_once: rows of a micro-batch, of each plan.
        workload: the step.

    Returns:
        None where all rows are alike.
    """
    rows = rows_of(workload)
    if rows is None or shape[0] == 1 or shape[1] == 1:
        return None
    each = np.maximum(at_once, 1).astype(np.int64)
    own = {int(count): _waits(schedule, shape, rows, int(count)) for count in np.unique(each)}
    return np.array([own[count] for count in each.tolist()])


def _waits(schedule: Schedule, shape: tuple[int, int, int], rows: SequenceRows, at_once: int) -> float:
    p, m, v = shape
    sections = schedule.sections()
    if schedule.unequal == "passes":
        return (p - 1) * _excess(rows, at_once, np.array([m]))[-1]
    if schedule.unequal == "alternating" or sections > 1:
        most = min(p, m)
        excess = _excess(rows, at_once, np.arange(1, most + 1))
        return 2.0 * sum(excess[:-1]) + (m + p - 1 - 2 * (most - 1)) * excess[-1]
    run = m if m <= STEADY * p else STEADY * p
    if schedule.problems(p, run, v):
        run = m
    return _simulated_s(schedule, (p, run, v), rows, at_once) * m / run


def _excess(rows: SequenceRows, at_once: int, counts: np.ndarray) -> list[float]:
    """M_i - 1 for counts of micro-batches."""
    found: list[float] = (rows.load(WHOLE, counts, np.full(len(counts), at_once)) - 1.0).tolist()
    return found


@lru_cache(maxsize=4096)
def _simulated_s(schedule: Schedule, shape: tuple[int, int, int], rows: SequenceRows, at_once: int) -> float:
    pairs = rows.each(WHOLE) / rows.pairs(WHOLE)
    random = np.random.default_rng(0)
    took = random.choice(pairs, p=rows.share, size=(DRAWS, shape[1], at_once)).mean(axis=2)
    # The drawn steps have the mean of all steps, so that only their order and spread count.
    took *= 1.0 / took.mean()
    ends = _ends(schedule, shape, np.concatenate([np.ones((1, shape[1])), took]))
    return float(ends[1:].mean() - ends[0])


def _ends(
    schedule: Schedule, shape: tuple[int, int, int], took: Float[np.ndarray, "draws micro_batches"]
) -> Float[np.ndarray, " draws"]:
    """Ends of steps whose micro-batches take so long, a third of it forward."""
    p, m, v = shape
    own = np.broadcast_to(took[:, None, None, :], (len(took), p, v, m)) / v
    some: dict[str, Any] = {"weight_s": own / 3} if Kind.W in schedule.kinds else {}
    if schedule.kinds & {Kind.R, Kind.X}:
        some["recompute_s"] = own / 3
    times = Times(forward_s=own / 3, backward_s=own * 2 / 3, by_micro_batch=True, **some)
    return np.asarray(schedule.end_s(p, m, v, times).max(axis=-1))
