"""FTPipe: workers that hold blocks which are not neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import Problem
from meshwright.kernels.mixed_partition import mixed_partitions
from meshwright.schedules.base import Schedule
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.optimizer_step import with_updates
from meshwright.schedules.ordered import Updates
from meshwright.schedules.parameters import workers
from meshwright.schedules.table import Kind, Placement, ScheduleTable

MOST_TRIED = 4
"""Stages of a worker in the maps that a search tries."""


@dataclass(frozen=True, kw_only=True)
class FTPipe(Schedule):
    """Any map of virtual stages to workers; a stage of depth d (0 at the end) keeps at most d + 1 micro-batches.

    A free worker runs a backward before a forward, and of the forwards the one nearest to the end of the chain; how the
    published runtime breaks ties is rebuilt here by list scheduling with b = 2*f, on workers that are alike. Each stage
    is updated behind each of its micro-batches without a flush, so a stage of depth d runs on weights that lack up to d
    updates; they are stashed until the backward, of the published options the one whose gradients are those of one
    version. The table holds m micro-batches with one fill and one drain. One stage per worker, in order: the order and
    time of 1F1B.
    Source: Eliad et al., "Fine-tuning giant neural networks on commodity hardware with automatic pipeline model
    parallelism", USENIX ATC 2021.
    """

    blocks: str | None = workers("Worker of each stage along the chain; a loop without it.")

    name = "ftpipe"
    flushes = False
    updates_each = True
    title = "FTPipe: blocks that are not neighbours on one worker"
    source = "Eliad et al., FTPipe, USENIX ATC 2021"
    exact_semantics = False
    # Of two workers with one stage each; as many as the depth of its deepest stage allows in general.
    weight_copies = 2
    traffic = "one boundary for every virtual stage but the last, wherever the next one is"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + p - 1) * (forward_s + backward_s) for one stage per worker; not known otherwise."""
        return (m + p - 1) * (forward_s + backward_s) if v == 1 else None

    def stages(self, p: int, v: int = 1) -> int:
        """Virtual stages, as many as `blocks` has; workers may hold different numbers of them."""
        return p * v if self.blocks is None else len(self._holders())

    def placement(self, p: int, v: int = 1) -> Placement:
        """The map of `blocks`, under which layers are cut so that workers are alike."""
        if self.blocks is None:
            return Placement.loop(p, v)
        return Placement.of_chains([self._holders()], by_worker=True)

    def fitted(
        self, weights: Sequence[float], workers: int, *, first_extra: float, last_extra: float
    ) -> tuple[FTPipe, ...]:
        """The maps of FTPipe's own partition of these layers, where one is lighter than any cut between neighbours."""
        if self.blocks is not None:
            return ()
        found = mixed_partitions(weights, workers, first_extra=first_extra, last_extra=last_extra, most=MOST_TRIED)
        return tuple(replace(self, blocks="_".join(map(str, one.workers))) for one in found)

    def _holders(self) -> tuple[int, ...]:
        """Worker of each stage."""
        return tuple(map(int, (self.blocks or "").split("_")))

    def worker_weight_copies(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """Versions, at most d + 1 of a worker whose deepest stage has depth d, if there are as many micro-batches."""
        placement = self.placement(p, v)
        deepest = np.zeros(max(p, placement.p), np.int64)
        np.maximum.at(deepest, placement.worker, placement.stages - np.arange(placement.stages))
        return tuple(np.clip(deepest[:p], 1, m).tolist())

    def updates(self, p: int, m: int, v: int = 1, count: int | None = None) -> Updates:
        """One update of a stage behind each of its micro-batches."""
        self._check(p, m, v)
        self._check_updates(count, m)
        table = with_updates(self.table(p, m, v), 1)
        return Updates(table=table, count=m, each=1, lag=min(table.placement.stages, m) - 1)

    def period(self, p: int, v: int) -> int | None:
        """Each micro-batch repeats the one before, with one stage per worker."""
        return 1 if self.placement(p, v).stages == p else None

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if self.blocks is None:
            return []
        holders = self._holders()
        held = [holders.count(worker) for worker in range(p)]
        found = []
        if sum(held) != len(holders) or 0 in held:
            why = f"the workers count from 0 to {p - 1} and each holds a stage"
            fix = f"name each of 0 to {p - 1} and no other"
            found.append(
                Problem(what=f"{self.name}: blocks = {self.blocks}, p = {p}", why=why, fix=fix, field="blocks")
            )
        elif max(held) != v:
            why = "v is the number of stages on the worker that has most"
            found.append(Problem(what=f"{self.name}: v = {v}", why=why, fix=f"v = {max(held)}", field="v"))
        return found

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        placement = self.placement(p, v)

        def rank(kind: Kind, stage: int, unit: int) -> Key:
            return (0, unit, -stage) if kind is Kind.B else (1, -stage, unit)

        # Workers are alike, so that a stage takes its part of them: the time of a worker over the stages that it holds.
        held = np.bincount(placement.worker)[placement.worker]
        lengths = (np.lcm.reduce(held) // held).tolist()
        return list_table(placement, (m,), (1, 2), rank, lambda stage: self._admitted(stage, placement.stages), lengths)

    def _admitted(self, stage: int, stages: int) -> int:
        """Most micro-batches between forward and backward of a stage."""
        return stages - stage
