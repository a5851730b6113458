"""Varuna: recomputation as tasks of their own, just ahead of the gradient they are needed for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from meshwright.schedules.base import Schedule
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.simulate import Times, simulate
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.timeline import Timeline

BACKWARD_SLOTS = 2
"""Slots of a backward in the order's own clock; forward and recomputation take one."""


@dataclass(frozen=True, kw_only=True)
class Varuna(Schedule):
    """Backward before recomputation before forward, in slots where a backward takes two and the others one.

    Worker r recomputes micro-batch i while worker r + 1 is in the second half of its backward, so that its own backward
    starts when the gradient lands and at most one recomputed set of activations lives. The last worker recomputes
    nothing. Activations in flight are boundary inputs here, up to m on the first worker. At run time Varuna also runs a
    forward in place of a recomputation whose gradient is late: `opportunistic` gives that order for given durations.
    Source: Athlur et al., "Varuna: Scalable, Low-cost Training of Massive Deep Learning Models", EuroSys 2022; slots
    and priorities as in the published code's schedule generator.
    """

    name = "varuna"
    only_chunks = 1
    kinds = frozenset({Kind.F, Kind.R, Kind.B})
    title = "Varuna: recomputation just ahead of the gradient"
    source = "Athlur et al., Varuna, EuroSys 2022"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """m*(2*f + b) + (3*(p - 1) - 1 - (m - 1) % 3)*f for b = 2*f, where f is a slot; m*(f + b) for one worker.

        The source publishes no formula; this one describes the slots and is held to the simulator. None for other b.
        """
        if p == 1:
            return m * (forward_s + backward_s)
        if backward_s != BACKWARD_SLOTS * forward_s:
            return None
        return m * (2 * forward_s + backward_s) + (3 * (p - 1) - 1 - (m - 1) % 3) * forward_s

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        return table_of_lists(self.placement(p), (m,), slot_orders(p, m))


def slot_orders(p: int, m: int) -> list[list[Task]]:
    """The tasks of every worker, chosen slot by slot.

    Args:
        p: workers.
        m: micro-batches.
    """
    orders: list[list[Task]] = [[] for _ in range(p)]
    free_at = [0] * p
    # Slot from which the next forward, recomputation and backward of each worker may run; its own come in order.
    forward_from: list[list[int]] = [[0] * m if r == 0 else [] for r in range(p)]
    recompute_from: list[list[int]] = [[] for _ in range(p)]
    backward_from: list[list[int]] = [[] for _ in range(p)]
    done = {Kind.F: [0] * p, Kind.R: [0] * p, Kind.B: [0] * p}
    gradient_at: list[list[int]] = [[] for _ in range(p)]
    slot = 0
    while min(done[Kind.B]) < m:
        for r in range(p):
            if free_at[r] > slot:
                continue
            for kind, available in ((Kind.B, backward_from[r]), (Kind.R, recompute_from[r]), (Kind.F, forward_from[r])):
                unit = done[kind][r]
                if unit >= len(available) or available[unit] > slot:
                    continue
                orders[r].append(Task(kind, r, unit))
                done[kind][r] += 1
                end = free_at[r] = slot + (BACKWARD_SLOTS if kind is Kind.B else 1)
                if kind is Kind.F:
                    (forward_from[r + 1] if r + 1 < p else backward_from[r]).append(end)
                elif kind is Kind.R:
                    backward_from[r].append(max(end, gradient_at[r][unit]))
                elif r > 0:
                    recompute_from[r - 1].append(slot + 1)
                    gradient_at[r - 1].append(end)
                break
        slot += 1
    return orders


def opportunistic(table: ScheduleTable, times: Times) -> ScheduleTable:
    """The order that workers take who run the next forward in place of a recomputation whose gradient is late.

    Late is a gradient that is still missing when the forward, started as soon as it can, and the recomputation behind
    it would both be over:

        max(worker free, activation there) + forward + recomputation <= gradient there

    So no forward and no backward ends later than in the given order, whatever the durations; where gradients are on
    time, as with equal slots and free transfers, the order stays. A worker may keep more boundary inputs, at most m.
    This is a reconstruction: the source's runtime asks only whether the gradient is there when the recomputation is
    due, which in its own slots it never is, and so may delay a backward.

    Args:
        table: the table of `Varuna`.
        times: one set of durations; with `by_micro_batch` every task has its own, as with jitter.
    """
    while True:
        timeline = simulate(table, times)
        order = _forwards_ahead(timeline)
        if np.array_equal(order, np.arange(table.tasks)):
            return table
        table = ScheduleTable(
            placement=table.placement,
            micro_batches=table.micro_batches,
            worker=table.worker[order],
            kind=table.kind[order],
            stage=table.stage[order],
            micro_batch=table.micro_batch[order],
        )


def _forwards_ahead(timeline: Timeline) -> np.ndarray:
    """Tasks of all workers in the order in which forwards run ahead of recomputations whose gradient is late."""
    table, transfers = timeline.table, timeline.transfers()
    arrives = np.zeros(table.tasks)
    arrives[transfers.consumer] = transfers.end_s
    there_s, took_s = arrives.tolist(), (timeline.end_s - timeline.start_s).tolist()
    kinds = table.kind.tolist()
    order: list[int] = []
    for low, high in zip(table.first[:-1].tolist(), table.first[1:].tolist(), strict=True):
        rest = deque(task for task in range(low, high) if kinds[task] != Kind.F)
        forwards = deque(task for task in range(low, high) if kinds[task] == Kind.F)
        free_s = 0.0
        while rest or forwards:
            listed = forwards and (not rest or forwards[0] < rest[0])
            late = False
            if forwards and not listed and kinds[rest[0]] == Kind.R:
                forward, again, backward = forwards[0], rest[0], rest[1]
                late = max(free_s, there_s[forward]) + took_s[forward] + took_s[again] <= there_s[backward]
            task = forwards.popleft() if listed or late else rest.popleft()
            order.append(task)
            free_s = max(free_s, there_s[task]) + took_s[task]
    return np.array(order)
