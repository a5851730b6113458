"""The columns of a schedule table and what follows from them: which task needs which, and in which order they can run.

Nothing is checked here: `checks` reads these columns to say what is wrong with them, `table` is what passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.schedules.kinds import LAST_BASIC, ROUNDS, WEIGHTED, Kind, Placement, frozen
from meshwright.shapes import Bool, Int

ALONG, OWN, GATHERED, PAGED, RELOADED = range(5)
"""Columns of `needs`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskColumns:
    """A struct of arrays, one entry per task, worker after worker in order."""

    placement: Placement
    micro_batches: tuple[int, ...]
    """Micro-batches (with `segments` > 1: segments of micro-batches) that enter each chain, numbered from 0 in each."""
    worker: Int[np.ndarray, " tasks"]
    kind: Int[np.ndarray, " tasks"]
    stage: Int[np.ndarray, " tasks"]
    """Virtual stage."""
    micro_batch: Int[np.ndarray, " tasks"]
    """Micro-batch; of tasks that concern a whole chunk (`ROUNDS`), how many of their kind the chunk had before."""
    fused: Bool[np.ndarray, " tasks"] | None = None
    """True where a task runs together with the one before it on its worker: both start when the inputs of both are
    there and end together after the sum of their times. None: no task is fused."""
    version: Int[np.ndarray, " tasks"] | None = None
    """Optimizer steps that the weights have seen which a task uses; None: all use the same."""
    segments: int = 1
    """Sequence segments per micro-batch; `micro_batch` then counts segments."""
    first: Int[np.ndarray, " workers_plus_1"] = field(init=False)
    """Index of each worker's first task; the last entry is the number of tasks."""

    def __post_init__(self) -> None:
        names = ["worker", "kind", "stage", "micro_batch"] + ["version"] * (self.version is not None)
        columns = {name: np.asarray(getattr(self, name)) for name in names}
        fused = None if self.fused is None or not np.any(self.fused) else np.asarray(self.fused, bool)
        if np.any(columns["worker"][1:] < columns["worker"][:-1]):
            by_worker = np.argsort(columns["worker"], kind="stable")
            columns = {name: column[by_worker] for name, column in columns.items()}
            fused = None if fused is None else fused[by_worker]
        for name, column in columns.items():
            object.__setattr__(self, name, frozen(column, np.int32))
        object.__setattr__(self, "fused", None if fused is None else frozen(fused, bool))
        first = np.searchsorted(self.worker, np.arange(self.placement.p + 1))
        object.__setattr__(self, "first", frozen(first, np.int64))

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
    def kinds(self) -> frozenset[Kind]:
        """Kinds of its tasks."""
        return frozenset(map(Kind, np.nonzero(np.bincount(self.kind, minlength=len(Kind)))[0].tolist()))

    @property
    def computes_only(self) -> bool:
        """Whether it leaves out communication, sharding, paging and the optimizer, as the named schedules do."""
        return max(self.kinds) <= LAST_BASIC

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
        """Index of the task of a kind, virtual stage and micro-batch (or round); -1 where there is none."""
        most = max(*self.micro_batches, 0 if self.computes_only else int(self.micro_batch.max()) + 1)
        kinds = LAST_BASIC + 1 if self.computes_only else len(Kind)
        at = np.full((kinds, self.placement.stages, most), -1, np.int32)
        at[self.kind, self.stage, self.micro_batch] = np.arange(self.tasks, dtype=np.int32)
        return at

    @cached_property
    def needs(self) -> Int[np.ndarray, "tasks columns"]:
        """Tasks whose results each task takes, -1 for none: from along the chain, and from its own virtual stage.

        F takes the forward of the stage before; B and I the gradient of the stage after and their own forward (or its
        recomputation); W its own input gradient; R and X their own forward. With communication F takes what RECV_F
        brought, RECV_F what SEND_F of the stage before sent, SEND_F its own forward; gradients likewise. Tables with
        more than computation have further columns: the UNSHARD that gathered the weights (for OPT the REDUCE that
        summed the gradients), the RELOAD_W that brought the weights, the RELOAD_A that brought the activations.
        """
        at, placement = self.at, self.placement
        forward, recompute = at[Kind.F], at[Kind.R]
        gradient = np.maximum(at[Kind.B], at[Kind.I])
        upstream = _shifted(forward, placement.preceding)
        downstream = _shifted(gradient, placement.following)
        saved = np.where(recompute >= 0, recompute, forward)
        absent = np.full_like(forward, -1)
        along = [upstream, downstream, downstream, absent, absent, absent]
        own = [absent, saved, saved, at[Kind.I], forward, forward]
        if not self.computes_only:
            received, returned = at[Kind.RECV_F], at[Kind.RECV_B]
            along[Kind.F] = np.where(received >= 0, received, upstream)
            along[Kind.B] = along[Kind.I] = np.where(returned >= 0, returned, downstream)
            sent, sent_back = at[Kind.SEND_F], at[Kind.SEND_B]
            along += [absent, absent, _shifted(sent, placement.preceding), absent]
            along += [_shifted(sent_back, placement.following), *[absent] * 7]
            own += [absent, forward, absent, gradient, absent, absent, at[Kind.UNSHARD], absent]
            own += [forward, at[Kind.OFFLOAD_A], absent, absent]
        # One look-up by a flat place is cheaper than two by three indices.
        place = (self.kind.astype(np.int64) * at.shape[1] + self.stage) * at.shape[2] + self.micro_batch
        columns = [np.concatenate(column, axis=None)[place] for column in (along, own)]
        if not self.computes_only:
            columns += self._weights_and_activations()
        return np.stack(columns, axis=1)

    @cached_property
    def node(self) -> Int[np.ndarray, " tasks"]:
        """The event each task belongs to: fused tasks share one, every other task has its own."""
        if self.fused is None:
            return np.arange(self.tasks)
        return np.cumsum(~self.fused) - 1

    @cached_property
    def level(self) -> Int[np.ndarray, " tasks"]:
        """Topological level of each task: 1 + the largest level of its inputs and the task before it on its worker."""
        level = self.node_level
        return level if self.fused is None else level[self.node]

    @cached_property
    def node_level(self) -> Int[np.ndarray, " nodes"]:
        """Levels of the nodes; 0 for nodes that can never start."""
        node = self.node
        crosses = np.nonzero(self.crosses)[0]
        consumer, producer = node[crosses], node[self.needs[crosses, ALONG]]
        # A fused node may wait for two other workers: its second edge goes to a second column.
        second = np.append(False, consumer[1:] == consumer[:-1]) if len(consumer) else np.zeros(0, bool)
        columns = []
        for chosen in (~second, second):
            if chosen.any():
                column = np.full(int(node[-1]) + 1, -1)
                column[consumer[chosen]] = producer[chosen]
                columns.append(column.tolist())
        bounds = np.append(node, node[-1] + 1)[self.first].tolist()
        return longest_paths(bounds, columns)

    @cached_property
    def crosses(self) -> Bool[np.ndarray, " tasks"]:
        """Where a task takes a result from another worker."""
        along = self.needs[:, ALONG]
        return (along >= 0) & (self.worker[along] != self.worker)

    def latest(self, kind: Kind) -> Int[np.ndarray, " tasks"]:
        """The last task of a kind that is listed before each task and concerns the same virtual stage; -1 for none.

        Args:
            kind: one that concerns whole chunks.
        """
        by_stage = np.argsort(self.stage, kind="stable")
        stage = self.stage[by_stage]
        found = np.maximum.accumulate(np.where(self.kind[by_stage] == kind, np.arange(self.tasks), -1))
        found[found < np.searchsorted(stage, stage)] = -1
        latest = np.empty(self.tasks, np.int64)
        latest[by_stage] = np.where(found >= 0, by_stage[found], -1)
        return latest

    def name(self, task: int) -> str:
        """The task as users read it: `F0.3s1@2` is kind, chunk of the worker, micro-batch, segment and version.

        Args:
            task: index.
        """
        kind, unit = Kind(self.kind[task]), int(self.micro_batch[task])
        number = f"{unit}"
        if self.segments > 1 and not ROUNDS[kind]:
            number = f"{unit // self.segments}s{unit % self.segments}"
        version = "" if self.version is None or not WEIGHTED[kind] else f"@{self.version[task]}"
        return f"{kind.name}{self.chunk[task]}.{number}{version}"

    def _weights_and_activations(self) -> list[np.ndarray]:
        uses = WEIGHTED[self.kind]
        gathered = np.where(uses, self.latest(Kind.UNSHARD), -1)
        gathered = np.where(self.kind == Kind.OPT, self.latest(Kind.REDUCE), gathered)
        paged = np.where(uses | (self.kind == Kind.UNSHARD), self.latest(Kind.RELOAD_W), -1)
        backward = np.isin(self.kind, (Kind.B, Kind.I, Kind.R))
        back = np.where(backward, self.at[Kind.RELOAD_A][self.stage, self.micro_batch], -1)
        return [gathered, paged, back]


def _shifted(
    index: Int[np.ndarray, "stages micro_batches"], neighbour: Int[np.ndarray, " stages"]
) -> Int[np.ndarray, "stages micro_batches"]:
    """The entries of each stage's neighbour, -1 where it has none."""
    found = index[neighbour]
    found[neighbour < 0] = -1
    return found


def longest_paths(bounds: list[int], columns: list[list[int]]) -> Int[np.ndarray, " nodes"]:
    """Level of every node, 0 for nodes in or behind a cycle.

    Every worker runs on until it waits for another one, which wakes it: each node is looked at about twice, so that
    plain integers are faster here than an array operation per level.

    Args:
        bounds: first node of every worker, and the number of nodes.
        columns: the columns per node one other worker's node that it waits for, -1 for none; as many columns as a node
            may have.
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
