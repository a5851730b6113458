"""List scheduling over the task language: a worker that is free takes the task that a rule ranks first.

One engine serves every order that is found rather than written down: the fixed rules of Hanayo, MixPipe, FTPipe and
Bamboo (`list_order`), and the searches for given stage times and memory (`zb_auto`, `scheduler`).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.schedules.lists import Task
from meshwright.schedules.table import Kind, Placement

NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be scheduled: virtual stages with their times, and what may live on each worker."""

    placement: Placement
    micro_batches: tuple[int, ...]
    """Micro-batches that enter each chain."""
    forward_s: Sequence[float]
    """Seconds of forward by virtual stage, as all times here."""
    gradient_s: Sequence[float]
    """Input gradient, or the whole backward where it is not split."""
    weight_s: Sequence[float] | None = None
    """Weight gradient; None: the backward is not split."""
    latency_s: Sequence[float] | None = None
    """Latency behind each virtual stage; None: transfers are free."""
    stage_bytes: Sequence[float] | None = None
    """Activation of one micro-batch, from F to B or W; None: not counted. For one chain only."""
    room_bytes: Sequence[float] | None = None
    """Activations that fit each worker; at least those of one micro-batch on all its stages."""
    released_by_input: Sequence[float] | None = None
    """Share of `stage_bytes` that an input gradient frees already, by virtual stage; None: the weight gradient all."""

    def __post_init__(self) -> None:
        assert self.room_bytes is None or self.placement.chains == 1

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        units = sum(self.micro_batches[chain] for chain in self.placement.chain.tolist())
        return units * (2 if self.weight_s is None else 3)


@dataclass(slots=True)
class WorkerQueue:
    """One worker while its order is made: what it may run next."""

    stages: list[int]
    """Virtual stages of the worker."""
    all_forwards: int = 0
    """Forwards of the step, on all its stages."""
    free_s: float = 0.0
    start_s: float = NEVER
    """Start of its first task."""
    idle_s: float = 0.0
    """Idle seconds between its tasks so far."""
    live_bytes: float = 0.0
    forwards: int = 0
    """Forwards run so far, on all its stages."""
    gradients: int = 0
    owed: deque[tuple[int, int]] = field(default_factory=deque)
    """Stage and micro-batch of the weight gradients that may run, in the order of their input gradients."""


class State:
    """All workers while their orders are made; every stage runs its micro-batches in order, each kind for itself."""

    def __init__(self, work: Work) -> None:
        placement = work.placement
        self.work = work
        self.worker_of: list[int] = placement.worker.tolist()
        self.following: list[int] = placement.following.tolist()
        self.preceding: list[int] = placement.preceding.tolist()
        self.desks = [WorkerQueue([]) for _ in range(placement.p)]
        for stage, worker in enumerate(self.worker_of):
            self.desks[worker].stages.append(stage)
        count = placement.stages
        units = [work.micro_batches[chain] for chain in placement.chain.tolist()]
        for desk in self.desks:
            desk.all_forwards = sum(units[stage] for stage in desk.stages)
        self.ones = [1.0] * count
        self.latency_s = [0.0] * count if work.latency_s is None else list(work.latency_s)
        self.bytes_of = [0.0] * count if work.stage_bytes is None else list(work.stage_bytes)
        early = [0.0] * count if work.released_by_input is None else work.released_by_input
        # Of `bytes_of`, what an input gradient frees and what waits for its weight gradient.
        self.freed_early = [size * share for size, share in zip(self.bytes_of, early, strict=True)]
        self.freed_late = [size - freed for size, freed in zip(self.bytes_of, self.freed_early, strict=True)]
        self.room_bytes = [NEVER] * placement.p if work.room_bytes is None else list(work.room_bytes)
        self.seconds = {Kind.F: list(work.forward_s), Kind.I: list(work.gradient_s), Kind.W: list(work.weight_s or ())}
        self.split = work.weight_s is not None
        # Per stage: tasks run, and when the inputs of all that can run arrived, in the order of the micro-batches.
        self.done = {Kind.F: [0] * count, Kind.I: [0] * count}
        self.arrived_s: dict[Kind, list[list[float]]] = {
            Kind.F: [[0.0] * units[s] if self.preceding[s] < 0 else [] for s in range(count)],
            Kind.I: [[] for _ in range(count)],
        }

    def arrival_s(self, kind: Kind, stage: int) -> float:
        """When the input of the next task of a stage is there; infinite if nobody has decided to make it yet."""
        unit, arrived = self.done[kind][stage], self.arrived_s[kind][stage]
        return arrived[unit] if unit < len(arrived) else NEVER

    def fits(self, desk: WorkerQueue, stage: int, live: float, size: Sequence[float], most: float) -> bool:
        """Whether the next forward of a stage leaves room for its worker's oldest micro-batch to get through.

        The oldest micro-batch that lacks a forward on the worker may use all the room; younger ones leave it what its
        other stages need. So the oldest micro-batch of the whole step always fits behind those that have ended, and
        workers never wait for each other's memory.

        Args:
            desk: the desk of the worker.
            stage: the stage of the forward.
            live: what lives on the worker, in the unit of `size`.
            size: the size of one micro-batch, by stage.
            most: room of the worker.
        """
        if most == NEVER:
            return True
        forwards = self.done[Kind.F]
        oldest = forwards[desk.stages[-1]]
        after = live + size[stage]
        if forwards[stage] > oldest:
            after += sum(size[own] for own in desk.stages if forwards[own] <= oldest)
        return after <= most

    def run(self, worker: int, start_s: float, kind: Kind, stage: int) -> tuple[Task, int]:
        """Run the next task of a stage; which worker (maybe the same) may have got new work by that."""
        desk = self.desks[worker]
        if desk.start_s == NEVER:
            desk.start_s = start_s
        else:
            desk.idle_s += start_s - desk.free_s
        if kind is Kind.W:
            stage, unit = desk.owed.popleft()
            desk.free_s = start_s + self.seconds[Kind.W][stage]
            desk.live_bytes -= self.freed_late[stage]
            return Task(Kind.W, stage, unit), worker
        unit = self.done[kind][stage]
        self.done[kind][stage] = unit + 1
        desk.free_s = end_s = start_s + self.seconds[kind][stage]
        if kind is Kind.F:
            desk.forwards += 1
            desk.live_bytes += self.bytes_of[stage]
            after = self.following[stage]
            if after < 0:
                self.arrived_s[Kind.I][stage].append(end_s)
                return Task(Kind.F, stage, unit), worker
            self.arrived_s[Kind.F][after].append(end_s + self.latency_s[stage])
            return Task(Kind.F, stage, unit), self.worker_of[after]
        desk.gradients += 1
        if self.split:
            desk.owed.append((stage, unit))
            desk.live_bytes -= self.freed_early[stage]
        else:
            desk.live_bytes -= self.bytes_of[stage]
        before = self.preceding[stage]
        task = Task(Kind.I if self.split else Kind.B, stage, unit)
        if before < 0:
            return task, worker
        self.arrived_s[Kind.I][before].append(end_s + self.latency_s[before])
        return task, self.worker_of[before]


