"""ZB-H1: 1F1B with the weight gradients in its bubbles, at the memory of 1F1B."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.named.zero_bubble import SPLIT, ListedSchedule, split_alternating
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class ZeroBubbleH1(ListedSchedule):
    """1F1B whose backward is split: the k-th weight gradient of worker r follows its input gradient k + r.

    Time m*(f + i + w) + (p - 1)*(f + i - w) with equal stages, f, i, w for forward, input and weight gradient; at most
    p micro-batches live on every worker.
    Source: Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024, schedule ZB-H1.
    """

    name = "zb-h1"
    only_chunks = 1
    repeats = True
    kinds = SPLIT
    title = "ZB-H1: weight gradients fill the bubbles of 1F1B, at its memory"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """m*(f + i + w) + (p - 1)*(f + i - w) for m >= p and w <= i, w <= f; None elsewhere."""
        if p > 1 and (m < p or weight_s > min(forward_s, input_s)):
            return None
        return m * (forward_s + input_s + weight_s) + (p - 1) * (forward_s + input_s - weight_s)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        units = list(range(m))
        lists = [split_alternating(([r] * m, [r] * m), (units, units), min(p - 1 - r, m), r) for r in range(p)]
        return table_of_lists(self.placement(p), (m,), lists)
