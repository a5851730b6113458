"""What lies in the memory of every worker while a timeline runs: the activations of its chunks, weights, messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from meshwright.errors import InputError
from meshwright.schedules.kinds import WEIGHTED, Kind
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Float, Int

Bytes = Float[np.ndarray, "*shape"] | float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Footprint:
    """Bytes that the tasks of a table keep and free, by worker and chunk; one number serves for all."""

    activation_bytes: Bytes
    """What F keeps of one micro-batch until its B, or its W, ends; with a third axis by micro-batch."""
    released_by_input: float = 0.0
    """Share of it that I frees already; W frees the rest."""
    recomputed_bytes: Bytes = 0.0
    """What R adds, freed with the rest."""
    gathered_bytes: Bytes = 0.0
    """Weights between UNSHARD and RESHARD."""
    paged_bytes: Bytes = 0.0
    """Weights (and what comes with them) between RELOAD_W and OFFLOAD_W."""
    version_bytes: Bytes = 0.0
    """Each version of the weights besides the one that lies there at the start, from its OPT to its last use."""
    receive_bytes: Bytes = 0.0
    """Buffer of a message, from when it begins to leave its sender to the end of the task that takes it."""
    static_bytes: Bytes = 0.0
    """All that stays for the whole step, by worker."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryUse:
    """Memory of every worker over time, change after change."""

    time_s: Float[np.ndarray, " changes"]
    live_bytes: Float[np.ndarray, " changes"]
    """Bytes alive from this change to the next one; static bytes included."""
    task: Int[np.ndarray, " changes"]
    """Task that begins or ends there."""
    first: Int[np.ndarray, " workers_plus_1"]
    """Index of each worker's first change; before it only static bytes lie there."""

    @cached_property
    def peak(self) -> Int[np.ndarray, " workers"]:
        """The first change after which most lies in each worker's memory."""
        most = np.maximum.reduceat(self.live_bytes, self.first[:-1])
        worker = np.repeat(np.arange(len(most)), np.diff(self.first))
        at = np.nonzero(self.live_bytes == most[worker])[0]
        return at[np.searchsorted(worker[at], np.arange(len(most)))]

    @property
    def peak_bytes(self) -> Float[np.ndarray, " workers"]:
        """Most that lies in each worker's memory."""
        return self.live_bytes[self.peak]

    @property
    def peak_s(self) -> Float[np.ndarray, " workers"]:
        """When it does first."""
        return self.time_s[self.peak]

    @property
    def peak_task(self) -> Int[np.ndarray, " workers"]:
        """The task that begins then."""
        return self.task[self.peak]


class Arrivals(Protocol):
    """The columns of transfers that receive buffers need."""

    @property
    def consumer(self) -> Int[np.ndarray, " transfers"]: ...
    @property
    def to_worker(self) -> Int[np.ndarray, " transfers"]: ...
    @property
    def start_s(self) -> Float[np.ndarray, " transfers"]: ...


def memory_use(
    table: ScheduleTable,
    start_s: Float[np.ndarray, " tasks"],
    end_s: Float[np.ndarray, " tasks"],
    footprint: Footprint,
    transfers: Callable[[], Arrivals],
) -> MemoryUse:
    """Allocations at the start of tasks and releases at their end, summed up in time.

    At the same moment what ends frees before what begins allocates, in the order of the worker's list.

    Args:
        table: the schedule.
        start_s: start of each task.
        end_s: end of each task.
        footprint: bytes that tasks keep and free.
        transfers: what goes between workers; asked for receive buffers only.
    """
    change = np.stack([_taken(table, footprint), -_freed(table, footprint)], axis=1)
    static = _by(footprint.static_bytes, (table.p,), "static_bytes")
    when = np.stack([start_s, end_s], axis=1)
    tasks = np.repeat(np.arange(table.tasks), 2)
    if table.computes_only and table.fused is None and not np.any(footprint.receive_bytes):
        # The list of a worker is in the order of time.
        return _summed(change.reshape(-1), when.reshape(-1), tasks, table.first * 2, static)
    worker, time_s, delta = table.worker[tasks], when.reshape(-1), change.reshape(-1)
    rank = np.arange(2 * table.tasks)
    if np.any(footprint.receive_bytes):
        moved = transfers()
        taking = moved.consumer
        size = _by(footprint.receive_bytes, (table.p, table.v), "receive_bytes")
        held = size[table.worker[taking], table.chunk[taking]]
        worker = np.concatenate([worker, moved.to_worker, moved.to_worker])
        time_s = np.concatenate([time_s, moved.start_s, end_s[taking]])
        delta = np.concatenate([delta, held, -held])
        tasks = np.concatenate([tasks, taking, taking])
        rank = np.concatenate([rank, 2 * taking, 2 * taking + 1])
    kept = np.nonzero(delta)[0]
    # A worker that keeps nothing still has a first change.
    kept = np.union1d(kept, 2 * table.first[:-1])
    order = kept[np.lexsort((rank[kept], time_s[kept], worker[kept]))]
    first = np.searchsorted(worker[order], np.arange(table.p + 1))
    return _summed(delta[order], time_s[order], tasks[order], first, static)


