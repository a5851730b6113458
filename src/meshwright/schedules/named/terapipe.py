"""TeraPipe: GPipe over sequence segments of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.segments import SegmentSchedule
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Int


@dataclass(frozen=True, kw_only=True)
class TeraPipe(SegmentSchedule):
    """Every micro-batch is cut into k causal segments; all forwards run in order, then all backwards in reverse.

    A later token reads earlier ones alone, so that a segment can be on its way while the next one is computed. Time
    (m + (p - 1)/k)*(f + b) for segments of equal work, which later segments have with fewer tokens; all m*k segments
    of a worker live.
    Source: Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models", ICML 2021.
    """

    name = "terapipe"
    repeats = True
    title = "TeraPipe: all forwards, then all backwards, of sequence segments"
    source = "Li et al., TeraPipe, ICML 2021"

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        units = range(m * self.segments)
        lists = [
            [*(Task(Kind.F, r, unit) for unit in units), *(Task(Kind.B, r, unit) for unit in reversed(units))]
            for r in range(p)
        ]
        return table_of_lists(self.placement(p), (len(units),), lists, segments=self.segments)

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        return (np.full((1, v), m * self.segments),) * p

    def _in_flight_for(self, p: int, m: int, v: int) -> int:
        return m