Choice = tuple[float, Kind, int]
"""When a task starts, its kind and its stage; the start is infinite while the worker waits for others."""


class TaskRule(ABC):
    """Which task a worker takes."""

    @abstractmethod
    def choose(self, state: State, worker: int) -> Choice:
        """The next task of a worker, as far as is decided what reaches it when."""

    def relax(self) -> bool:
        """Ask less when nobody can go on by the rule; whether that may help."""
        return False


class Listed(NamedTuple):
    """An order that was made."""

    lists: list[list[Task]]
    """Tasks by worker."""
    makespan_s: float
    span_s: float
    """Largest time from first start to last end of one worker."""
    starts_s: list[float]
    """Start of each worker's first task."""


def list_schedule(work: Work, rule: TaskRule) -> Listed:
    """Orders of all workers: whoever can start first takes the task its rule ranks first.

    Args:
        work: what is to be scheduled.
        rule: the rule by which a worker takes its next task.
    """
    state = State(work)
    workers = range(work.placement.p)
    lists: list[list[Task]] = [[] for _ in workers]
    choices = [rule.choose(state, worker) for worker in workers]
    queue = [(choice[0], worker) for worker, choice in enumerate(choices) if choice[0] < NEVER]
    heapq.heapify(queue)
    left = work.tasks
    while left:
        if not queue:
            relaxed = rule.relax()
            assert relaxed, "a worker waits for memory that no task frees"
            choices = [rule.choose(state, worker) for worker in workers]
            queue = [(choice[0], worker) for worker, choice in enumerate(choices) if choice[0] < NEVER]
            heapq.heapify(queue)
            continue
        start_s, worker = heapq.heappop(queue)
        chosen = choices[worker]
        if chosen[0] != start_s:
            continue
        # An entry that stands twice in the queue is taken once: the worker's choice changes as soon as it is run.
        task, reached = state.run(worker, *chosen)
        lists[worker].append(task)
        left -= 1
        for changed in (worker,) if reached == worker else (worker, reached):
            choices[changed] = choice = rule.choose(state, changed)
            if choice[0] < NEVER:
                heapq.heappush(queue, (choice[0], changed))
    ends = [desk for desk in state.desks if desk.start_s < NEVER]
    return Listed(
        lists,
        max(desk.free_s for desk in ends),
        max(desk.free_s - desk.start_s for desk in ends),
        [desk.start_s for desk in state.desks],
    )


