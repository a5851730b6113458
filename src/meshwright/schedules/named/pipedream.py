"""PipeDream: 1F1B without a flush, every micro-batch an update, its weights stashed until its backward."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.named.one_f_one_b import OneFOneBOrder
from meshwright.schedules.optimizer_step import with_updates
from meshwright.schedules.ordered import Updates
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class PipeDream(OneFOneBOrder):
    """The order of 1F1B, never drained: the unit is a minibatch with an optimizer step behind each of its backwards.

    A forward takes the newest weights of its worker and stashes them; its backward takes the stash. So worker r keeps
    p - r versions, and minibatch i runs on weights that lack the last p - 1 - r updates: the update is not that of
    synchronous SGD. The table holds m minibatches with one fill and one drain, (m + p - 1)*(f + b) with equal stages;
    in the steady state a minibatch takes max over the workers of f + b and the bubble is 0.
    Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019.
    """

    name = "pipedream"
    flushes = False
    updates_each = True
    aliases = ("weight-stashing",)
    title = "PipeDream: no flush, stashed weights"
    source = "Narayanan et al., PipeDream, SOSP 2019"
    exact_semantics = False
    # Of two workers; p - r of worker r in general.
    weight_copies = 2

    def worker_weight_copies(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """p - r versions on worker r, if there are as many minibatches."""
        return tuple(min(p - worker, m) for worker in range(p))

    def weight_version(self, p: int, worker: int, minibatch: int) -> int:
        """Updates that the weights have seen on which a worker runs a minibatch, forward and backward alike.

        max(0, minibatch - (p - 1 - worker)).

        Args:
            p: workers.
            worker: the worker from 0.
            minibatch: the minibatch from 0.
        """
        return max(0, minibatch - (p - 1 - worker))

    def versioned_table(self, p: int, m: int) -> ScheduleTable:
        """The table with its updates: OPT behind every backward, each forward on the newest weights, stashed for its B.

        Args:
            p: workers.
            m: minibatches.
        """
        return with_updates(self.table(p, m), 1)

    def updates(self, p: int, m: int, v: int = 1, count: int | None = None) -> Updates:
        """One update behind each micro-batch."""
        self._check(p, m, v)
        self._check_updates(count, m)
        return Updates(table=self.versioned_table(p, m), count=m, each=1, lag=min(p, m) - 1)

    def steady_s(self, m: int, forward_s: float, backward_s: float) -> float:
        """Seconds that m minibatches take in the steady state, equal stages: m * (forward_s + backward_s)."""
        return m * (forward_s + backward_s)
