"""The one schedule language: a table of tasks per worker, checked when it is built.

A schedule sends micro-batches down one or more *chains* of virtual stages. A `Placement` says which worker holds which
virtual stage; a `ScheduleTable` says in which order every worker runs its tasks. Nothing here knows seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.shapes import Bool, Int


class Kind(IntEnum):
    """What a task computes for one micro-batch on one virtual stage; the name is the letter users see."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: input and weight gradient."""
    I = 2  # noqa: E741 - the field's own letter
    """Input gradient only; its `W` follows some time later."""
    W = 3
    """Weight gradient only."""
    R = 4
    """Forward again, to recompute what the backward needs."""


def _frozen(values: object, dtype: type) -> np.ndarray:
    array: np.ndarray = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """Which worker holds which virtual stage: linear, loop, V, wave or several chains at once."""

    worker: Int[np.ndarray, " stages"]
    """Worker of each virtual stage; the stages of one chain follow each other, chain after chain."""
    chain: Int[np.ndarray, " stages"]
    """Chain of each virtual stage, counting from 0; a bidirectional schedule has two."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker", _frozen(self.worker, np.int32))
        object.__setattr__(self, "chain", _frozen(self.chain, np.int32))

    @classmethod
    def of_chains(cls, chains: Sequence[Sequence[int]]) -> Placement:
        """Each chain written as the workers its micro-batches visit, in forward order."""
        return cls(
            worker=np.concatenate([np.asarray(chain, np.int32) for chain in chains]),
            chain=np.repeat(np.arange(len(chains)), [len(chain) for chain in chains]),
        )

    @classmethod
    def loop(cls, p: int, v: int) -> Placement:
        """Virtual stage k*p + r is chunk k of worker r; with v = 1 the linear placement."""
        return _loop(p, v)

    @property
    def stages(self) -> int:
        """Virtual stages of all chains together."""
        return len(self.worker)

    @property
    def chains(self) -> int:
        """Chains of virtual stages."""
        return int(self.chain[-1]) + 1

    @cached_property
    def p(self) -> int:
        """Workers."""
        return int(self.worker.max()) + 1

    @cached_property
    def chunk(self) -> Int[np.ndarray, " stages"]:
        """Chunk of its worker that each virtual stage is: the worker's stages counted in order, all chains through."""
        by_worker = np.argsort(self.worker, kind="stable")
        first = np.searchsorted(self.worker[by_worker], np.arange(self.p))
        chunk = np.empty(self.stages, np.int32)
        chunk[by_worker] = np.arange(self.stages) - first[self.worker[by_worker]]
        return _frozen(chunk, np.int32)

    @cached_property
    def v(self) -> int:
        """Chunks of the worker that has most."""
        return int(self.chunk.max()) + 1

    @cached_property
    def following(self) -> Int[np.ndarray, " stages"]:
        """The virtual stage after each one in its chain, -1 after the last."""
        following = np.arange(1, self.stages + 1)
        following[np.append(self.chain[1:] != self.chain[:-1], True)] = -1
        return _frozen(following, np.int32)

    @cached_property
    def preceding(self) -> Int[np.ndarray, " stages"]:
        """The virtual stage before each one in its chain, -1 before the first."""
        preceding = np.arange(-1, self.stages - 1)
        preceding[np.append(True, self.chain[1:] != self.chain[:-1])] = -1
        return _frozen(preceding, np.int32)


@lru_cache(maxsize=512)
def _loop(p: int, v: int) -> Placement:
    return Placement.of_chains([np.tile(np.arange(p), v).tolist()])


@dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleTable:
    """Who runs which task in which order: a struct of arrays, one entry per task, worker after worker in order.

    Built from any complete order; raises `InputError` with every problem when a worker is unknown, a micro-batch misses
    or repeats a task, a task runs before its input on the same worker, or workers wait for each other in a circle.
    """

    placement: Placement
    micro_batches: tuple[int, ...]
    """Micro-batches (with `segments` > 1: segments of micro-batches) that enter each chain, numbered from 0 in each."""
    worker: Int[np.ndarray, " tasks"]
    kind: Int[np.ndarray, " tasks"]
    stage: Int[np.ndarray, " tasks"]
    """Virtual stage."""
    micro_batch: Int[np.ndarray, " tasks"]
    fused: Bool[np.ndarray, " tasks"] | None = None
    """True where a task runs together with the one before it on its worker: both start when the inputs of both are
    there and end together after the sum of their times. None: no task is fused."""
    segments: int = 1
    """Sequence segments per micro-batch; `micro_batch` then counts segments."""
    first: Int[np.ndarray, " workers_plus_1"] = field(init=False)
    """Index of each worker's first task; the last entry is the number of tasks."""

    def __post_init__(self) -> None:
        p = self.placement.p
        columns = {name: np.asarray(getattr(self, name)) for name in ("worker", "kind", "stage", "micro_batch")}
        problems = _column_problems(columns, self.placement, self.micro_batches)
        if problems:
            raise InputError(problems)
        fused = None if self.fused is None or not np.any(self.fused) else np.asarray(self.fused, bool)
        if np.any(columns["worker"][1:] < columns["worker"][:-1]):
            by_worker = np.argsort(columns["worker"], kind="stable")
            columns = {name: column[by_worker] for name, column in columns.items()}
            fused = None if fused is None else fused[by_worker]
        for name, column in columns.items():
            object.__setattr__(self, name, _frozen(column, np.int32))
        object.__setattr__(self, "fused", None if fused is None else _frozen(fused, bool))
        object.__setattr__(self, "first", _frozen(np.searchsorted(self.worker, np.arange(p + 1)), np.int64))
        problems = self._task_problems() or self._order_problems()
        if problems:
            raise InputError(problems)

    @property
    def p(self) -> int:
        """Workers."""
        return self.placement.p

    @property
    def v(self) -> int:
        """Chunks of the worker that has most."""
        return self.placement.v

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.worker)

    @cached_property
    def chunk(self) -> Int[np.ndarray, " tasks"]:
        """Chunk of its worker that each task computes."""
        return self.placement.chunk[self.stage]

    @cached_property
    def order(self) -> Int[np.ndarray, " tasks"]:
        """Position of each task in its worker's list."""
        return np.arange(self.tasks) - self.first[self.worker]

    @cached_property
    def at(self) -> Int[np.ndarray, "kinds stages micro_batches"]:
        """Index of the task of a kind, virtual stage and micro-batch; -1 where there is none."""
        at = np.full((len(Kind), self.placement.stages, max(self.micro_batches)), -1, np.int32)
        at[self.kind, self.stage, self.micro_batch] = np.arange(self.tasks, dtype=np.int32)
        return at

    @cached_property
    def needs(self) -> Int[np.ndarray, "tasks 2"]:
        """Tasks whose results each task takes, -1 for none: from along the chain, and from its own virtual stage.

        F takes the forward of the stage before; B and I the gradient of the stage after and their own forward (or its
        recomputation); W its own input gradient; R its own forward.
        """
        at, placement = self.at, self.placement
        forward, recompute = at[Kind.F], at[Kind.R]
        gradient = np.maximum(at[Kind.B], at[Kind.I])
        nothing = np.full((1, at.shape[2]), -1, np.int32)
        upstream = np.vstack([forward, nothing])[placement.preceding]
        downstream = np.vstack([gradient, nothing])[placement.following]
        saved = np.where(recompute >= 0, recompute, forward)
        absent = np.full_like(forward, -1)
        along = np.stack([upstream, downstream, downstream, absent, absent])
        own = np.stack([absent, saved, saved, at[Kind.I], forward])
        where = self.kind, self.stage, self.micro_batch
        return np.stack([along[where], own[where]], axis=1)

    @cached_property
    def node(self) -> Int[np.ndarray, " tasks"]:
        """The event each task belongs to: fused tasks share one, every other task has its own."""
        if self.fused is None:
            return np.arange(self.tasks)
        return np.cumsum(~self.fused) - 1

    @cached_property
    def level(self) -> Int[np.ndarray, " tasks"]:
        """Topological level of each task: 1 + the largest level of its inputs and the task before it on its worker."""
        return self._node_level[self.node]

    @cached_property
    def _node_level(self) -> Int[np.ndarray, " nodes"]:
        """Levels of the nodes; 0 for nodes that can never start."""
        node = self.node
        crosses = (self.needs[:, 0] >= 0) & (self.worker[self.needs[:, 0]] != self.worker)
        consumer, producer = node[crosses], node[self.needs[crosses, 0]]
        # A fused node may wait for two other workers: its second edge goes to a second column.
        second = np.append(False, consumer[1:] == consumer[:-1]) if len(consumer) else np.zeros(0, bool)
        columns = []
        for chosen in (~second, second):
            if chosen.any():
                column = np.full(int(node[-1]) + 1, -1)
                column[consumer[chosen]] = producer[chosen]
                columns.append(column.tolist())
        bounds = np.append(node, node[-1] + 1)[self.first].tolist()
        return _longest_paths(bounds, columns)

    def entries(self) -> list[list[str]]:
        """Every worker's list as users read it: `F0.3` is kind, chunk of the worker, micro-batch; `+` fuses."""
        lists: list[list[str]] = [[] for _ in range(self.p)]
        letters = [kind.name for kind in Kind]
        fused = np.zeros(self.tasks, bool) if self.fused is None else self.fused
        columns = (self.worker, self.kind, self.chunk, self.micro_batch, fused)
        for worker, kind, chunk, unit, joined in zip(*(column.tolist() for column in columns), strict=True):
            name = f"{letters[kind]}{chunk}.{unit}"
            if self.segments > 1:
                name = f"{letters[kind]}{chunk}.{unit // self.segments}s{unit % self.segments}"
            if joined:
                lists[worker][-1] += f"+{name}"
            else:
                lists[worker].append(name)
        return lists

    def _task_problems(self) -> list[Problem]:
        """Tasks that are missing, repeated or contradict each other."""
        at = self.at
        problems = []
        exists = np.arange(at.shape[2])[None, :] < np.asarray(self.micro_batches)[self.placement.chain][:, None]
        has = at >= 0
        split = has[Kind.I] & has[Kind.W]
        unsplit = has[Kind.B] & ~has[Kind.I] & ~has[Kind.W]
        for what, wrong, rule in (
            ("no forward", exists & ~has[Kind.F], "every micro-batch runs F once on every virtual stage of its chain"),
            ("no backward", exists & ~(has[Kind.B] | has[Kind.I]), "every F has exactly one B, or one I and one W"),
            (
                "a contradictory backward",
                exists & (has[Kind.B] | has[Kind.I]) & ~(split & ~has[Kind.B]) & ~unsplit,
                "every F has exactly one B, or one I and one W",
            ),
        ):
            if wrong.any():
                stage, unit = (int(index[0]) for index in np.nonzero(wrong))
                problems.append(
                    Problem(
                        what=f"schedule table: stage {stage}, micro-batch {unit} has {what} ({wrong.sum()} such)",
                        why=rule,
                        fix="list the task once",
                        field="schedule",
                    )
                )
        repeated = self.tasks - int(has.sum())
        if repeated:
            problems.append(
                Problem(
                    what=f"schedule table: {repeated} tasks are listed twice",
                    why="a task runs once",
                    fix="remove the repeated tasks",
                    field="schedule",
                )
            )
        return problems

    def _order_problems(self) -> list[Problem]:
        """Tasks that run before their input on the same worker, and workers that wait for each other in a circle."""
        for column in self.needs.T:
            local = (column >= 0) & (self.worker[column] == self.worker)
            early = np.nonzero(local & (self.node[column] >= self.node))[0]
            if len(early):
                task, needed = int(early[0]), int(column[early[0]])
                return [
                    Problem(
                        what=f"schedule table: worker {self.worker[task]} runs {self._name(task)} before its input"
                        f" {self._name(needed)} ({len(early)} such)",
                        why="a task takes the results of its inputs",
                        fix="move the task behind its input",
                        field="schedule",
                    )
                ]
        stuck = np.nonzero(self.level == 0)[0]
        if not len(stuck):
            return []
        heads = [int(task) for task in stuck if task == self.first[self.worker[task]] or self.level[task - 1] > 0]
        waits = ", ".join(f"worker {self.worker[t]} at {self._name(t)}" for t in heads[:4])
        return [
            Problem(
                what=f"schedule table: the workers wait for each other in a circle: {waits}",
                why="the order of the workers and the dependencies of their tasks form a cycle (deadlock)",
                fix="move the tasks they wait for forward",
                field="schedule",
            )
        ]

    def _name(self, task: int) -> str:
        return f"{Kind(self.kind[task]).name}{self.chunk[task]}.{self.micro_batch[task]}"


