"""An event simulator of schedule tables that shares no idea with the one under test: one task at a time."""

from __future__ import annotations

import numpy as np

from meshwright.schedules import Kind, ScheduleTable, Times


def naive_ends(table: ScheduleTable, times: Times) -> dict[tuple[str, int, int], float]:
    """End of every task by (letter, virtual stage, micro-batch): whoever can go next, goes; until nobody is left."""
    placement = table.placement
    forward, backward = np.asarray(times.forward_s), np.asarray(times.backward_s)
    weight = np.zeros_like(backward) if times.weight_s is None else np.asarray(times.weight_s)
    recompute = np.zeros_like(backward) if times.recompute_s is None else np.asarray(times.recompute_s)
    transfer = np.asarray(times.transfer_s)
    seconds = {"F": forward, "B": backward, "I": backward - weight, "W": weight, "R": recompute, "X": recompute}

    fused = np.zeros(table.tasks, bool) if table.fused is None else table.fused
    lists: list[list[list[tuple[str, int, int]]]] = [[] for _ in range(placement.p)]
    for task in range(table.tasks):
        entry = (Kind(table.kind[task]).name, int(table.stage[task]), int(table.micro_batch[task]))
        own = lists[table.worker[task]]
        own[-1].append(entry) if fused[task] else own.append([entry])
    everything = {entry for own in lists for events in own for entry in events}

    def latency(stage: int, following: int) -> float:
        worker = placement.worker[stage]
        if worker == placement.worker[following]:
            return 0.0
        return float(np.broadcast_to(transfer, forward.shape)[worker, placement.chunk[stage]])

    def inputs(letter: str, stage: int, unit: int) -> list[tuple[tuple[str, int, int], float]]:
        before, after = int(placement.preceding[stage]), int(placement.following[stage])
        if letter == "F":
            return [(("F", before, unit), latency(before, stage))] if before >= 0 else []
        if letter in "BI":
            found = [(("R" if ("R", stage, unit) in everything else "F", stage, unit), 0.0)]
            if after >= 0:
                gradient = ("B" if ("B", after, unit) in everything else "I", after, unit)
                found.append((gradient, latency(stage, after)))
            return found
        return [(("I" if letter == "W" else "F", stage, unit), 0.0)]

    ends: dict[tuple[str, int, int], float] = {}
    free = [0.0] * placement.p
    done = [0] * placement.p
    moved = True
    while moved:
        moved = False
        for worker, own in enumerate(lists):
            while done[worker] < len(own):
                events = own[done[worker]]
                needed = [pair for event in events for pair in inputs(*event)]
                if any(entry not in ends for entry, _ in needed):
                    break
                start = max([free[worker], *(ends[entry] + lag for entry, lag in needed)])
                took = sum(seconds[kind][worker, placement.chunk[stage]] for kind, stage, _ in events)
                free[worker] = start + took
                ends.update(dict.fromkeys(events, free[worker]))
                done[worker] += 1
                moved = True
    assert len(ends) == table.tasks, "the naive simulator is stuck"
    return ends


def naive_worker_ends(table: ScheduleTable, times: Times) -> list[float]:
    """End of each worker's last task."""
    return worker_ends_of(table, naive_ends(table, times))


def worker_ends_of(table: ScheduleTable, ends: dict[tuple[str, int, int], float]) -> list[float]:
    """The same of the ends of all tasks."""
    last = [0.0] * table.p
    for (_, stage, _), end in ends.items():
        worker = int(table.placement.worker[stage])
        last[worker] = max(last[worker], end)
    return last
