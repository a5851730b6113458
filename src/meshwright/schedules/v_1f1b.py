"""V-1F1B: whole backwards on a V at two thirds of the activations of 1F1B."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.zero_bubble import TwoChunkV

INTERVAL = 6
"""Slots between two micro-batches: two forwards of one slot, two backwards of two."""
SLOTS = {Kind.F: 1, Kind.B: 2}
WINDOW = 12
"""Tasks ahead among which a forward is looked for, per worker."""

Block = dict[tuple[Kind, int], int]
"""Slot of micro-batch 0 by kind and virtual stage."""


@dataclass(frozen=True, kw_only=True)
class VOneFOneB(TwoChunkV):
    """One block per micro-batch and six slots, made by modulo scheduling, then forwards moved ahead within its peak.

    The tasks of a micro-batch take, one behind the other, the earliest slots that are free modulo six on their workers:
    forwards move on every slot, backwards every third one on average, so that a worker holds about (2 + 6)*p/6 chunk
    activations, 4p/3 of the 2p of 1F1B. The time is about that of 1F1B.
    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, the V with whole backwards; Rau,
    "Some scheduling techniques and an easily schedulable horizontal architecture", 1981, for the modulo schedule. The
    authors' code has the same peaks; its warm-up, which the paper leaves open, is up to 5% of a step shorter.
    """

    name = "v-1f1b"
    kinds = frozenset({Kind.F, Kind.B})
    repeats = True
    ramps = 2
    title = "V-1F1B: two thirds of the activations of 1F1B, two chunks in a V"
    source = "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """None: no closed form is known."""
        return None

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        block = modulo_block(p)
        lists = [
            sorted(
                (Task(kind, stage, unit) for kind, stage in block if stage in (r, 2 * p - 1 - r) for unit in range(m)),
                key=lambda task: block[task.kind, task.stage] + INTERVAL * task.unit,
            )
            for r in range(p)
        ]
        return table_of_lists(self.placement(p), (m,), forwards_ahead(lists))


def modulo_block(p: int) -> Block:
    """The slots of one micro-batch that repeats every `INTERVAL` slots.

    Args:
        p: workers.
    """
    taken: list[set[int]] = [set() for _ in range(p)]
    block: Block = {}
    slot = 0
    chain = range(2 * p)
    for kind, stages in ((Kind.F, chain), (Kind.B, chain[::-1])):
        for stage in stages:
            own = taken[min(stage, 2 * p - 1 - stage)]
            while own & {(slot + k) % INTERVAL for k in range(SLOTS[kind])}:
                slot += 1
            own |= {(slot + k) % INTERVAL for k in range(SLOTS[kind])}
            block[kind, stage] = slot
            slot += SLOTS[kind]
    return block


def forwards_ahead(lists: list[list[Task]]) -> list[list[Task]]:
    """The same tasks, run as soon as they can; a worker that would wait runs a later forward if the peak stays.

    Args:
        lists: per worker its tasks, on the V placement; the most activations of any worker are the peak.
    """
    p = len(lists)
    last, peak = 2 * p - 1, max(_most(tasks, 0) for tasks in lists)
    left = [list(tasks) for tasks in lists]
    order: list[list[Task]] = [[] for _ in lists]
    ends: dict[tuple[Kind, int, int], int] = {}
    free, live = [0] * p, [0] * p

    def ready(task: Task, slot: int) -> bool:
        if task.kind is Kind.F:
            before = None if task.stage == 0 else (Kind.F, task.stage - 1, task.unit)
        else:
            before = (Kind.F, last, task.unit) if task.stage == last else (Kind.B, task.stage + 1, task.unit)
        return before is None or ends.get(before, slot + 1) <= slot

    def chosen(worker: int, slot: int) -> int | None:
        """Index of the task that a worker runs; None for none."""
        rest = left[worker]
        if ready(rest[0], slot):
            return 0
        seen, now, most = set(), live[worker], live[worker]
        for index, task in enumerate(rest[: WINDOW * p]):
            if task.kind is Kind.F and task.stage not in seen and most < peak and ready(task, slot):
                return index
            if task.kind is Kind.F:
                seen.add(task.stage)
            now += 1 if task.kind is Kind.F else -1
            most = max(most, now)
        return None

    # A worker that found nothing finds something only once it or a neighbouring stage has ended a task.
    awake: dict[int, set[int]] = {0: set(range(p))}
    while awake:
        slot = min(awake)
        for worker in sorted(awake.pop(slot)):
            index = chosen(worker, slot) if left[worker] and free[worker] <= slot else None
            if index is not None:
                task = left[worker].pop(index)
                order[worker].append(task)
                live[worker] += 1 if task.kind is Kind.F else -1
                end = free[worker] = ends[task.kind, task.stage, task.unit] = slot + SLOTS[task.kind]
                near = range(max(task.stage - 1, 0), min(task.stage + 1, last) + 1)
                awake.setdefault(end, set()).update(min(stage, last - stage) for stage in near)
    return order


def _most(tasks: list[Task], now: int) -> int:
    """Most activations alive along an order."""
    most = now
    for task in tasks:
        now += 1 if task.kind is Kind.F else -1
        most = max(most, now)
    return most
