"""Schedules whose order a list scheduler makes, and which comes to repeat itself after micro-batches that no formula
gives: an order of some micro-batches shows which, and longer steps are continued from there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.schedules.base import Schedule
from meshwright.schedules.ordered import Ordered
from meshwright.schedules.table import ScheduleTable

LOOKED_AT = (6, 16)
"""Times p micro-batches whose order is looked at for a period: few first, as most repeat themselves soon."""
MOST_LOOKED_AT = 8192
"""Largest p x m x v of an order that is made for that alone."""
SEEN = 3
"""Periods that every worker must run after the first one, one like the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """How an order goes on."""

    period: int
    """Micro-batches after which every worker runs the same tasks of as many later ones."""
    settled: int
    """Micro-batches before and behind those, at most."""


@dataclass(frozen=True, kw_only=True)
class SteadyOrder(Schedule):
    """A schedule whose period is looked for. Whoever decides by state, not by what is left, goes on alike from alike
    states, so that an order that has repeated itself does so until no forward is left."""

    @property
    def period_found(self) -> bool:
        """Nobody knows it before."""
        return True

    def period(self, p: int, v: int) -> int | None:
        """The one that is found; None where a step of 16 p micro-batches shows none."""
        found = _steady(self, p, v)
        return None if found is None else found.period

    def _shortened(self, p: int, m: int, v: int) -> int:
        # Of fewer micro-batches the order itself takes no longer to make than the one that is looked at.
        return m if self.period_found and m <= LOOKED_AT[0] * p else super()._shortened(p, m, v)

    def _settled(self, p: int, v: int) -> int:
        found = _steady(self, p, v) if self.period_found else None
        return super()._settled(p, v) if found is None else found.settled


@lru_cache(maxsize=256)
def _steady(schedule: Ordered, p: int, v: int) -> Steady | None:
    if p < 2:
        return None
    for times in LOOKED_AT:
        if times * p * p * v > MOST_LOOKED_AT or schedule.problems(p, times * p, v):
            return None
        found = steady_of(schedule.table(p, times * p, v))
        if found is not None:
            return found
    return None


def steady_of(table: ScheduleTable) -> Steady | None:
    """The shortest period of an order, seen in the middle of it; None where it shows none.

    Args:
        table: the order.
    """
    chains, sections = table.placement.chains, table.segments
    count = sum(table.micro_batches) // sections
    workers = [
        np.stack([table.kind[low:high], table.stage[low:high], table.micro_batch[low:high]])
        for low, high in zip(table.first[:-1], table.first[1:], strict=True)
    ]
    for period in range(chains, count // (SEEN + 2) + 1, chains):
        later = np.array([[0], [0], [period // chains * sections]])
        around = [_around(tasks, tasks.shape[1] * period // count, later) for tasks in workers]
        if all(apart is not None for apart in around):
            settled = max(before + behind for before, behind in filter(None, around)) * period
            return Steady(period=period, settled=int(np.ceil(settled)))
    return None


def _around(tasks: np.ndarray, length: int, later: np.ndarray) -> tuple[float, float] | None:
    """Periods of a worker's list before and behind its middle, where each task comes again `length` tasks on.

    Args:
        tasks: kind, virtual stage and micro-batch of each.
        length: the length of a period, in tasks.
        later: what a period adds to each.
    """
    middle = (tasks.shape[1] - length) // 2
    if (tasks[:, middle, None] + later != tasks[:, middle + length, None]).any():
        return None
    differs = np.flatnonzero((tasks[:, :-length] + later != tasks[:, length:]).any(axis=0))
    split = int(np.searchsorted(differs, middle))
    low = int(differs[split - 1]) + 1 if split else 0
    high = int(differs[split]) if split < len(differs) else tasks.shape[1] - length
    if high - low < SEEN * length:
        return None
    return low / length, (tasks.shape[1] - length - high) / length
