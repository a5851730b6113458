"""Hanayo: waves of chunks that run to the last worker and back, with one copy of the weights."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.list_scheduling import Greedy, Work, list_schedule
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.order_search import warmup_options
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import Kind, Placement, ScheduleTable

EXTRAS = (0.0, 0.5)
"""Warm-ups beyond the way of a micro-batch: of the order that runs forwards first, and of the other one."""


@dataclass(frozen=True, kw_only=True)
class Hanayo(Schedule):
    """W waves: v = 2*W chunks per worker, the even ones placed from the first worker to the last, the odd ones back.

    The paper gives the waves but no complete rule of order; this is a reconstruction by list scheduling in a clock
    where a backward takes `backward_ticks` forwards: a worker that is free runs a ready backward before a forward, of
    the forwards those of the earlier group of p micro-batches, then those nearer to the end of the chain.
    In steps of more than p micro-batches up to twice as many would live at the turns. Where that order would hold more
    than `admit`, workers instead run the forwards that fill the way of a micro-batch down and back, then backwards as
    they come, and forwards first where both are ready, as far as the activations of `admit` micro-batches allow: for
    one wave, p = 8 and m = 32, 110 forwards long with 8 instead of 115 with 15. One wave and m = p: time
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
        stages = placement.stages
        work = Work(
            placement=placement,
            micro_batches=(m,),
            forward_s=[1] * stages,
            gradient_s=[self.backward_ticks] * stages,
            stage_bytes=[1] * stages,
            room_bytes=[room * v] * p,
        )
        rules = zip(warmup_options(work, EXTRAS), (True, False), strict=False)
        made = (list_schedule(work, Greedy(warmup, eager=eager)) for warmup, eager in rules)
        shortest = min(made, key=lambda order: order.makespan_s)
        return table_of_lists(placement, (m,), shortest.lists)
