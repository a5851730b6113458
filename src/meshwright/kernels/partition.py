"""Partition of a chain of layers into consecutive parts whose heaviest part is as light as possible.

What a pipeline does with its layers when the first stage also holds the embedding and the last one the head. Exact:
the heaviest part by bisection among loads that occur, then the smoothest partition by dynamic programming over the
cuts that this leaves. Apart from schedules: weights in, counts out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float, Int

# Loads closer than this part of the total are equal: sums of the same numbers in another order differ by less.
EQUAL_FRACTION = 1e-12
# Loads are counted in whole 2^-30 parts of the total where their squares are added: integers below 2^60, no rounding.
GRAIN_COUNT = 2**30
# More than any sum of squares; with one of them on top it still is an int64.
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
    chain = _Chain(np.concatenate(([0.0], np.cumsum(units))), extras, least.tolist())
    bottleneck = chain.bottleneck()
    # Smoothness is decided among integers, so that ties are ties and the same on every machine.
    counts = chain.smoothest(bottleneck + EQUAL_FRACTION * total, GRAIN_COUNT / total if total > 0 else 0.0)
    return Partition(counts=counts, bottleneck=bottleneck)


class _Chain:
    """Units to be cut into parts: part p holds those between cuts p and p + 1, and weighs its extra on top."""

    def __init__(self, prefix: Float[np.ndarray, "cuts"], extras: list[float], least: list[int]) -> None:
        self.prefix, self.extras, self.least = prefix, extras, least
        self.before: list[float] = prefix.tolist()
        """Weight before each cut, as Python's floats: searched one by one they are quicker."""
        self.units, self.parts = len(prefix) - 1, len(least)
        behind = np.cumsum(least[::-1])[::-1].tolist()
        self.last = [self.units - later for later in (*behind[1:], 0)]
        """Where each part ends at the latest, so that those behind it get their least."""
        self.first = [behind[0] - later for later in behind]
        """Where each part starts at the earliest."""

    def load(self, part: int, start: int, end: int) -> float:
        """Weight of a part between two cuts; no less with more units."""
        return self.before[end] - self.before[start] + self.extras[part]

    def bottleneck(self) -> float:
        """The least possible load of the heaviest part.

        Bisection between a bound and a load that was reached: each trial moves one of them to a load that occurs, so
        that they meet after as many trials as it takes to tell such loads apart.
        """
        last = self.parts - 1
        low = max(
            sum((self.before[-1], *self.extras)) / self.parts * (1.0 - EQUAL_FRACTION),
            float(np.diff(self.prefix).max(initial=0.0)),
            self.load(0, 0, self.least[0] if last else self.units),
            self.load(last, self.units - self.least[last] if last else 0, self.units),
        )
        high = self._trial(np.inf)[0]
        while low < high:
            limit = low + (high - low) / 2
            heaviest, more = self._trial(limit if limit < high else low)
            if heaviest <= limit:
                high = heaviest
            else:
                low = more
        return high

    def _trial(self, limit: float) -> tuple[float, float]:
        """The heaviest part when each takes what it can within a limit, and the least load above it that changes this.

        Every part but the last can take a unit within the limit; so there is a partition within it if, and only if, the
        last part is. If it is not, some part has to reach further or the last one to bear what it got.
        """
        start, heaviest, more = 0, 0.0, np.inf
        for part in range(self.parts - 1):
            end = self._end(part, start, limit)
            heaviest = max(heaviest, self.load(part, start, end))
            if end < self.last[part]:
                more = min(more, self.load(part, start, end + 1))
            start = end
        left = self.load(self.parts - 1, start, self.units)
        return max(heaviest, left), min(more, left)

    def _end(self, part: int, start: int, limit: float) -> int:
        """The last cut at which a part may end within a limit; never one that leaves others less than their least."""
        last = self.last[part]
        end = bisect_right(self.before, limit - self.extras[part] + self.before[start], start, last + 1) - 1
        # The search compares other sums than loads, which may be rounded otherwise.
        while end < last and self.load(part, start, end + 1) <= limit:
            end += 1
        while end > start + self.least[part] and self.load(part, start, end) > limit:
            end -= 1
        return max(end, start + self.least[part])

    def smoothest(self, ceiling: float, grain: float) -> tuple[int, ...]:
        """Units per part: least sum of squared loads below a ceiling, of equals the earliest cuts.

        best[p, i] = min over j of (load(p, i, j)^2 + best[p + 1, j]): parts p, p + 1, ... hold the units from i on.

        Args:
            ceiling: the ceiling that some partition keeps.
            grain: whole numbers per unit of load.
        """
        low, high = self._windows(ceiling)
        every, least = np.arange(self.units + 1), min(self.least)
        reached = {extra: self._reached(ceiling, grain, extra, least) for extra in set(self.extras)}
        # Behind the last cut none is allowed, however many units a part would hold.
        best = np.full(self.units + max(ends.shape[1] for ends, _ in reached.values()) + least, NOT_ALLOWED)
        best[self.units] = 0
        choices: list[Int[np.ndarray, "starts"]] = []
        for part in reversed(range(self.parts)):
            here, more = slice(low[part], high[part] + 1), self.least[part] - least
            ends, squares = (table[here, more:] for table in reached[self.extras[part]])
            cost = squares + best[ends]
            choice = cost.argmin(axis=1)
            starts = every[: len(choice)]
            best.fill(NOT_ALLOWED)
            best[here] = np.minimum(cost[starts, choice], NOT_ALLOWED)
            choices.append(ends[starts, choice])

        chosen = [0]
        for part, choice in enumerate(reversed(choices)):
            chosen.append(int(choice[chosen[-1] - low[part]]))
        return tuple(np.diff(chosen).tolist())

    def _reached(
        self, ceiling: float, grain: float, extra: float, least: int
    ) -> tuple[Int[np.ndarray, "cuts counts"], Int[np.ndarray, "cuts counts"]]:
        """Where a part ends that starts at each cut, by its units, and its squared load.

        Args:
            ceiling: above it no load is allowed.
            grain: whole numbers per unit of load.
            extra: weight on top.
            least: units, from which on ends are counted.
        """
        cuts = np.arange(self.units + 1)
        most = int((np.searchsorted(self.prefix, self.prefix + (ceiling - extra), "right") - cuts).max())
        ends = cuts[:, None] + np.arange(least, most + 1)
        load = self.prefix[np.minimum(ends, self.units)] - self.prefix[:, None] + extra
        allowed = (ends <= self.units) & (load <= ceiling)
        return ends, np.where(allowed, np.rint(load * grain).astype(np.int64) ** 2, NOT_ALLOWED)

    def _windows(self, ceiling: float) -> tuple[list[int], list[int]]:
        """First and last place of each cut below a ceiling: parts filled from the front, and from behind."""
        high, low = [0], [self.units]
        for part in range(self.parts - 1):
            high.append(self._end(part, high[-1], ceiling))
        for part in reversed(range(1, self.parts)):
            least = self.first[part]
            start = max(least, bisect_left(self.before, self.before[low[-1]] + self.extras[part] - ceiling))
            while start > least and self.load(part, start - 1, low[-1]) <= ceiling:
                start -= 1
            low.append(min(start, low[-1] - self.least[part]))
        return [0, *low[::-1]], [*high, self.units]
