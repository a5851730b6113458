"""DualPipe: micro-batches enter at both ends, forwards of one direction run together with backwards of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.errors import Problem
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.named.dual_order import dual_order, dual_step_s
from meshwright.schedules.named.zero_bubble import SPLIT, ListedSchedule, few_micro_batches
from meshwright.schedules.table import Kind, Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class DualPipe(ListedSchedule):
    """Two copies of the model in opposite directions, m/2 micro-batches each; half the workers per direction's fill.

    Time m*(f + b) + (p/2 - 1)*(f + 2b - 3w) with equal stages and a fused task as long as its parts; at most p + 1
    micro-batches live on a worker.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, and the step counts of github.com/deepseek-ai/DualPipe.
    """

    name = "dualpipe"
    only_chunks = 1
    kinds = SPLIT | {Kind.B}
    pairs_passes = True
    ramps = 3
    title = "DualPipe: both directions at once, forward of one with backward of the other"
    source = "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024"
    traffic = "gradients of the two copies of each stage are all-reduced between the workers that hold them"
    weight_copies: ClassVar[int] = 2

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """Half of the workers, less one, wait for the first micro-batch of each direction."""
        return dual_step_s(m, p / 2 - 1, forward_s, input_s, weight_s)

    @property
    def chains(self) -> int:
        """One each way."""
        return 2

    def period(self, p: int, v: int) -> int | None:
        """One micro-batch each way repeats the two before."""
        return 2

    def placement(self, p: int, v: int = 1) -> Placement:
        """Stage s of the first direction on worker s, of the second on worker p - 1 - s."""
        return Placement.of_chains([list(range(p)), list(reversed(range(p)))])

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found: list[Problem] = []
        if p % 2:
            even = [n for n in (p - 1, p + 1) if n > 0]
            why = "the two directions start at the two ends and meet in the middle, so p is even"
            fix = f"p = {' or '.join(map(str, even))}"
            found.append(Problem(what=f"{self.name}: p = {p}", why=why, fix=fix, field="p"))
            if m < 2 * even[-1]:
                why = "both directions together fill the pipeline with 2p micro-batches, so m >= 2p"
                fix = " or ".join(f"m = {2 * n} or more with p = {n}" for n in even)
                found.append(Problem(what=f"{self.name}: m = {m}", why=why, fix=fix, field="m"))
            return found
        rule = f"both directions together fill the pipeline with 2p = {2 * p} micro-batches, so m >= 2p"
        few = few_micro_batches(self.name, m, 2 * p, rule)
        if few:
            found += few
        elif m % 2:
            why = "each direction takes half of the micro-batches, so m is even"
            near = " or ".join(str(n) for n in (m - 1, m + 1) if n >= 2 * p)
            found.append(Problem(what=f"{self.name}: m = {m}", why=why, fix=f"m = {near}", field="m"))
        return found

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        half = p // 2
        lists = []
        for r in range(p):
            near = min(r, p - 1 - r)
            # Stages of the second direction follow those of the first; its stage on worker r is p - 1 - r.
            stages = (r, 2 * p - 1 - r) if r < half else (2 * p - 1 - r, r)
            lists.append(dual_order(stages, near, half, m // 2, m // 2 - p + near + 1))
        return table_of_lists(self.placement(p), (m // 2, m // 2), lists)
