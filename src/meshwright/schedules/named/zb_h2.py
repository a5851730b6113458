"""ZB-H2: twice the warm-up of ZB-H1, so that no worker idles between its first and its last task."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.zero_bubble import SPLIT, ListedSchedule, few_micro_batches
from meshwright.schedules.parameters import flag
from meshwright.schedules.table import Kind, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class ZeroBubbleH2(ListedSchedule):
    """Worker r runs 2*(p - r) - 1 forwards, then input gradients and forwards in turn; weights lag 2r gradients.

    With equal stages and i <= 2f, i <= 2w the time is m*(f + i + w) + (p - 1)*f. With f = i = w every worker is busy
    from its first to its last task, and the ramp (p - 1)*f vanishes where steps overlap. Up to 2p - 1 micro-batches
    live on a worker.
    Source: Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024, schedule ZB-H2, and section 4 (the update
    is validated behind the step, so that no worker waits for another's gradients).
    """

    post: bool = flag("Updates are validated behind the step: steps share their ramps.")

    name = "zb-h2"
    ramps = 2
    only_chunks = 1
    repeats = True
    kinds = SPLIT
    title = "ZB-H2: no bubble inside a step, at twice the activations of 1F1B"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"

    @property
    def validates_behind(self) -> bool:
        """Whether the setting `post` is on."""
        return self.post

    @property
    def not_searched(self) -> str:
        """Why searches leave out steps that share their ramps: bounds are of whole ones."""
        return "its steps share their ramps, which the bounds of the search do not know" if self.post else ""

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """m*(f + i + w) + (p - 1)*f for i <= 2f and i <= 2w; None elsewhere."""
        if p > 1 and input_s > 2 * min(forward_s, weight_s):
            return None
        return m * (forward_s + input_s + weight_s) + (p - 1) * forward_s

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        rule = f"the first worker warms up with 2p - 1 = {2 * p - 1} forwards, so m >= 2p - 1"
        return few_micro_batches(self.name, m, 2 * p - 1, rule)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        lists = []
        for r in range(p):
            warmup, behind = 2 * (p - r) - 1, 2 * r
            tasks = [Task(Kind.F, r, unit) for unit in range(warmup)]
            for k in range(m):
                tasks.append(Task(Kind.I, r, k))
                if k >= behind:
                    tasks.append(Task(Kind.W, r, k - behind))
                if warmup + k < m:
                    tasks.append(Task(Kind.F, r, warmup + k))
            tasks += [Task(Kind.W, r, k) for k in range(max(0, m - behind), m)]
            lists.append(tasks)
        return table_of_lists(self.placement(p), (m,), lists)
