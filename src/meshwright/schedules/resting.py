"""Rules under which workers rest: a weight gradient is put off where it would delay a task that others wait for.

The span of a step is that of the worker that takes longest from its first to its last task. A worker that idles less
than that one loses nothing by idling more, while a weight gradient that it starts meanwhile holds up its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.schedules.list_scheduling import NEVER, Choice, Greedy, State, TaskRule, WorkerQueue
from meshwright.schedules.lists import Task
from meshwright.schedules.table import Kind

BOTH = frozenset({Kind.F, Kind.I})
GRADIENTS = frozenset({Kind.I})
"""Tasks that a worker may rest before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """How long a worker may idle although a weight gradient could run."""

    most_s: float = 0.0
    """All together; at least as long as the worker that has idled longest so far, if `as_others`."""
    as_others: bool = True
    before: frozenset[Kind] = BOTH

    def ends(self, state: State, desk: WorkerQueue, start_s: float, kind: Kind) -> bool:
        """Whether the next weight gradient of a worker goes before another task.

        It does where it is over before that task could start, and where the worker has rested enough.

        Args:
            state: of all workers.
            desk: of the worker.
            start_s: of the other task.
            kind: of the other task.
        """
        wait_s = start_s - desk.free_s
        if not desk.owed or wait_s <= 0:
            return False
        if kind not in self.before or wait_s >= state.seconds[Kind.W][desk.owed[0][0]] * (1 - 1e-12):
            return True
        idle_s = desk.idle_s + wait_s
        if idle_s <= self.most_s * (1 + 1e-12):
            return False
        return not self.as_others or idle_s > max(other.idle_s for other in state.desks)

    def __str__(self) -> str:
        before = "gradients" if self.before == GRADIENTS else "forwards and gradients"
        longest = " or as long as the idlest one" if self.as_others else ""
        return f"a worker rests {self.most_s:.4g} s{longest} before {before}"


class Resting(Greedy):
    """Greedy, with the weight gradients where a worker may not rest."""

    def __init__(self, warmups: Sequence[int], rest: Rest) -> None:
        """Keep the options.

        Args:
            warmups: as `Greedy` takes them.
            rest: how long a worker may idle.
        """
        super().__init__(warmups, wait=NEVER)
        self.rest = rest

    def choose(self, state: State, worker: int) -> Choice:
        start_s, kind, stage = super().choose(state, worker)
        desk = state.desks[worker]
        if self.rest.ends(state, desk, start_s, kind):
            return desk.free_s, Kind.W, desk.owed[0][0]
        return start_s, kind, stage


class InOrder(TaskRule):
    """Forwards and input gradients in an order that is given; weight gradients in between."""

    def __init__(self, lists: Sequence[Sequence[Task]], rest: Rest) -> None:
        """Keep the order.

        Args:
            lists: by worker; its weight gradients do not count, whole backwards stand for input gradients.
            rest: how long a worker may idle.
        """
        self.given = [
            [(Kind.F if task.kind is Kind.F else Kind.I, task.stage) for task in tasks if task.kind is not Kind.W]
            for tasks in lists
        ]
        self.rest = rest

    def fits(self, work_bytes: Sequence[float], room_bytes: Sequence[float] | None) -> bool:
        """Whether every worker has room for the order if weight gradients follow their input gradients at once.

        Args:
            work_bytes: activation of one micro-batch by virtual stage.
            room_bytes: of each worker; None for any amount.
        """
        if room_bytes is None:
            return True
        for own, room in zip(self.given, room_bytes, strict=True):
            live = 0.0
            for kind, stage in own:
                live += work_bytes[stage] if kind is Kind.F else -work_bytes[stage]
                if live > room * (1 + 1e-9):
                    return False
        return True

    def choose(self, state: State, worker: int) -> Choice:
        desk, own = state.desks[worker], self.given[worker]
        done = desk.forwards + desk.gradients
        kind, stage = own[done] if done < len(own) else (Kind.W, -1)
        room = state.room_bytes[worker] * (1 + 1e-9)
        full = kind is Kind.F and desk.live_bytes + state.bytes_of[stage] > room
        start_s = NEVER if kind is Kind.W or full else max(desk.free_s, state.arrival_s(kind, stage))
        if desk.owed and (start_s == NEVER or self.rest.ends(state, desk, start_s, kind)):
            return desk.free_s, Kind.W, desk.owed[0][0]
        return start_s, kind, stage
