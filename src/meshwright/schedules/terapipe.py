"""TeraPipe: GPipe over sequence segments of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.zero_bubble import ListedSchedule


@dataclass(frozen=True, kw_only=True)
class TeraPipe(ListedSchedule):
    """Every micro-batch is cut into k causal segments; all forwards run in order, then all backwards in reverse.

    A later token reads earlier ones alone, so that a segment can be on its way while the next one is computed. Time
    (m + (p - 1)/k)*(f + b) for segments of equal work, which later segments have with fewer tokens; all m*k segments
    of a worker live.
    Source: Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models", ICML 2021.
    """

    segments: int = whole(2, "Segments per sequence.")

    name = "terapipe"
    only_chunks = 1
    title = "TeraPipe: all forwards, then all backwards, of sequence segments"
    source = "Li et al., TeraPipe, ICML 2021"
    traffic = "as many bytes in `segments` times as many messages"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + (p - 1) / segments) * (forward_s + backward_s)."""
        return (m + (p - 1) / self.segments) * (forward_s + backward_s)

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """The backward is not split."""
        return self.closed_form_s(p, m, v, forward_s, input_s + weight_s)

    def tasks_per_share(self, v: int) -> int:
        """Segments of a micro-batch, taken as equal in work."""
        return self.segments

    def sections(self) -> int:
        """Segments."""
        return self.segments

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        units = range(m * self.segments)
        lists = [
            [*(Task(Kind.F, r, unit) for unit in units), *(Task(Kind.B, r, unit) for unit in reversed(units))]
            for r in range(p)
        ]
        return table_of_lists(self.placement(p), (len(units),), lists, segments=self.segments)
