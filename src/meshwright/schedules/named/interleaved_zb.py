"""Interleaved 1F1B with split backward: weight gradients fill the bubbles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.bounds import PathBound
from meshwright.schedules.critical_paths import generic_path_bound
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.named.interleaved import Interleaved
from meshwright.schedules.named.zero_bubble import SPLIT, split_alternating
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Int


@dataclass(frozen=True, kw_only=True)
class InterleavedZeroBubble(Interleaved):
    """Interleaving with half its warm-up, (v - 1)*g + p - 1 - r forwards; weights lag r input gradients on worker r.

    Time m*(f + i + w) + (p - 1)*(f + i - w)/v with equal stages and g = p; at most v*p chunk activations live.
    Source: Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024; the order is that of PyTorch's
    ScheduleInterleavedZeroBubble.
    """

    name = "interleaved-zb"
    ramps = 2
    searched_by_default = False
    kinds = SPLIT
    title = "interleaved 1F1B with split backward (ZB1P)"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024; torch.distributed.pipelining"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """The split closed form with input and weight gradient of half the backward each."""
        return self.split_closed_form_s(p, m, v, forward_s, backward_s / 2, backward_s / 2)

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """m*(f + i + w) + (p - 1)*(f + i - w)/v for groups of p and w <= i, w <= f; None elsewhere."""
        if (self.group or p) != p or m < p or weight_s > min(forward_s, input_s):
            return None
        return m * (forward_s + input_s + weight_s) + (p - 1) * (forward_s + input_s - weight_s) / v

    @property
    def bound_by_formula(self) -> bool:
        """False: it is bounded along its table."""
        return False

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        chunks, units = (column.tolist() for column in self._order(p, m, v))
        group = self.group or p
        lists = [
            split_alternating(
                ([c * p + r for c in chunks], [(v - 1 - c) * p + r for c in chunks]),
                (units, units),
                min((v - 1) * group + p - 1 - r, m * v),
                r,
            )
            for r in range(p)
        ]
        return table_of_lists(self.placement(p, v), (m,), lists)

    def _bound_for(self, p: int, m: int, v: int) -> int:
        return m

    def _in_flight_for(self, p: int, m: int, v: int) -> int:
        return self._shortened(p, m, v)

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        return live_vectors(self.table(p, m, v))

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        return generic_path_bound(self.table(p, m, v))
