"""PipeDream-2BW: 1F1B without a flush and with two versions of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.named.one_f_one_b import OneFOneBOrder
from meshwright.schedules.optimizer_step import with_updates
from meshwright.schedules.ordered import Updates
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class PipeDream2BW(OneFOneBOrder):
    """The order of 1F1B, never drained: m >= p micro-batches add up to one update, on two versions of the weights.

    Micro-batch i runs forward and backward on version max(i // m - 1, 0), the same on every worker: each update uses
    gradients of the weights one update before, W(t+1) = W(t) - rate * gradient(W(t-1)). The table holds the m
    micro-batches of one update with a fill and a drain, (m + p - 1)*(f + b) with equal stages; updates follow each
    other every m*(f + b). Worker r keeps p - r activations; optimizer states exist once.
    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021.
    """

    name = "pipedream-2bw"
    flushes = False
    aliases = ("2bw",)
    title = "PipeDream-2BW: no flush, two versions of the weights"
    source = "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021"
    exact_semantics = False
    weight_copies = 2

    def weight_version(self, m: int, micro_batch: int) -> int:
        """Updates that the weights of a micro-batch have seen: max(micro_batch // m - 1, 0).

        Args:
            m: micro-batches per update.
            micro_batch: the micro-batch from 0, counted on across updates.
        """
        return max(micro_batch // m - 1, 0)

    def versioned_table(self, p: int, m: int, updates: int = 3) -> ScheduleTable:
        """Several updates in a row, with OPT behind the last backward of each, every task with its version.

        Args:
            p: workers.
            m: micro-batches per update.
            updates: the number of updates in the table.
        """
        self._check(p, m, 1)
        return with_updates(self.table(p, updates * m), m, lambda unit, _made: np.maximum(unit // m - 1, 0))

    def updates(self, p: int, m: int, v: int = 1, count: int | None = None) -> Updates:
        """Updates of p micro-batches each, unless another number is asked for."""
        if count is None:
            count = max(n for n in range(1, m + 1) if not m % n and (n == 1 or m // n >= p))
        self._check(p, m // count, v)
        return Updates(table=self.versioned_table(p, m // count, count), count=count, each=m // count, lag=1)

    def steady_s(self, m: int, forward_s: float, backward_s: float) -> float:
        """Seconds from update to update in the steady state, equal stages: m * (forward_s + backward_s)."""
        return m * (forward_s + backward_s)

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found = list(super()._problems(p, m, v))
        if m < p:
            why = f"with fewer micro-batches per update than p = {p}, a micro-batch in flight needs a third version"
            found.append(Problem(what=f"{self.name}: m = {m}", why=why, fix=f"m = {p}", field="m"))
        return found
