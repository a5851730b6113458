"""BPipe: 1F1B whose first workers park activations with the last ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.named.one_f_one_b import OneFOneBOrder
from meshwright.schedules.passes import Insertions
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMove:
    """One activation that moves between a worker and its partner p - 1 - worker."""

    before: int
    """Position, in the worker's order, of the task before which it moves."""
    micro_batch: int
    away: bool
    """Whether it goes to the partner; otherwise it comes back."""


@dataclass(frozen=True, kw_only=True)
class BPipe(OneFOneBOrder):
    """The order of 1F1B with at most L = ceil((p + 2)/2) activations on a worker.

    Worker x < p/2 sends the activation of its latest forward to worker p - 1 - x when a forward would exceed L, and
    gets back the one needed next when a backward has made room. The order, and with it `in_flight`, is that of 1F1B;
    `resident` counts what lies on each worker after the exchanges. Time (m + p - 1)*(f + b) as 1F1B as long as the
    exchanges hide behind computation: 2 * bytes / bandwidth <= f + b.
    Source: Kim et al., "BPipe: Memory-Balanced Pipeline Parallelism for Training Large Language Models", ICML 2023.
    """

    name = "bpipe"
    aliases = ("balanced-1f1b",)
    title = "BPipe: 1F1B with activations parked at the last workers"
    source = "Kim et al., BPipe, ICML 2023"
    traffic = "one activation there and back per micro-batch on every worker r with p - r > ceil((p + 2)/2)"
    not_run = "activations stay on their workers, so that memory is that of 1f1b"

    def limit(self, p: int) -> int:
        """Most activations on one worker: ceil((p + 2) / 2)."""
        return -(-(p + 2) // 2)

    def exchanges(self, p: int, m: int, worker: int) -> tuple[ActivationMove, ...]:
        """What a worker of the first half sends away and gets back, in order; nothing for the others.

        Args:
            p: workers.
            m: micro-batches.
            worker: the worker from 0.
        """
        table, limit = self.table(p, m), self.limit(p)
        own = slice(table.first[worker], table.first[worker + 1])
        here: list[int] = []
        parked: list[int] = []
        found = []
        for at, (kind, unit) in enumerate(zip(table.kind[own].tolist(), table.micro_batch[own].tolist(), strict=True)):
            if kind == Kind.F:
                if len(here) == limit:
                    found.append(ActivationMove(before=at, micro_batch=here[-1], away=True))
                    parked.append(here.pop())
                here.append(unit)
                continue
            here.remove(unit)
            if parked:
                found.append(ActivationMove(before=at + 1, micro_batch=parked[0], away=False))
                here = sorted([*here, parked.pop(0)])
        return tuple(found)

    def exchange_table(self, p: int, m: int) -> ScheduleTable:
        """The table with its exchanges: OFFLOAD_A to the partner and RELOAD_A from there.

        Args:
            p: workers.
            m: micro-batches.
        """
        table = self.table(p, m)
        added = Insertions(table)
        for worker in range(p // 2):
            for exchange in self.exchanges(p, m, worker):
                kind = Kind.OFFLOAD_A if exchange.away else Kind.RELOAD_A
                behind = table.first[worker] + exchange.before - 1
                added.behind(np.array([behind]), kind, np.array([worker]), np.array([exchange.micro_batch]))
        return added.table()

    def resident(self, p: int, m: int) -> Int[np.ndarray, " workers"]:
        """Most activations on each worker, its own and those parked there; never more than `limit`.

        Args:
            p: workers.
            m: micro-batches.
        """
        return self.parked(p, m).sum(axis=1)

    def peak_activations(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """`resident`: what lies on a worker, not what it has in flight."""
        return tuple(self.resident(p, m).tolist())

    def parked(self, p: int, m: int) -> Int[np.ndarray, "workers 2"]:
        """At most `limit` of its own parked on each worker, and what `exchanges` puts on the partner."""
        guests = [0] * p
        for worker in range(p // 2):
            moves = [1 if exchange.away else -1 for exchange in self.exchanges(p, m, worker)]
            guests[p - 1 - worker] = max(np.cumsum(moves), default=0)
        own = np.minimum(np.minimum(m, p - np.arange(p)), self.limit(p))
        return np.stack([own, np.array(guests, dtype=own.dtype)], axis=1)
