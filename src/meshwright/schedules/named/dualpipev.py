"""DualPipeV: DualPipe folded onto one copy of the weights, two chunks per worker placed as a V."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.named.dual_order import dual_order, dual_step_s
from meshwright.schedules.named.zero_bubble import SPLIT, TwoChunkV, few_micro_batches
from meshwright.schedules.table import Kind, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class DualPipeV(TwoChunkV):
    """The steps of DualPipe with the two chunks of a V in place of its two directions.

    Time m*(f + b) + (p - 1)*(f + 2b - 3w)/2 with equal stages and a fused task as long as its parts; at most 2p + 1
    chunk activations live on a worker.
    Source: github.com/deepseek-ai/DualPipe (DualPipeV); Qi et al., "DualPipe could be better without the Dual", 2025.
    """

    name = "dualpipev"
    kinds = SPLIT | {Kind.B}
    pairs_passes = True
    repeats = True
    ramps = 3
    title = "DualPipeV: forward of one chunk with backward of the other, one copy of the weights"
    source = "DeepSeek-AI, DualPipe repository (DualPipeV), 2025"

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """All but one wait for half a pass: a chunk is half of a worker."""
        return dual_step_s(m, (p - 1) / 2, forward_s, input_s, weight_s)

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        rule = f"the first worker runs 2p = {2 * p} forwards ahead, so m >= 2p"
        return few_micro_batches(self.name, m, 2 * p, rule)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        lists = [dual_order((r, 2 * p - 1 - r), r, p, m, m - 2 * p + r + 1) for r in range(p)]
        return table_of_lists(self.placement(p), (m,), lists)
