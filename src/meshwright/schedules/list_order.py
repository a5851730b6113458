"""Orders by list scheduling: whenever a worker is free, it runs the ready task that a schedule ranks first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.table import Kind, Placement, ScheduleTable

Key = tuple[int, ...]


def list_table(
    placement: Placement,
    micro_batches: Sequence[int],
    ticks: tuple[int, int],
    rank: Callable[[Kind, int, int], Key],
    cap: Callable[[int], int | None] | None = None,
) -> ScheduleTable:
    """The order in which workers that never wait on purpose run forwards and backwards of equal stages.

    Args:
        placement: of the virtual stages, one or more chains.
        micro_batches: that enter each chain.
        ticks: whole time units of a forward and of a backward of one chunk; only their ratio matters.
        rank: of a task by kind, virtual stage and micro-batch; the lowest runs first.
        cap: most micro-batches of a virtual stage between the start of its forward and the end of its backward, None
            for any number; a worker with nothing else to do then waits.
    """
    following, preceding = placement.following.tolist(), placement.preceding.tolist()
    worker_of, chain_of = placement.worker.tolist(), placement.chain.tolist()
    first = [stage for stage, before in enumerate(preceding) if before < 0]
    live = [0] * placement.stages
    caps = [None if cap is None else cap(stage) for stage in range(placement.stages)]
    ready: list[list[tuple[Key, Kind, int, int]]] = [[] for _ in range(placement.p)]
    orders: list[list[Task]] = [[] for _ in range(placement.p)]
    free = [True] * placement.p
    running: list[tuple[int, int, int, int]] = []

    def offer(kind: Kind, stage: int, unit: int) -> None:
        heapq.heappush(ready[worker_of[stage]], (rank(kind, stage, unit), kind, stage, unit))

    for stage in first:
        offer(Kind.F, stage, 0)

    def may_run(kind: Kind, stage: int) -> bool:
        most = caps[stage]
        return kind is not Kind.F or most is None or live[stage] < most

    now = 0
    while True:
        for worker in range(placement.p):
            if not free[worker]:
                continue
            held = []
            while ready[worker]:
                entry = heapq.heappop(ready[worker])
                _, kind, stage, unit = entry
                if not may_run(kind, stage):
                    held.append(entry)
                    continue
                if kind is Kind.F:
                    live[stage] += 1
                    if preceding[stage] < 0 and unit + 1 < micro_batches[chain_of[stage]]:
                        held.append((rank(Kind.F, stage, unit + 1), Kind.F, stage, unit + 1))
                orders[worker].append(Task(kind, stage, unit))
                heapq.heappush(running, (now + ticks[kind], int(kind), stage, unit))
                free[worker] = False
                break
            for entry in held:
                heapq.heappush(ready[worker], entry)
        if not running:
            break
        now = running[0][0]
        while running and running[0][0] == now:
            _, number, stage, unit = heapq.heappop(running)
            free[worker_of[stage]] = True
            if number == Kind.F:
                after = following[stage]
                offer(Kind.F if after >= 0 else Kind.B, after if after >= 0 else stage, unit)
                continue
            live[stage] -= 1
            if preceding[stage] >= 0:
                offer(Kind.B, preceding[stage], unit)
    return table_of_lists(placement, tuple(micro_batches), orders)
