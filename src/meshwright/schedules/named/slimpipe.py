"""SlimPipe: interleaved 1F1B over uniform slices of every sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshwright.errors import Problem
from meshwright.schedules.declaration import SharedKeys
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.named.segments import SegmentSchedule
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import Kind, ScheduleTable

ROUNDING = 1e-9
"""Slices that sums of halves may be off by."""


@lru_cache(maxsize=256)
def _evened(p: int, n: int) -> SharedKeys:
    """`SlimPipe.shared_keys`."""
    queries = keys = 0.0
    for now in range(n):
        loads = [(now - worker) % n + 0.5 for worker in range(p)]
        mean = sum(loads) / p
        give = sorted((load - mean for load in loads if load > mean), reverse=True)
        room = sorted((mean - load for load in loads if load < mean), reverse=True)
        keys += max(give, default=0.0)
        partners = [0] * len(give), [0] * len(room)
        while any(left > ROUNDING for left in give):
            most, widest = give.index(max(give)), room.index(max(room))
            moved = min(give[most], room[widest])
            give[most], room[widest] = give[most] - moved, room[widest] - moved
            partners[0][most], partners[1][widest] = partners[0][most] + 1, partners[1][widest] + 1
        queries += max((*partners[0], *partners[1]), default=0)
    return SharedKeys(queries / n, keys / n)


@dataclass(frozen=True, kw_only=True)
class SlimPipe(SegmentSchedule):
    """Every micro-batch runs through its worker's chunks slice by slice, forward in order, backward in reverse.

    Worker r warms up with the v*n - 1 slices that precede the first gradient, and two more for each worker behind it
    (one, with one chunk), so that n*v + 2*(p - 1 - r) slices of 1/(n*v) of a micro-batch live: little more than one
    micro-batch, where 1F1B keeps p. Idle (p - 1)*(f + b)/(n*v). A later slice attends to more keys: slice j to j + 1/2
    slices of them. Workers are one slice apart, so that at any time they have different slices, and those with later
    ones send their queries and some of the keys and values to those with earlier ones: `shared_keys`. In a plan this
    costs what attention does not hide.
    Source: Li et al., "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for Long-Context LLM Training",
    2025, abstract; the order of chunks within a micro-batch and who helps whom are this reconstruction's own.
    """

    segments: int = whole(
        4, "Slices per sequence; with several chunks per worker at least as many as workers.", tries=(8, 16)
    )

    name = "slimpipe"
    only_chunks = 0
    repeats = True
    ramps = 2
    title = "SlimPipe: 1F1B over slices of sequences, with the activations of one micro-batch"
    source = "Li et al., SlimPipe, 2025"
    traffic = (
        "v times the boundaries of one chunk per worker, in `segments` times as many messages; queries, keys, values "
        "and outputs of attention that a worker does for another one"
    )
    not_run = (
        "every worker does the attention of its own slices; to share it, tasks of two workers would have to meet in "
        "every layer, forward and backward, and a task of a run is one program between two messages"
    )

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + (p - 1) / (segments * v)) * (forward_s + backward_s)."""
        return (m + (p - 1) / (self.segments * v)) * (forward_s + backward_s)

    def shared_keys(self, p: int) -> SharedKeys | None:
        """The means over the n states of the fullest worker's sends, p of the n slices at work in each.

        The worker with most to give gives to the one with most room, so that each sends to few; p = n: (p - 1)/2 slices
        of keys to one other.
        """
        return _evened(p, self.segments) if p > 1 < self.segments else None

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if v == 1 or self.segments >= p:
            return []
        what = f"{self.name}: segments = {self.segments} with p = {p}, v = {v}"
        why = "a worker would wait for its next chunk's first slice after its last one"
        return [Problem(what=what, why=why, fix=f"segments = {p}, or v = 1", field="segments")]

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        n = self.segments
        forward = [(chunk, first + s) for first in range(0, m * n, n) for chunk in range(v) for s in range(n)]
        backward = [
            (chunk, first + s)
            for first in range(0, m * n, n)
            for chunk in reversed(range(v))
            for s in reversed(range(n))
        ]
        lists = []
        for r in range(p):
            warmup = min(v * n - 1 + (p - 1 - r) * (2 if v > 1 else 1), m * n * v)
            tasks = [Task(Kind.F, chunk * p + r, unit) for chunk, unit in forward[:warmup]]
            for index, (chunk, unit) in enumerate(backward):
                tasks += [
                    Task(Kind.F, ahead * p + r, own) for ahead, own in forward[warmup + index : warmup + index + 1]
                ]
                tasks.append(Task(Kind.B, chunk * p + r, unit))
            lists.append(tasks)
        return table_of_lists(self.placement(p, v), (m * n,), lists, segments=n)
