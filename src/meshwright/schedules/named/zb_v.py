"""ZB-V: no bubble inside a step at the memory of 1F1B, with two chunks per worker placed as a V."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.zero_bubble import TwoChunkV
from meshwright.schedules.table import Kind, ScheduleTable

DOWN = ((Kind.F, 0), (Kind.I, 0), (Kind.W, 0))
BACK = ((Kind.F, 1), (Kind.I, 1), (Kind.W, 1))
"""Tasks of a worker's two chunks, the one on the way down the V and the one on the way back."""


@dataclass(frozen=True, kw_only=True)
class ZeroBubbleV(TwoChunkV):
    """Fixed phases for m >= 2p - 1; with fewer micro-batches that order without the ones that are too many.

    Time m*(f + i + w) + (p - 1)*f/2 with equal stages, f = i and f/2 <= w <= f; with f = i = w every worker is busy
    from its first to its last task. At most 2p chunk activations live on a worker, as much as p micro-batches.
    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, schedule ZB-V.
    """

    name = "zb-v"
    ramps = 2
    repeats = True
    title = "ZB-V: no bubble inside a step at the memory of 1F1B, two chunks in a V"
    source = "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024"

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """m*(f + i + w) + (p - 1)*f/2 for f = i, f/2 <= w <= f and m >= 2p - 1; None elsewhere."""
        if p > 1 and (m < 2 * p - 1 or forward_s != input_s or not forward_s <= 2 * weight_s <= 2 * forward_s):
            return None
        return m * (forward_s + input_s + weight_s) + (p - 1) * forward_s / 2

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        enough = max(m, 2 * p - 1)
        return table_of_lists(self.placement(p), (m,), [_order(p, enough, r, m) for r in range(p)])


def _order(p: int, m: int, r: int, kept: int) -> list[Task]:
    """Tasks of worker r, those of the first `kept` micro-batches alone."""
    tasks: list[Task] = []
    stages = (r, 2 * p - 1 - r)
    done: dict[tuple[Kind, int], int] = {}
    for step in _steps(p, m, r):
        unit = done.get(step, 0)
        if unit < m:
            done[step] = unit + 1
            if unit < kept:
                tasks.append(Task(step[0], stages[step[1]], unit))
                if len(tasks) == len(DOWN + BACK) * kept:
                    break
    return tasks


def _steps(p: int, m: int, r: int) -> Iterator[tuple[Kind, int]]:
    """Warm-up, steady phase of all six tasks of both chunks, drain, weights that are left; too many of some."""
    yield from DOWN[:1] * (2 * (p - r) - 1)
    yield from (BACK[0], DOWN[0]) * r
    yield from BACK * (p - r)
    for _ in range(m - p):
        yield from DOWN + BACK
    yield from (DOWN[1], BACK[1]) * r
    yield from DOWN[1:] * (p - r)
    yield from BACK[2:] * m
    yield from DOWN[2:] * m
