"""ZB-V: no bubble inside a step at the memory of 1F1B, with two chunks per worker placed as a V."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.zero_bubble import TwoChunkV


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
        lists = [[task for task in _order(p, enough, r) if task.unit < m] for r in range(p)]
        return table_of_lists(self.placement(p), (m,), lists)


def _order(p: int, m: int, r: int) -> list[Task]:
    """Tasks of worker r: warm-up, steady phase of all six tasks of both chunks, drain, the weights that are left."""
    tasks: list[Task] = []
    stages = (r, 2 * p - 1 - r)
    done: dict[tuple[Kind, int], int] = {}

    def run(*steps: tuple[Kind, int]) -> None:
        for step in steps:
            unit = done.get(step, 0)
            if unit < m:
                tasks.append(Task(step[0], stages[step[1]], unit))
                done[step] = unit + 1

    down = ((Kind.F, 0), (Kind.I, 0), (Kind.W, 0))
    back = ((Kind.F, 1), (Kind.I, 1), (Kind.W, 1))
    for _ in range(2 * (p - r) - 1):
        run(down[0])
    for _ in range(r):
        run(back[0], down[0])
    for _ in range(p - r):
        run(*back)
    while done.get(back[0], 0) < m:
        run(*down, *back)
    for _ in range(r):
        run(down[1], back[1])
    for _ in range(p - r):
        run(down[1], down[2])
    for _ in range(m):
        run(back[2])
    for _ in range(m):
        run(down[2])
    return tasks
