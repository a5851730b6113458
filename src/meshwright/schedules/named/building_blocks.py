"""Schedules made of one block per micro-batch that repeats every six slots: V-Half and V-Min.

A slot is the time of one task of one chunk, all of them taken as equal. A block fixes the slots of the two forwards and
the two input gradients of a micro-batch on every worker; each weight gradient takes the earliest slot that is idle
behind its input gradient. The activations that live are the lifespan of a block over its interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import ClassVar

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.zero_bubble import TwoChunkV
from meshwright.schedules.table import Kind, ScheduleTable

INTERVAL = 6
"""Slots between two micro-batches: forward, input and weight gradient of two chunks."""
WINDOW = 12
"""Tasks ahead that may be moved forward, per worker of the pipeline."""

Offsets = tuple[int, int, int, int]
"""Slots of micro-batch 0 on a worker: F of chunk 0, F of chunk 1, I of chunk 1, I of chunk 0."""


def squeezed_blocks(p: int, m: int, offsets: Callable[[int], Offsets]) -> list[list[Task]]:
    """Tasks of m repeated blocks per worker, in the order of their slots.

    Args:
        p: workers.
        m: micro-batches.
        offsets: the offsets of a worker.
    """
    lists = []
    for r in range(p):
        steps = ((Kind.F, r), (Kind.F, 2 * p - 1 - r), (Kind.I, 2 * p - 1 - r), (Kind.I, r))
        slots = {
            slot + INTERVAL * unit: Task(kind, stage, unit)
            for (kind, stage), slot in zip(steps, offsets(r), strict=True)
            for unit in range(m)
        }
        after = 0
        for slot in sorted(slot for slot, task in slots.items() if task.kind == Kind.I):
            after = max(after, slot + 1)
            while after in slots:
                after += 1
            slots[after] = slots[slot]._replace(kind=Kind.W)
        lists.append([task for _, task in sorted(slots.items())])
    return lists


def reordered(p: int, lists: list[list[Task]], *, looks_ahead: bool = False) -> list[list[Task]]:
    """The same tasks in an order with fewer idle slots and no higher peak of live activations.

    First every idle slot takes the next task that is ready, as long as the peak stays; then the weight gradients are
    taken out and fill what is idle, or make room for a forward that is next, in the order of their input gradients.

    Args:
        p: workers.
        lists: the tasks of each worker, on the V placement.
        looks_ahead: then, too, an idle slot takes a later task that is ready before a weight gradient.
    """
    cap = max(_peak(tasks) for tasks in lists)
    earlier = _run(p, lists, lambda live, rest, ready: _next_ready(live, rest, ready, cap, WINDOW * p))
    bare = [[task for task in tasks if task.kind != Kind.W] for tasks in earlier]
    window = WINDOW * p if looks_ahead else 1
    return _run(p, bare, lambda live, rest, ready: _next_fitting(live, rest, ready, cap, window))


def _change(task: Task) -> int:
    """Activations more behind the task."""
    return {Kind.F: 1, Kind.W: -1}.get(task.kind, 0)


def _peak(tasks: list[Task]) -> int:
    live = most = 0
    for task in tasks:
        live += _change(task)
        most = max(most, live)
    return most


def _fits(live: int, task: Task, cap: int) -> bool:
    return live + max(_change(task), 0) <= cap


def _next_ready(live: int, rest: list[Task], ready: list[Task], cap: int, window: int) -> int | None:
    """Index of the first task that is ready and, run now, leaves room for those it overtakes."""
    if rest[0] in ready:
        return 0
    near = rest[:window]
    for index in sorted(near.index(task) for task in ready if task in near):
        task = rest[index]
        if task.kind != Kind.F:
            return index
        most = max(accumulate(map(_change, near[:index])))
        if live + 1 + max(most, 0) <= cap:
            return index
    return None


def _next_fitting(live: int, rest: list[Task], ready: list[Task], cap: int, window: int) -> int | None:
    """`_next_ready`, or None where the next task is a forward without room: a weight gradient makes it."""
    return _next_ready(live, rest, ready, cap, window) if _fits(live, rest[0], cap) else None


def _run(
    p: int,
    lists: list[list[Task]],
    choose: Callable[[int, list[Task], list[Task]], int | None],
) -> list[list[Task]]:
    """The order in which workers run the tasks that `choose` picks, slot by slot.

    Every kind of task of a stage runs its micro-batches in order, so the first one left of each is the only one of them
    that may be ready. Weight gradients that the lists lack run in slots where nothing else is picked.

    Args:
        p: workers.
        lists: the tasks of each worker.
        choose: index of the task to run, from live activations, tasks left and those of them whose inputs are there;
            None for none.
    """
    with_weights = any(task.kind == Kind.W for tasks in lists for task in tasks)
    rest = [list(tasks) for tasks in lists]
    heads: list[dict[tuple[int, int], deque[Task]]] = [{} for _ in lists]
    for own, tasks in zip(heads, lists, strict=True):
        for task in tasks:
            own.setdefault((int(task.kind), task.stage), deque()).append(task)
    owed: list[deque[Task]] = [deque() for _ in lists]
    order: list[list[Task]] = [[] for _ in lists]
    live = [0] * p
    last = 2 * p - 1
    finished = [[0] * (last + 1) for _ in Kind]
    forward, gradient = finished[Kind.F], finished[Kind.I]

    def is_ready(task: Task) -> bool:
        kind, stage, unit, _ = task
        if kind is Kind.F:
            return stage == 0 or forward[stage - 1] > unit
        if kind is Kind.W:
            return gradient[stage] > unit
        return forward[stage] > unit and (stage == last or gradient[stage + 1] > unit)

    holder = {task.stage: r for r, tasks in enumerate(lists) for task in tasks}
    # A worker that found nothing to run finds nothing until a stage beside one of its own has run something.
    looking = set(range(p))
    while any(rest) or any(owed):
        ran = []
        woken: set[int] = set()
        for r in sorted(looking):
            index = None
            if rest[r]:
                index = choose(live[r], rest[r], [own[0] for own in heads[r].values() if own and is_ready(own[0])])
            if index is not None:
                task = rest[r].pop(index)
                heads[r][int(task.kind), task.stage].popleft()
                if task.kind == Kind.I and not with_weights:
                    owed[r].append(task._replace(kind=Kind.W))
            elif owed[r]:
                task = owed[r].popleft()
            else:
                continue
            order[r].append(task)
            live[r] += _change(task)
            ran.append((int(task.kind), task.stage))
            woken |= {r, holder.get(task.stage - 1, r), holder.get(task.stage + 1, r)}
        for kind, stage in ran:
            finished[kind][stage] += 1
        looking = woken
    return order


class BlockSchedule(TwoChunkV):
    """One block per micro-batch and six slots, squeezed, then reordered."""

    source = "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024"
    repeats = True
    ramps = 2
    looks_ahead: ClassVar[bool] = False
    """Whether reordering moves tasks again when it places the weight gradients: that shortens blocks with waits."""
    raw: bool

    def offsets(self, p: int, worker: int) -> Offsets:
        """Slots of micro-batch 0 on a worker.

        Args:
            p: workers.
            worker: the worker from 0.
        """
        raise NotImplementedError

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        lists = squeezed_blocks(p, m, lambda worker: self.offsets(p, worker))
        if not self.raw:
            lists = reordered(p, lists, looks_ahead=self.looks_ahead)
        return table_of_lists(self.placement(p), (m,), lists)
