"""Partition of a chain of layers into consecutive parts whose heaviest part is as light as possible.

What a pipeline does with its layers when the first stage also holds the embedding and the last one the head. Exact,
by dynamic programming on the matrix of all intervals. Apart from schedules: weights in, counts out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float, Int

# Loads closer than this part of the total are equal: sums of the same numbers in another order differ by less.
EQUAL_FRACTION = 1e-12
# Loads are counted in whole 2^-30 parts of the total where their squares are added: integers below 2^60, no rounding.
GRAIN_COUNT = 2**30
NOT_ALLOWED = 2**61


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Consecutive parts of a chain."""

    counts: tuple[int, ...]
    """Units in each part, in order."""
    bottleneck: float
    """Weight of the heaviest part, its extra included."""


def balanced_partition(
    weights: Sequence[float] | Float[np.ndarray, "runs"],
    *,
    parts: int,
    first_extra: float = 0.0,
    last_extra: float = 0.0,
    run_lengths: Sequence[int] | Int[np.ndarray, "runs"] | None = None,
    allow_empty_first: bool = False,
    allow_empty_last: bool = False,
) -> Partition:
    """The partition into `parts` consecutive parts with the smallest heaviest part.

    minimise max over parts of (sum of its weights + first_extra in the first + last_extra in the last part).
    Among equals, the smoothest: the smallest sum of squared loads. Among equals again, fewer units in the earliest
    part where two partitions differ, as earlier pipeline stages keep more micro-batches in flight.

    Args:
        weights: 0 or more, one per unit, or one per run of equal units.
        parts: number of parts, 1 or more.
        first_extra: weight on top in the first part (embedding), 0 or more.
        last_extra: weight on top in the last part (head and loss), 0 or more.
        run_lengths: units in each run of `weights`; one each if not given.
        allow_empty_first: the first part may hold no unit, only its extra.
        allow_empty_last: the last part may hold no unit, only its extra.

    Returns:
        Units per part, and the weight of the heaviest part.

    Raises:
        ValueError: fewer units than parts that need one.

    Source: Pinar and Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", JPDC 2004.
    """
    units = np.asarray(weights, dtype=float)
    if run_lengths is not None:
        units = np.repeat(units, run_lengths)
    least = np.ones(parts, dtype=int)
    least[0] -= allow_empty_first
    least[-1] -= allow_empty_last if parts > 1 else 0
    if len(units) < least.sum():
        raise ValueError(f"{len(units)} units cannot fill {parts} parts: at least {least.sum()} are needed")

    total = float(units.sum()) + first_extra + last_extra
    extras = [0.0] * parts
    extras[0] += first_extra
    extras[-1] += last_extra
    prefix = np.concatenate(([0.0], np.cumsum(units)))
    interval = prefix[None, :] - prefix[:, None]
    loads = {extra: interval + extra for extra in extras}

    bottleneck, _ = _best_chain([loads[extra] for extra in extras], np.maximum, least)
    ceiling = bottleneck + EQUAL_FRACTION * total
    # Smoothness is decided among integers, so that ties are ties and the same on every machine.
    grain = GRAIN_COUNT / total if total > 0 else 0.0
    squares = {
        extra: np.where(load <= ceiling, np.rint(load * grain).astype(np.int64) ** 2, NOT_ALLOWED)
        for extra, load in loads.items()
    }
    _, counts = _best_chain([squares[extra] for extra in extras], _saturating_add, least)
    return Partition(counts=counts, bottleneck=float(bottleneck))


def _best_chain(
    costs: Sequence[Float[np.ndarray, "cuts cuts"] | Int[np.ndarray, "cuts cuts"]],
    combine: Callable[..., np.ndarray],
    least: Int[np.ndarray, "parts"],
) -> tuple[float | np.integer, tuple[int, ...]]:
    """Cheapest chain of cuts 0 = c0, c1, ..., c_parts = units, and its counts; of equals the earliest cuts.

    best[p, i] = min over j of combine(costs[p][i, j], best[p + 1, j]): parts p, p + 1, ... hold the units from i on.

    Args:
        costs: of the units from cut i to cut j, per part.
        combine: of the cost of a part and of the parts behind it: `np.maximum` or a sum.
        least: fewest units in each part.

    Returns:
        The cost and the units in each part.
    """
    parts, units = len(least), costs[0].shape[0] - 1
    behind = least[::-1].cumsum()[::-1]
    # Where part p may start: behind the least of the parts before it, before the least of itself and those behind.
    low = [*(behind[0] - behind), units]
    high = [0, *(units - behind[1:]), units]
    best = np.zeros(1, dtype=costs[0].dtype)
    choices: list[np.ndarray] = []
    for p in reversed(range(parts)):
        starts, ends = np.arange(low[p], high[p] + 1), np.arange(low[p + 1], high[p + 1] + 1)
        block = combine(costs[p][low[p] : high[p] + 1, low[p + 1] : high[p + 1] + 1], best)
        worst = np.inf if block.dtype.kind == "f" else NOT_ALLOWED
        block = np.where(ends[None, :] >= starts[:, None] + least[p], block, worst)
        choice = block.argmin(axis=1)
        best = block[np.arange(len(starts)), choice]
        choices.append(ends[choice])

    cut, counts = 0, []
    for p, choice in enumerate(reversed(choices)):
        following = int(choice[cut - low[p]])
        counts.append(following - cut)
        cut = following
    return best[0], tuple(counts)


def _saturating_add(cost: np.ndarray, behind: np.ndarray) -> np.ndarray:
    """Sum that stays at NOT_ALLOWED, without overflow however many parts are not allowed."""
    total: np.ndarray = np.minimum(cost + behind, NOT_ALLOWED)
    return total
