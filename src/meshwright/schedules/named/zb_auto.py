"""The zero-bubble search: an order of forwards, input and weight gradients for given stage times and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.named.zb_h1 import ZeroBubbleH1
from meshwright.schedules.named.zb_h2 import ZeroBubbleH2
from meshwright.schedules.named.zero_bubble import SPLIT, ListedSchedule
from meshwright.schedules.order_bounds import order_lower_bound_s
from meshwright.schedules.order_search import greedy_options, search_orders
from meshwright.schedules.parameters import whole
from meshwright.schedules.simulate import makespans
from meshwright.schedules.stage_shares import Caps, virtual_stage_work
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.times import Times

UNIT_S = 1.0
"""Time of every task of a stage for which none is given."""


@dataclass(frozen=True, kw_only=True)
class ZeroBubbleAuto(ListedSchedule):
    """Greedy orders for many warm-up depths and placements of the weight gradients, simulated; the fastest one stays.

    The scheduler of `order_search` on one chunk per worker: a worker runs its warm-up forwards up to the memory limit,
    then an input gradient when there is one, else a forward if memory allows, else a weight gradient. Options: how deep
    each worker warms up, whether it waits for a gradient that is about to arrive rather than start a weight gradient,
    whether forwards go before gradients. ZB-H1, and ZB-H2 where it is legal, compete if they keep within the limit, so
    the result is never slower than ZB-H1 at its memory.
    Source: Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024, section 3.1 (heuristic); options and tie
    rules are this reconstruction's own.
    """

    forward_s: tuple[float, ...] | None = None
    """Forward of one micro-batch by worker; None: 1 s each."""
    input_s: tuple[float, ...] | None = None
    """Input gradient by worker; None: 1 s each."""
    weight_s: tuple[float, ...] | None = None
    """Weight gradient by worker; None: 1 s each."""
    transfer_s: float = 0.0
    """Latency between neighbours."""
    most_live: int | None = whole(None, "Micro-batches that a worker may keep. [default: 2p - 1]")
    """More than 2p - 1 do not help equal stages."""

    name = "zb-auto"
    only_chunks = 1
    orders_tried = 32
    kinds = SPLIT
    title = "zero-bubble search for unequal stages under a memory limit"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"

    def _value_problems(self, p: int) -> list[Problem]:
        found: list[Problem] = []
        for field in ("forward_s", "input_s", "weight_s"):
            given = getattr(self, field)
            if given is None:
                continue
            if len(given) != p:
                what, why = f"{self.name}: {len(given)} values of {field}", f"one per worker, p = {p}"
                found.append(Problem(what=what, why=why, fix=f"{p} values", field=field))
            if not all(np.isfinite(seconds) and seconds >= 0 for seconds in given):
                what, why = f"{self.name}: {field} = {given}", "a duration is finite and at least 0 s"
                found.append(Problem(what=what, why=why, field=field))
        if not (np.isfinite(self.transfer_s) and self.transfer_s >= 0):
            what, why = f"{self.name}: transfer_s = {self.transfer_s}", "a duration is finite and at least 0 s"
            found.append(Problem(what=what, why=why, field="transfer_s"))
        return found

    def made_for(self, p: int, forward_s: float, input_s: float, weight_s: float, transfer_s: float) -> ZeroBubbleAuto:
        """The search over orders for these times."""
        if p < 1:
            return self
        times = {"forward_s": (forward_s,) * p, "input_s": (input_s,) * p, "weight_s": (weight_s,) * p}
        return replace(self, **times, transfer_s=transfer_s)  # type: ignore[arg-type]

    def stage_times(self, p: int) -> Times:
        """The times that the order is made for.

        Args:
            p: workers.
        """
        forward, input_, weight = (
            np.full((p, 1), UNIT_S) if given is None else np.asarray(given, float).reshape(p, 1)
            for given in (self.forward_s, self.input_s, self.weight_s)
        )
        return Times(
            forward_s=forward,
            backward_s=input_ + weight,
            weight_s=weight,
            transfer_s=np.full((p, 1), float(self.transfer_s)),
        )

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        limit = 2 * p - 1 if self.most_live is None else self.most_live
        placement, times = self.placement(p), self.stage_times(p)
        named = (ZeroBubbleH1(), ZeroBubbleH2())
        tables = [schedule.table(p, m) for schedule in named if not schedule.problems(p, m)]
        tables = [table for table in tables if _peak(table) <= limit]
        caps = Caps(capacity_bytes=float(limit), activation_bytes=1.0)
        work = virtual_stage_work(placement, (m,), times, np.ones((p, 1)), caps)
        options = greedy_options(_warmups(p, min(limit, m)), split=True)
        order = search_orders([work], [options], order_lower_bound_s(work))
        tables.append(table_of_lists(placement, (m,), order.lists))
        return min(tables, key=lambda table: float(makespans(table, times).max()))


def _peak(table: ScheduleTable) -> int:
    """Most micro-batches that live on one worker."""
    change = np.select([table.kind == Kind.F, table.kind == Kind.W], [1, -1], 0)
    return max(int(np.cumsum(own).max()) for own in np.split(change, table.first[1:-1]))


def _warmups(p: int, limit: int) -> Iterator[tuple[int, ...]]:
    """Forwards before each worker's first gradient: from 1F1B's to ZB-H2's, and as many as fit."""
    for extra in (0.0, 0.25, 0.5, 1.0):
        yield tuple(max(1, min(limit, p - r + round(extra * (p - 1 - r)))) for r in range(p))
    yield tuple(limit for _ in range(p))