def _column_problems(
    columns: dict[str, np.ndarray], placement: Placement, micro_batches: tuple[int, ...]
) -> list[Problem]:
    """Columns of unequal length and entries outside their range."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or not lengths["worker"]:
        return [
            Problem(
                what=f"schedule table: columns of lengths {lengths}", why="one entry per task and at least one task",
                field="schedule",
            )
        ]  # fmt: skip
    if len(micro_batches) != placement.chains or min(micro_batches) < 1:
        return [
            Problem(
                what=f"schedule table: micro_batches {micro_batches} for {placement.chains} chains",
                why="every chain takes at least one micro-batch",
                field="micro_batches",
            )
        ]
    problems = []
    limits = {"worker": placement.p, "kind": len(Kind), "stage": placement.stages, "micro_batch": max(micro_batches)}
    for name, limit in limits.items():
        column = columns[name]
        outside = (column < 0) | (column >= limit)
        if outside.any():
            problems.append(
                Problem(
                    what=f"schedule table: {name} {column[outside][0]} in task {int(np.nonzero(outside)[0][0])}",
                    why=f"{name} counts from 0 to {limit - 1}",
                    fix=f"use a number from 0 to {limit - 1}",
                    field=name,
                )
            )
    if problems:
        return problems
    misplaced = columns["worker"] != placement.worker[columns["stage"]]
    if misplaced.any():
        task = int(np.nonzero(misplaced)[0][0])
        stage = columns["stage"][task]
        problems.append(
            Problem(
                what=f"schedule table: stage {stage} on worker {columns['worker'][task]} ({misplaced.sum()} such)",
                why=f"the placement puts it on worker {placement.worker[stage]}",
                fix="run the task where its stage is placed",
                field="worker",
            )
        )
    beyond = columns["micro_batch"] >= np.asarray(micro_batches)[placement.chain[columns["stage"]]]
    if beyond.any():
        problems.append(
            Problem(
                what=f"schedule table: {beyond.sum()} tasks of micro-batches their chain does not take",
                why=f"the chains take {micro_batches} micro-batches",
                fix="number the micro-batches of each chain from 0",
                field="micro_batch",
            )
        )
    return problems


def _longest_paths(bounds: list[int], columns: list[list[int]]) -> Int[np.ndarray, " nodes"]:
    """Level of every node, 0 for nodes in or behind a cycle.

    Every worker runs on until it waits for another one, which wakes it: each node is looked at about twice, so that
    plain integers are faster here than an array operation per level.

    Args:
        bounds: first node of every worker, and the number of nodes.
        columns: per node one other worker's node that it waits for, -1 for none; as many columns as a node may have.
    """
    level = [0] * bounds[-1]
    position = bounds[:-1]
    waiting: dict[int, list[int]] = {}
    ready = [worker for worker, (low, high) in enumerate(pairwise(bounds)) if low < high]
    while ready:
        worker = ready.pop()
        node, end = position[worker], bounds[worker + 1]
        now = level[node - 1] if node > bounds[worker] else 0
        while node < end:
            for column in columns:
                needed = column[node]
                if needed >= 0:
                    reached = level[needed]
                    if not reached:
                        waiting.setdefault(needed, []).append(worker)
                        break
                    if reached > now:
                        now = reached
            else:
                now += 1
                level[node] = now
                if node in waiting:
                    ready.extend(waiting.pop(node))
                node += 1
                continue
            break
        position[worker] = node
    return np.asarray(level)
