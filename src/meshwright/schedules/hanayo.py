"""Hanayo: waves of chunks that run to the last worker and back, with one copy of the weights."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import Kind, Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Hanayo(Schedule):
    """W waves: v = 2*W chunks per worker, the even ones placed from the first worker to the last, the odd ones back.

    The paper gives the waves but no complete rule of order; this is a reconstruction by list scheduling in a clock
    where a backward takes `backward_ticks` forwards: a worker that is free runs a ready backward before a forward, of
    the forwards those of the earlier group of p micro-batches, then those nearer to the end of the chain.
    Without a limit up to twice as many micro-batches as workers are in flight at the turns of long steps; `admit` keeps
    them to its number. One wave and m = p: time m*(f + b) + (p - 1)*b; more waves come near (p - 1)*b/W of idle time.
    Source: Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training
    Efficiency", SC 2023.
    """

    waves: int | None = whole(None, "Waves, half the chunks per worker.")
    admit: int | None = whole(None, "Most micro-batches in flight, p or more. [default: any]")
    """Fewer activations for a longer step: a worker with nothing else to do then waits."""
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
            why = "fewer micro-batches than workers leave workers idle all the time"
            return [
                Problem(what=f"hanayo: admit = {self.admit} with p = {p}", why=why, fix=f"admit = {p}", field="admit")
            ]
        return []

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        def rank(kind: Kind, stage: int, unit: int) -> Key:
            if kind is Kind.B:
                return 0, unit, -stage, 0
            return 1, unit // p, -stage, unit

        cap = None if self.admit is None else lambda stage: None if stage else self.admit
        return list_table(self.placement(p, v), (m,), (1, self.backward_ticks), rank, cap)