class GreedyByRank(TaskRule):
    """A worker never idles on purpose; of what it can run next it takes the task with the lowest rank."""

    def __init__(self, rank: Callable[[Kind, int, int], object], caps: Sequence[int | None] | None = None) -> None:
        """Keep the rule.

        Args:
            rank: the rank of a task by kind, virtual stage and micro-batch; anything that compares.
            caps: the caps by virtual stage, most micro-batches between the start of F and the end of B; None for any
                number.
        """
        self.rank = rank
        self.caps = caps

    def choose(self, state: State, worker: int) -> Choice:
        desk = state.desks[worker]
        done, free_s = state.done, desk.free_s
        gradient = Kind.I if state.split else Kind.B
        found: list[tuple[float, object, Kind, int]] = []
        for stage in desk.stages:
            arrival_s = state.arrival_s(Kind.I, stage)
            if arrival_s < NEVER:
                rank = self.rank(gradient, stage, done[Kind.I][stage])
                found.append((max(free_s, arrival_s), rank, Kind.I, stage))
            arrival_s = state.arrival_s(Kind.F, stage)
            most = None if self.caps is None else self.caps[stage]
            held = most is not None and done[Kind.F][stage] - done[Kind.I][stage] >= most
            if (
                arrival_s < NEVER
                and not held
                and state.fits(desk, stage, desk.live_bytes, state.bytes_of, state.room_bytes[worker])
            ):
                rank = self.rank(Kind.F, stage, done[Kind.F][stage])
                found.append((max(free_s, arrival_s), rank, Kind.F, stage))
        if desk.owed:
            stage, unit = desk.owed[0]
            found.append((free_s, self.rank(Kind.W, stage, unit), Kind.W, stage))
        if not found:
            return NEVER, Kind.F, desk.stages[0]
        start_s, _, kind, stage = min(found)
        return start_s, kind, stage


class Greedy(TaskRule):
    """Warm-up forwards, then gradients as they come, forwards in between, weight gradients where a worker would idle.

    Source: the heuristic of Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024, section 3.1, for any
    placement and unsplit backwards too; options and tie rules are this reconstruction's own.
    """

    def __init__(self, warmups: Sequence[int], wait: float = 0.0, *, eager: bool, group: int | None = None):
        """Keep the options.

        Args:
            warmups: forwards of each worker before its first gradient, and the most without a gradient behind them.
            wait: share of a weight gradient that a worker rather idles for a forward or an input gradient.
            eager: whether a forward goes before a gradient that is ready too, as many as fit the room.
            group: micro-batches that pass a worker's stages together; None: a later stage goes first.
        """
        self.warmups = warmups
        self.wait = wait
        self.eager = eager
        self.group = group
        self.warming = True

    def relax(self) -> bool:
        """Gradients no longer wait for the end of the warm-up."""
        relaxed, self.warming = self.warming, False
        return relaxed

    def choose(self, state: State, worker: int) -> Choice:
        desk = state.desks[worker]
        free_s, last = desk.free_s, len(desk.stages) - 1
        forward, forward_at, gradient, gradient_at = NEVER, -1, NEVER, -1
        forward_turn = gradient_turn = NEVER
        warm = self.warming and desk.gradients == 0 and desk.forwards < min(self.warmups[worker], desk.all_forwards)
        forwards, gradients = state.done[Kind.F], state.done[Kind.I]
        forward_arrived, gradient_arrived = state.arrived_s[Kind.F], state.arrived_s[Kind.I]
        for place, stage in enumerate(desk.stages):
            unit, arrived = gradients[stage], gradient_arrived[stage]
            if not warm and unit < len(arrived):
                start_s = arrived[unit]
                if start_s < free_s:
                    start_s = free_s
                if start_s <= gradient:
                    turn = unit if self.group is None else unit // self.group * (last + 1) + last - place
                    if start_s < gradient or turn < gradient_turn:
                        gradient, gradient_at, gradient_turn = start_s, stage, turn
            unit, arrived = forwards[stage], forward_arrived[stage]
            if unit < len(arrived):
                start_s = arrived[unit]
                if start_s < free_s:
                    start_s = free_s
                if start_s <= forward:
                    turn = -place if self.group is None else unit // self.group * (last + 1) + place
                    if (start_s < forward or turn < forward_turn) and self._fits(state, worker, desk, stage):
                        forward, forward_at, forward_turn = start_s, stage, turn
        if forward < gradient or (self.eager and forward == gradient < NEVER):
            start_s, kind, at = forward, Kind.F, forward_at
        else:
            start_s, kind, at = gradient, Kind.I, gradient_at
        if desk.owed and start_s > free_s + self.wait * state.seconds[Kind.W][desk.owed[0][0]]:
            return free_s, Kind.W, desk.owed[0][0]
        return start_s, kind, at

    def _fits(self, state: State, worker: int, desk: WorkerQueue, stage: int) -> bool:
        """Whether memory and the depth of the warm-up allow the next forward of a stage."""
        if not state.fits(desk, stage, desk.live_bytes, state.bytes_of, state.room_bytes[worker]):
            return False
        in_flight = desk.forwards - desk.gradients
        return self.eager or state.fits(desk, stage, in_flight, state.ones, self.warmups[worker])
