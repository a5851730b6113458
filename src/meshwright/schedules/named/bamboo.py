"""Bamboo: 1F1B in which every worker also runs the forward of the next stage, ready to take it over."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import InputError, Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.avgpipe import one_pipeline
from meshwright.schedules.table import Kind, Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Bamboo(Schedule):
    """The order of 1F1B with a redundant forward of stage r + 1 (stage 0 on the last worker) before each backward.

    A worker holds weights and optimizer states of its own stage and of the next one, so that it can take that stage
    over when its worker is lost. The redundant forward stands in the table as task X of worker r, and its time is
    `recompute_s` of worker r: the forward time of stage r + 1. It runs where the worker would wait for the gradient.
    The redundant backward runs only behind a loss; `failover_table` is the order from then on. How the source merges
    the two schedules is rebuilt here by list scheduling.
    Time (m + p - 1)*(f + b) + m*f with equal stages, f also that of the redundant forward.
    Source: Thorpe et al., "Bamboo: Making Preemptible Instances Resilient for Affordable Training of Large DNNs",
    NSDI 2023.
    """

    name = "bamboo"
    only_chunks = 1
    repeats = True
    kinds = frozenset({Kind.F, Kind.X, Kind.B})
    shadows = True
    title = "Bamboo: 1F1B with redundant forwards of the next stage"
    source = "Thorpe et al., Bamboo, NSDI 2023"
    weight_copies = 2
    traffic = "inputs of the first stage also go to the last worker; results of redundant forwards go to host memory"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + p - 1) * (forward_s + backward_s) + m * forward_s."""
        return (m + p - 1) * (forward_s + backward_s) + m * forward_s

    def failover_table(self, p: int, m: int, lost: int) -> ScheduleTable:
        """The order when one worker is lost and the one before it (the last one for worker 0) runs both stages.

        Worker numbers close up behind the lost one. Backward first, then the forward nearest to the end of the chain.

        Args:
            p: workers before the loss.
            m: micro-batches.
            lost: number of the lost worker.
        """
        self._check(p, m, 1)
        if not 0 <= lost < p:
            why = f"the workers count from 0 to {p - 1}"
            raise InputError(what=f"lost = {lost}", why=why, fix=f"0 to {p - 1}", field="lost")
        holders = [(stage - 1) % p if stage == lost else stage for stage in range(p)]
        chain = [worker - (worker > lost) for worker in holders]

        def rank(kind: Kind, stage: int, unit: int) -> Key:
            return (0, unit, -stage) if kind is Kind.B else (1, -stage, unit)

        return list_table(Placement.of_chains([chain]), (m,), (1, 2), rank, lambda stage: p - stage)

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found: list[Problem] = []
        if p < 2:
            why = "a lost worker needs another one that takes its stage over"
            found.append(Problem(what=f"bamboo: p = {p}", why=why, fix="p = 2", field="p"))
        return found

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        lists = [
            [
                Task(part, worker, unit)
                for kind, unit in one_pipeline(m, min(p - 1 - worker, m))
                for part in ((Kind.X, Kind.B) if kind is Kind.B else (Kind.F,))
            ]
            for worker in range(p)
        ]
        return table_of_lists(self.placement(p), (m,), lists)
