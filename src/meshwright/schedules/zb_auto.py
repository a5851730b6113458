"""The zero-bubble search: an order of forwards, input and weight gradients for given stage times and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.one_f_one_b import one_chunk_problems
from meshwright.schedules.simulate import Times, makespans
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.zb_h1 import ZeroBubbleH1
from meshwright.schedules.zb_h2 import ZeroBubbleH2
from meshwright.schedules.zero_bubble import SPLIT, ListedSchedule

UNIT_S = 1.0
"""Time of every task of a stage for which none is given."""


@dataclass(frozen=True, kw_only=True)
class ZeroBubbleAuto(ListedSchedule):
    """Greedy orders for many warm-up depths and placements of the weight gradients, simulated; the fastest one stays.

    A worker runs its warm-up forwards up to the memory limit, then an input gradient when there is one, else a forward
    if memory allows, else a weight gradient. Options: how deep each worker warms up, whether it waits for a gradient
    that is about to arrive rather than start a weight gradient, whether forwards go before gradients. ZB-H1, and ZB-H2
    where it is legal, compete if they keep within the limit, so the result is never slower than ZB-H1 at its memory.
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
    most_live: int | None = None
    """Micro-batches whose activations may live on a worker; None: 2p - 1, where more does not help equal stages."""

    name = "zb-auto"
    kinds = SPLIT
    title = "zero-bubble search for unequal stages under a memory limit"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found = one_chunk_problems(self.name, v)
        if self.most_live is not None and self.most_live < 1:
            what, why = f"{self.name}: most_live = {self.most_live}", "a worker keeps one micro-batch at least"
            found.append(Problem(what=what, why=why, fix="most_live = 1 or more", field="most_live"))
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
        times = self.stage_times(p)
        named = (ZeroBubbleH1(), ZeroBubbleH2())
        tables = [schedule.table(p, m) for schedule in named if not schedule.problems(p, m)]
        tables = [table for table in tables if _peak(table) <= limit]
        orders = {tuple(map(tuple, lists)) for lists in _greedy_orders(p, m, min(limit, m), times)}
        # Sorted, so that equally fast orders give the same table in every run.
        tables += [table_of_lists(self.placement(p), (m,), lists) for lists in sorted(orders)]
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


def _greedy_orders(p: int, m: int, limit: int, times: Times) -> Iterator[list[list[Task]]]:
    """One order per choice of warm-up depths and options."""
    seconds = {
        Kind.F: np.asarray(times.forward_s)[:, 0].tolist(),
        Kind.I: (np.asarray(times.backward_s) - np.asarray(times.weight_s))[:, 0].tolist(),
        Kind.W: np.asarray(times.weight_s)[:, 0].tolist(),
    }
    transfer_s = float(np.asarray(times.transfer_s).flat[0])
    for warmups, wait, eager in product(dict.fromkeys(_warmups(p, limit)), (0.0, 0.5, 1.0), (False, True)):
        yield _greedy(p, m, limit, seconds, transfer_s, warmups, wait, eager)


def _greedy(
    p: int,
    m: int,
    limit: int,
    seconds: dict[Kind, list[float]],
    transfer_s: float,
    warmups: Sequence[int],
    wait: float,
    eager: bool,
) -> list[list[Task]]:
    """Tasks of every worker, each chosen when the worker that can start first starts.

    Args:
        p: workers.
        m: micro-batches.
        limit: live micro-batches per worker.
        seconds: by kind and worker.
        transfer_s: latency between neighbours.
        warmups: forwards of each worker before its first gradient.
        wait: share of a weight gradient that a worker rather idles for a forward or gradient.
        eager: whether a forward goes before a gradient that is ready too.
    """
    never = float("inf")
    arrives = {Kind.F: [[0.0] * m] + [[never] * m for _ in range(p - 1)], Kind.I: [[never] * m for _ in range(p)]}
    count = {kind: [0] * p for kind in seconds}
    free = [0.0] * p
    lists: list[list[Task]] = [[] for _ in range(p)]

    def choice(r: int) -> tuple[float, Kind]:
        """When the worker's next task starts, and its kind; the time is infinite while it waits for others."""
        forwards, inputs, weights = (count[kind][r] for kind in (Kind.F, Kind.I, Kind.W))
        warm = forwards < min(warmups[r], m) and inputs == 0
        forward = gradient = never
        if forwards < m and forwards - weights < limit:
            forward = max(free[r], arrives[Kind.F][r][forwards])
        if inputs < forwards and not warm:
            gradient = max(free[r], arrives[Kind.I][r][inputs])
        first_forward = forward < gradient or (eager and forward == gradient < never)
        start, kind = (forward, Kind.F) if first_forward else (gradient, Kind.I)
        # Beyond the warm-up a worker keeps as many micro-batches without gradient as it warmed up with.
        if kind == Kind.F and not warm and not eager and forwards - inputs >= warmups[r]:
            start, kind = gradient, Kind.I
        if weights < inputs and start > free[r] + wait * seconds[Kind.W][r]:
            return free[r], Kind.W
        return start, kind

    choices = [choice(r) for r in range(p)]
    for _ in range(3 * p * m):
        r = min(range(p), key=lambda worker: choices[worker][0])
        start, kind = choices[r]
        unit = count[kind][r]
        count[kind][r] += 1
        lists[r].append(Task(kind, r, unit))
        free[r] = end = start + seconds[kind][r]
        if kind == Kind.F:
            if r + 1 < p:
                arrives[Kind.F][r + 1][unit] = end + transfer_s
            else:
                arrives[Kind.I][r][unit] = end
        elif kind == Kind.I and r:
            arrives[Kind.I][r - 1][unit] = end + transfer_s
        for near in range(max(0, r - 1), min(p, r + 2)):
            choices[near] = choice(near)
    return lists
