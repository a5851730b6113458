"""V-1F1B: whole backwards on a V at two thirds of the activations of 1F1B."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.zero_bubble import TwoChunkV
from meshwright.schedules.table import Kind, ScheduleTable

INTERVAL = 6
"""Slots between two micro-batches: two forwards of one slot, two backwards of two."""
SLOTS = {Kind.F: 1, Kind.B: 2}

Block = dict[tuple[Kind, int], int]
"""Slot of micro-batch 0 by kind and virtual stage."""


@dataclass(frozen=True, kw_only=True)
class VOneFOneB(TwoChunkV):
    """One block per micro-batch and six slots, made by modulo scheduling, then moved into earlier idle slots.

    The tasks of a micro-batch take, one behind the other, the earliest slots that are free modulo six on their workers:
    forwards move on every slot, backwards every third one on average, so that a worker holds about (2 + 6)*p/6 chunk
    activations, 4p/3 of the 2p of 1F1B. While the pipeline fills and drains, slots are idle: there, every task moves
    ahead of those that wait, and no forward beyond the peak of the blocks. The time is about that of 1F1B.
    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, the V with whole backwards; Rau,
    "Some scheduling techniques and an easily schedulable horizontal architecture", 1981, for the modulo schedule. The
    paper leaves the warm-up open: this one takes the time and the peak of the authors' code (p = 2 to 16).
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
        repeated = {
            Task(kind, stage, unit): slot + INTERVAL * unit
            for (kind, stage), slot in block.items()
            for unit in range(m)
        }
        lists: list[list[Task]] = [[] for _ in range(p)]
        slots = compacted(p, repeated)
        for task in sorted(slots, key=slots.__getitem__):
            lists[min(task.stage, 2 * p - 1 - task.stage)].append(task)
        return table_of_lists(self.placement(p), (m,), lists)


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


def compacted(p: int, slots: dict[Task, int]) -> dict[Task, int]:
    """The same tasks, each in the first idle slots behind what it needs, with no more activations than before.

    One task after the other, in the order of their slots, moves ahead or stays. It stays behind the same task of the
    micro-batch before; a forward also stays behind the last slot in which its worker holds the peak of all workers.

    Args:
        p: workers.
        slots: the slots of whole micro-batches on the V placement, none of them beside another one of its worker.
    """
    last, length = 2 * p - 1, max(slots.values()) + max(SLOTS.values())
    busy = [bytearray(length) for _ in range(p)]
    live = np.zeros((p, length + 1), np.int32)
    for task, slot in slots.items():
        worker, width = min(task.stage, last - task.stage), SLOTS[task.kind]
        busy[worker][slot : slot + width] = b"\1" * width
        live[worker, slot if task.kind is Kind.F else slot + width] += 1 if task.kind is Kind.F else -1
    np.cumsum(live, axis=1, out=live)
    peak = live.max()
    moved: dict[Task, int] = {}
    ends: dict[tuple[Kind, int, int], int] = {}
    for task in sorted(slots, key=slots.__getitem__):
        kind, stage, unit, _ = task
        slot, worker, width = slots[task], min(stage, last - stage), SLOTS[kind]
        needed = (kind, stage - 1 if kind is Kind.F else stage + 1, unit)
        if kind is Kind.B and stage == last:
            needed = (Kind.F, last, unit)
        first = max(ends.get(needed, 0), ends.get((kind, stage, unit - 1), 0))
        if kind is Kind.F:
            full = np.flatnonzero(live[worker, first:slot] == peak)
            first += int(full[-1]) + 1 if full.size else 0
        busy[worker][slot : slot + width] = bytes(width)
        at = busy[worker].find(bytes(width), first)
        busy[worker][at : at + width] = b"\1" * width
        if kind is Kind.F:
            live[worker, at:slot] += 1
        else:
            live[worker, at + width : slot + width] -= 1
        moved[task], ends[kind, stage, unit] = at, at + width
    return moved