def _summed(
    delta: Float[np.ndarray, " changes"],
    time_s: Float[np.ndarray, " changes"],
    tasks: Int[np.ndarray, " changes"],
    first: Int[np.ndarray, " workers_plus_1"],
    static: Float[np.ndarray, " workers"],
) -> MemoryUse:
    total = np.cumsum(delta)
    base = static - (total[first[:-1]] - delta[first[:-1]])
    live = total + np.repeat(base, np.diff(first))
    return MemoryUse(time_s=time_s, live_bytes=live, task=tasks, first=first)


def _taken(table: ScheduleTable, footprint: Footprint) -> Float[np.ndarray, " tasks"]:
    """Bytes that each task allocates when it begins."""
    taken = np.zeros(table.tasks)
    sizes = {
        Kind.F: footprint.activation_bytes,
        Kind.R: footprint.recomputed_bytes,
        Kind.RELOAD_A: footprint.activation_bytes,
        Kind.UNSHARD: footprint.gathered_bytes,
        Kind.RELOAD_W: footprint.paged_bytes,
    }
    _add_sizes(taken, table, sizes)
    for made, _ in _versions(table):
        taken[made] += _each(table, np.array([made]), footprint.version_bytes)[0]
    return taken


def _freed(table: ScheduleTable, footprint: Footprint) -> Float[np.ndarray, " tasks"]:
    """Bytes that each task frees when it ends."""
    freed = np.zeros(table.tasks)
    share = footprint.released_by_input
    for kind, part in ((Kind.B, 1.0), (Kind.I, share), (Kind.W, 1.0 - share)):
        if kind in table.kinds and part:
            own = np.nonzero(table.kind == kind)[0]
            freed[own] = part * _each(table, own, footprint.activation_bytes)
            if Kind.R in table.kinds:
                again = table.at[Kind.R][table.stage[own], table.micro_batch[own]] >= 0
                freed[own] += part * again * _each(table, own, footprint.recomputed_bytes)
    sizes = {
        Kind.OFFLOAD_A: footprint.activation_bytes,
        Kind.RESHARD: footprint.gathered_bytes,
        Kind.OFFLOAD_W: footprint.paged_bytes,
    }
    _add_sizes(freed, table, sizes)
    for _, last in _versions(table):
        freed[last] += _each(table, np.array([last]), footprint.version_bytes)[0]
    return freed


def _add_sizes(bytes_of: Float[np.ndarray, " tasks"], table: ScheduleTable, sizes: Mapping[Kind, Bytes]) -> None:
    """Add to each task of these kinds what its chunk has."""
    for kind, size in sizes.items():
        if kind in table.kinds:
            own = np.nonzero(table.kind == kind)[0]
            bytes_of[own] += _each(table, own, size)


def _versions(table: ScheduleTable) -> list[tuple[int, int]]:
    """Optimizer steps that leave the version before in use, and the task that uses it last."""
    if table.version is None or Kind.OPT not in table.kinds:
        return []
    uses = np.nonzero(WEIGHTED[table.kind])[0]
    steps = np.nonzero(table.kind == Kind.OPT)[0]
    last: dict[tuple[int, int], int] = {}
    for task in uses.tolist():
        last[int(table.stage[task]), int(table.version[task])] = task
    found = []
    for step in steps.tolist():
        replaced = int(table.stage[step]), int(table.micro_batch[step])
        final = last.get(replaced, -1)
        # A version that nobody needs any more is updated in place.
        if final > step:
            found.append((step, final))
    return found


def _each(table: ScheduleTable, tasks: Int[np.ndarray, " chosen"], size: Bytes) -> Float[np.ndarray, " chosen"]:
    """Bytes of each of these tasks."""
    if np.ndim(size) == 3:
        full = _by(size, (table.p, table.v, max(table.micro_batches)), "activation_bytes")
        return full[table.worker[tasks], table.chunk[tasks], table.micro_batch[tasks]]
    return _by(size, (table.p, table.v), "bytes")[table.worker[tasks], table.chunk[tasks]]


def _by(size: Bytes, shape: tuple[int, ...], name: str) -> Float[np.ndarray, "*shape"]:
    given = np.asarray(size, float)
    try:
        return np.broadcast_to(given, shape)
    except ValueError:
        raise InputError(
            what=f"{name} has shape {given.shape}",
            why=f"it is one number or an array of shape {shape}",
            fix="one entry per worker and chunk",
            field=name,
        ) from None
