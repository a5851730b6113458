"""Rules under which workers rest: a weight gradient is put off where it would delay a task that others wait for.

The span of a step is that of the worker that takes longest from its first to its last task. A worker that idles less
than that one loses nothing by idling more, while a weight gradient that it starts meanwhile holds up its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.schedules.list_scheduling import NEVER, Choice, Greedy, State, TaskRule
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

    def ends(self, state: State, worker: int, start_s: float, kind: Kind, stage: int) -> bool:
        """Whether the next weight gradient of a worker goes before another task.

        It does where it is over before that task could start, and where the worker has rested enough.

        Args:
            state: the state of all workers.
            worker: the worker that may rest.
            start_s: the start in seconds of the other task.
            kind: the kind of the other task.
            stage: the stage of the other task.
        """
        desk = state.desks[worker]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackRest(Rest):
    """A worker rests where a weight gradient would start another task later than an order of the same tasks allows."""

    latest_s: Mapping[tuple[Kind, int, int], float]
    """Start of every task by kind, virtual stage and micro-batch."""

    def ends(self, state: State, worker: int, start_s: float, kind: Kind, stage: int) -> bool:
        desk = state.desks[worker]
        wait_s = start_s - desk.free_s
        if not desk.owed or wait_s <= 0:
            return False
        weight_s = state.seconds[Kind.W][desk.owed[0][0]]
        latest_s = self.latest_s[kind, stage, state.done[kind][stage]]
        if wait_s >= weight_s * (1 - 1e-12) or desk.free_s + weight_s <= latest_s * (1 + 1e-12):
            return True
        return desk.idle_s + wait_s > self.most_s

    def __str__(self) -> str:
        return "a worker rests where a weight gradient would delay a task"


class Resting(Greedy):
    """Greedy, with the weight gradients where a worker may not rest."""

    def __init__(self, warmups: Sequence[int], rest: Rest) -> None:
        """Keep the options.

        Args:
            warmups: the warmups as `Greedy` takes them.
            rest: how long a worker may idle.
        """
        super().__init__(warmups, wait=NEVER, eager=False)
        self.rest = rest

    def choose(self, state: State, worker: int) -> Choice:
        start_s, kind, stage = super().choose(state, worker)
        desk = state.desks[worker]
        if self.rest.ends(state, worker, start_s, kind, stage):
            return desk.free_s, Kind.W, desk.owed[0][0]
        return start_s, kind, stage


class RestingRanked(TaskRule):
    """The lowest ranked of the forwards and gradients that can start soonest; weight gradients in between."""

    def __init__(self, rank: Mapping[tuple[Kind, int, int], float], rest: Rest, ahead_s: float = 0.0) -> None:
        """Keep the rule.

        Args:
            rank: the rank of every task by kind, virtual stage and micro-batch.
            rest: how long a worker may idle.
            ahead_s: a task of a lower rank is waited for that can start so much later than another.
        """
        self.rank = rank
        self.rest = rest
        self.ahead_s = ahead_s

    def choose(self, state: State, worker: int) -> Choice:
        desk = state.desks[worker]
        room = state.room_bytes[worker]
        found = []
        for stage in desk.stages:
            for kind in (Kind.I, Kind.F):
                arrival_s = state.arrival_s(kind, stage)
                if arrival_s == NEVER or (
                    kind is Kind.F and not state.fits(desk, stage, desk.live_bytes, state.bytes_of, room)
                ):
                    continue
                rank = self.rank[kind, stage, state.done[kind][stage]]
                found.append((rank, max(desk.free_s, arrival_s), kind, stage))
        if not found:
            return (desk.free_s, Kind.W, desk.owed[0][0]) if desk.owed else (NEVER, Kind.F, desk.stages[0])
        soon_s = min(start_s for _, start_s, _, _ in found) + self.ahead_s
        _, start_s, kind, stage = min(one for one in found if one[1] <= soon_s)
        if self.rest.ends(state, worker, start_s, kind, stage):
            return desk.free_s, Kind.W, desk.owed[0][0]
        return start_s, kind, stage


class InOrder(TaskRule):
    """Forwards and input gradients in an order that is given; weight gradients in between."""

    def __init__(self, lists: Sequence[Sequence[Task]], rest: Rest) -> None:
        """Keep the order.

        Args:
            lists: the tasks by worker; its weight gradients do not count, whole backwards stand for input gradients.
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
            room_bytes: the room bytes of each worker; None for any amount.
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
        if desk.owed and (start_s == NEVER or self.rest.ends(state, worker, start_s, kind, stage)):
            return desk.free_s, Kind.W, desk.owed[0][0]
        return start_s, kind, stage
