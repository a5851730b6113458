"""MixPipe: both directions at once, with a tunable number of micro-batches injected into each."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.named.chimera import two_way_problems
from meshwright.schedules.parameters import whole
from meshwright.schedules.steady import SteadyOrder
from meshwright.schedules.table import Kind, Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class MixPipe(SteadyOrder):
    """Chimera's two directions, each holding at most `inject` micro-batches between first forward and last backward.

    What is published leaves the exact order open; this is a reconstruction by list scheduling with b = 2*f: backward
    before forward, lower micro-batches first, then the stage nearer to the end of its chain. m counts both directions.
    More injections shorten the bubble and keep more activations; p/2 of them make too many pauses when m > p.
    Source: Zhang et al., "MixPipe: Efficient Bidirectional Pipeline Parallelism for Training Large-Scale Models",
    DAC 2023.
    """

    inject: int | None = whole(None, "Micro-batches in flight per direction, p/2 to p. [default: p/2 + 1]")

    name = "mixpipe"
    only_chunks = 1
    title = "MixPipe: both directions, tunable injection"
    source = "Zhang et al., MixPipe, DAC 2023"
    weight_copies = 2
    traffic = "gradients of the two copies of each stage are all-reduced between the workers that hold them"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """m*(f + b) + (p - 2)*b for m = p and b >= 2*f, Chimera's time; not known otherwise."""
        if m != p or backward_s < 2 * forward_s:
            return None
        return m * (forward_s + backward_s) + (p - 2) * backward_s

    @property
    def chains(self) -> int:
        """One each way."""
        return 2

    def placement(self, p: int, v: int = 1) -> Placement:
        """Down, then up."""
        return Placement.of_chains([range(p), range(p - 1, -1, -1)])

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found = two_way_problems(self.name, p, m)
        if self.inject is not None and not p / 2 <= self.inject <= p:
            why = "a direction holds p/2 micro-batches at least, to fill its workers, and p at most"
            fix = f"inject = {min(max(self.inject, (p + 1) // 2), p)}"
            what = f"mixpipe: inject = {self.inject} with p = {p}"
            found.append(Problem(what=what, why=why, fix=fix, field="inject"))
        return found

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        inject = min(p // 2 + 1, p) if self.inject is None else self.inject

        def rank(kind: Kind, stage: int, unit: int) -> Key:
            return int(kind is not Kind.B), unit, -(stage % p), stage // p

        return list_table(
            self.placement(p), (m - m // 2, m // 2), (1, 2), rank, lambda stage: None if stage % p else inject
        )
