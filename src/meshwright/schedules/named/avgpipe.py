"""AvgPipe: forwards run ahead, and several pipelines share the workers, pulled together by elastic averaging."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import Kind, Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class AvgPipe(Schedule):
    """1F1B whose worker r warms up with p - 1 - r + extra forwards, ahead of the transfers they wait for.

    Every worker advances alike, so that neighbours stay one forward apart: with a latency c that occupies nobody, each
    advanced forward saves up to 2*c per step, not per micro-batch.

    `extra` = 0 is 1F1B, `extra` >= m runs all forwards first. Time (m + p - 1)*(f + b) with equal stages and
    free transfers whatever `extra`; worker r keeps min(m, p - r + extra) activations. `pipelines` replicas of the model
    share the workers: m counts the micro-batches of all, and replicas take turns, so that one fills the pipeline while
    the one before it drains it (how their tasks mix on a device is left to the hardware by the source; this is a
    reconstruction). Each replica waits for its own update alone, which is over when its next turn comes: with
    m - m/pipelines >= p - 1 + extra nothing drains between steps, which take m*(f + b) then. Behind its step, replica n
    moves by alpha towards a reference model that gathers the mean of all updates, so the result is not one exact step
    of the global batch.
    Source: Chen et al., "Elastic Averaging for Efficient Pipelined DNN Training", PPoPP 2023.
    """

    extra: int = whole(1, "Forwards that run ahead of 1F1B.", low=0)
    pipelines: int = whole(1, "Replicas of the model on the same workers, a divisor of m.", tries=(2,))

    name = "avgpipe"
    only_chunks = 1
    # Each step the replica and the reference model are read and written to pull them together.
    weight_passes = 4
    title = "AvgPipe: 1F1B with advanced forwards, averaged replicas"
    source = "Chen et al., Elastic Averaging for Efficient Pipelined DNN Training, PPoPP 2023"
    exact_semantics = False
    averages = True
    weight_copies = 2
    traffic = "each step, every replica and the reference model on a worker exchange weights inside that worker"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + p - 1) * (forward_s + backward_s)."""
        return (m + p - 1) * (forward_s + backward_s)

    def worker_weight_copies(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """One per replica, and the reference model."""
        return (self.pipelines + 1,) * p

    @property
    def of_one(self) -> AvgPipe:
        """The schedule of one replica."""
        return replace(self, pipelines=1)

    @property
    def chains(self) -> int:
        """One per replica."""
        return self.pipelines

    def placement(self, p: int, v: int = 1) -> Placement:
        """One linear chain per replica."""
        return Placement.of_chains([range(p)] * self.pipelines)

    def period(self, p: int, v: int) -> int | None:
        """Each micro-batch of one pipeline repeats the one before."""
        return 1 if self.pipelines == 1 else None

    def drains(self, p: int, m: int) -> bool:
        """Whether a replica's next turn would come before its own backwards are over: m - m/n < p - 1 + extra."""
        return self.pipelines == 1 or m - m // self.pipelines < p - 1 + self.extra

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found: list[Problem] = []
        n = self.pipelines
        if p == 1:
            why = "forwards run ahead of the transfers they wait for, and one worker sends nothing"
            found.append(Problem(what="avgpipe: p = 1", why=why, fix="p = 2 or more, or schedule 1f1b", field="p"))
        if m % n:
            near = [k for k in (m - m % n, m - m % n + n) if k]
            why = f"the {n} pipelines take the same number of micro-batches"
            fix = f"m = {' or '.join(str(k) for k in near)}"
            found.append(Problem(what=f"avgpipe: m = {m}, pipelines = {n}", why=why, fix=fix, field="m"))
        return found

    def _settled(self, p: int, v: int) -> int:
        return self.pipelines * (p + self.extra)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        count = m // self.pipelines
        warmup = np.minimum(p - 1 - np.arange(p) + self.extra, m).tolist()
        lists = [
            [Task(kind, unit // count * p + worker, unit % count) for kind, unit in one_pipeline(m, warmup[worker])]
            for worker in range(p)
        ]
        return table_of_lists(self.placement(p), (count,) * self.pipelines, lists)


def one_pipeline(m: int, warmup: int) -> list[tuple[Kind, int]]:
    """The list of one worker: `warmup` forwards, one forward and one backward in turn, the backwards that are left.

    Args:
        m: micro-batches.
        warmup: forwards before the first pair, at most m.
    """
    pairs = [task for unit in range(m - warmup) for task in ((Kind.F, unit + warmup), (Kind.B, unit))]
    return [
        *((Kind.F, unit) for unit in range(warmup)),
        *pairs,
        *((Kind.B, unit) for unit in range(m - warmup, m)),
    ]
