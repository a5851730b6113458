"""Mario: 1F1B whose recomputation fills the waits for gradients."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.zero_bubble import ListedSchedule
from meshwright.schedules.parameters import flag
from meshwright.schedules.table import Kind, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Mario(ListedSchedule):
    """1F1B that keeps boundary inputs only and makes a stage's activations again just before each backward.

    A recomputation waits for no gradient, so that it runs while the worker behind is still at its backward. The last
    worker's backward follows its forward at once and needs none. Boundary inputs are small, so that workers run
    forwards ahead: worker r warms up with 2*(p - 1 - r), or with p - 1 - r as 1F1B does.
    Source: Liu et al., "Mario: Near Zero-cost Activation Checkpointing in Pipeline Parallelism", PPoPP 2025: overlapped
    and left-out recomputation, forwards moved ahead; the tuner that chooses among schedules is the search here.
    """

    plain: bool = flag("No more forwards ahead than 1F1B runs.", tried=True)

    name = "mario"
    only_chunks = 1
    repeats = True
    ramps = 2
    kinds = frozenset({Kind.F, Kind.R, Kind.B})
    title = "Mario: 1F1B with recomputation in the waits for gradients"
    source = "Liu et al., Mario, PPoPP 2025"

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        lists = []
        for r in range(p):
            warmup = min((p - 1 - r) * (1 if self.plain else 2), m)
            tasks = [Task(Kind.F, r, unit) for unit in range(warmup)]
            for unit in range(m):
                if warmup + unit < m:
                    tasks.append(Task(Kind.F, r, warmup + unit))
                if r < p - 1:
                    tasks.append(Task(Kind.R, r, unit))
                tasks.append(Task(Kind.B, r, unit))
            lists.append(tasks)
        return table_of_lists(self.placement(p), (m,), lists)
