"""Hanayo: waves of chunks that run to the last worker and back, with one copy of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.list_scheduling import Greedy, Work, list_schedule
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.order_search import warmup_options
from meshwright.schedules.parameters import whole
from meshwright.schedules.simulate import makespans
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.schedules.times import Times

RULES = ((0.0, True, 0.0), (0.0, True, 0.25), (0.5, False, 0.0))
"""Orders that are tried within the room: warm-up beyond the way of a micro-batch, whether forwards go before backwards,
and the latency between two workers, in forwards of a chunk, of the clock in which the order is made."""
TRANSFERS_S = (0.0, 0.1)
"""Latencies, in forwards of a worker, under which the orders are compared: free transfers, and slow links."""


@dataclass(frozen=True, kw_only=True)
class Hanayo(Schedule):
    """W waves: v = 2*W chunks per worker, the even ones placed from the first worker to the last, the odd ones back.

    The paper gives the waves but no complete rule of order; this is a reconstruction by list scheduling in a clock
    where a backward takes `backward_ticks` forwards: a worker that is free runs a ready backward before a forward, of
    the forwards those of the earlier group of p micro-batches, then those nearer to the end of the chain.
    In steps of more than p micro-batches up to twice as many would live at the turns. Where that order would hold more
    than `admit`, workers instead run the forwards that fill the way of a micro-batch down and back, then backwards as
    they come, and forwards first where both are ready, as far as the activations of `admit` micro-batches allow: for
    one wave, p = 8 and m = 32, 110 forwards long with 8 instead of 115 with 15. An order that fills every gap of a
    clock with free transfers waits for each of them where they take time: 236 for p = 4, m = 64 and transfers of 0.2,
    where one made in a clock with transfers takes 205. The one is taken that is shorter without and with transfers
    together. More waves send more often, so that p micro-batches cover less of the transfers: four chunks, p = 4 and
    m = 64 take 218 with transfers of 0.1; with `admit` 6 they take 199. One wave and m = p: time
    m*(f + b) + (p - 1)*b; more waves come near (p - 1)*b/W of idle time.
    Source: Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training
    Efficiency", SC 2023.
    """

    waves: int | None = whole(None, "Waves, half the chunks per worker.")
    admit: int | None = whole(None, "Micro-batches whose activations a worker may hold, p or more. [default: p]")
    backward_ticks: int = whole(2, "Time of a backward, in forwards, assumed for the order.")

    name = "hanayo"
    title = "Hanayo: waves of chunks"
    source = "Liu et al., Hanayo, SC 2023"
    traffic = "v times the boundaries of one chunk per worker, less those where a wave turns on its worker"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """m*(f + b) + (p - 1)*b for one wave, m = p and b >= backward_ticks*f; not known otherwise."""
        if p == 1:
            return m * (forward_s + backward_s)
        if v != 2 or m != p or backward_s < self.backward_ticks * forward_s:
            return None
        return m * (forward_s + backward_s) + (p - 1) * backward_s

    def placement(self, p: int, v: int = 2) -> Placement:
        """Even chunks from left to right, odd chunks from right to left."""
        there = list(range(p))
        return Placement.of_chains([(there + there[::-1]) * (v // 2) + there * (v % 2)])

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if self.waves is not None and v != 2 * self.waves:
            why = f"{self.waves} waves are {2 * self.waves} chunks per worker"
            return [Problem(what=f"hanayo: v = {v}", why=why, fix=f"v = {2 * self.waves}", field="v")]
        if v % 2:
            why = "a wave runs there and back, so it has two chunks per worker"
            near = f"v = {v - 1} or {v + 1}" if v > 1 else "v = 2"
            return [Problem(what=f"hanayo: v = {v}", why=why, fix=near, field="v")]
        if self.admit is not None and self.admit < p:
            why = "room for fewer micro-batches than workers leaves workers idle all the time"
            return [
                Problem(what=f"hanayo: admit = {self.admit} with p = {p}", why=why, fix=f"admit = {p}", field="admit")
            ]
        return []

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        def rank(kind: Kind, stage: int, unit: int) -> Key:
            if kind is Kind.B:
                return 0, unit, -stage, 0
            return 1, unit // p, -stage, unit

        placement, room = self.placement(p, v), p if self.admit is None else self.admit
        table = list_table(placement, (m,), (1, self.backward_ticks), rank)
        if max(int(live.sum(axis=1).max()) for live in live_vectors(table)) <= room * v:
            return table
        orders = [self._within(placement, m, room * v, *rule) for rule in RULES]
        return min(orders, key=lambda order: self._together_s(order, p, v))

    def _within(
        self, placement: Placement, m: int, room: int, extra: float, eager: bool, latency: float
    ) -> ScheduleTable:
        """The order by one rule, in which a worker holds the activations of at most `room` chunks."""
        stages, worker, after = placement.stages, placement.worker, placement.following
        work = Work(
            placement=placement,
            micro_batches=(m,),
            forward_s=[1] * stages,
            gradient_s=[self.backward_ticks] * stages,
            latency_s=(latency * ((after >= 0) & (worker[after] != worker))).tolist(),
            stage_bytes=[1] * stages,
            room_bytes=[room] * placement.p,
        )
        warmup = next(warmup_options(work, (extra,)))
        return table_of_lists(placement, (m,), list_schedule(work, Greedy(warmup, eager=eager)).lists)

    def _together_s(self, table: ScheduleTable, p: int, v: int) -> float:
        """Time without and with transfers, added up."""
        shares = np.full((len(TRANSFERS_S), p, v), 1.0 / v)
        transfers = np.array(TRANSFERS_S)[:, None, None] * np.ones((p, v))
        times = Times(forward_s=shares, backward_s=self.backward_ticks * shares, transfer_s=transfers)
        return float(makespans(table, times).max(axis=-1).sum())
