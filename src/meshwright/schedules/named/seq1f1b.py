"""Seq1F1B: 1F1B over sequence segments of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.segments import SegmentSchedule
from meshwright.schedules.table import Kind, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Seq1F1B(SegmentSchedule):
    """Every micro-batch is cut into k causal segments; forwards run in order, a micro-batch's backwards in reverse.

    Later segments read the keys and values of earlier ones and add to their gradients, so worker r warms up with
    p - 2 - r + k segments. Time (m + (p - 1)/k)*(f + b) for segments of equal work; p - 1 - r + k segments live.
    Source: Sun et al., "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language
    Model Training", 2024.
    """

    name = "seq1f1b"
    repeats = True
    title = "Seq1F1B: one forward, one backward of a sequence segment in turn"
    source = "Sun et al., Seq1F1B, 2024"

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        k = self.segments
        units = m * k
        lists = []
        for r in range(p):
            backward = [Task(Kind.B, r, first + s) for first in range(0, units, k) for s in reversed(range(k))]
            warmup = min(p - 2 - r + k, units)
            tasks = [Task(Kind.F, r, unit) for unit in range(warmup)]
            for index, task in enumerate(backward):
                if warmup + index < units:
                    tasks.append(Task(Kind.F, r, warmup + index))
                tasks.append(task)
            lists.append(tasks)
        return table_of_lists(self.placement(p), (units,), lists, segments=k)
