"""A schedule table as events that wait for each other, and when they end with one set of times.

    end = max over gates (end of what the gate waits for + its way) + duration

An event waits for the task listed before it in the compute lane of its worker, for the one before it in its own lane
(send: on its own channel), and for what its tasks need. A RECV waits for its message only.

Most of a long schedule repeats itself: a *phase* is a stretch of levels whose events read, at the same distances, what
the levels one period earlier read. Such a phase is a linear map over (max, +), iterated: once its state returns,
shifted by a constant, every later period is known (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity",
1992, ch. 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.schedules.columns import ALONG
from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.schedules.periods import PERIOD_LEVELS, phases, step_codes
from meshwright.schedules.table import ScheduleTable
from meshwright.schedules.times import ClassSeconds
from meshwright.shapes import Bool, Float, Int

RETURNED = 4e-14
"""Two states that agree up to a constant within this part of their moment are one state, but for rounding."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Events:
    """The events of a table and their gates."""

    table: ScheduleTable
    serial: bool
    """Whether messages occupy the compute lanes of both workers."""

    @cached_property
    def count(self) -> int:
        """Number of events."""
        return int(self.table.node[-1]) + 1

    @cached_property
    def head(self) -> Int[np.ndarray, " events"]:
        """First task of each event."""
        if self.table.fused is None:
            return np.arange(self.count)
        return np.nonzero(~self.table.fused)[0]

    @cached_property
    def in_compute_lane(self) -> Bool[np.ndarray, " events"]:
        """Events that run one after the other on their worker."""
        lane = LANE[self.table.kind[self.head]]
        return (lane == Lane.COMPUTE) | (self.serial & ((lane == Lane.SEND) | (lane == Lane.RECEIVE)))

    @cached_property
    def gates(self) -> tuple[Int[np.ndarray, "events gates"], Int[np.ndarray, "events gates"]]:
        """The event that each gate waits for, -1 for none, and the class of the way from there."""
        table = self.table
        cells = table.p * table.v
        consumer, producer, way = self.messages
        extra = [(table.node[consumer], table.node[producer], way)]
        nothing = 2 * cells
        if not table.computes_only:
            waits, needed = self._other_lanes()
            extra.append((waits, needed, np.full(len(waits), nothing)))
        events, sources, ways = (np.concatenate(column) for column in zip(*extra, strict=True))
        if len(extra) > 1:
            by_event = np.argsort(events, kind="stable")
            events, sources, ways = events[by_event], sources[by_event], ways[by_event]
        rank = np.arange(len(events)) - np.searchsorted(events, events)
        gates = 1 + (int(rank.max()) + 1 if len(rank) else 0)
        reads = np.full((self.count, gates), -1)
        lags = np.full((self.count, gates), nothing)
        reads[:, 0] = self._before
        reads[events, 1 + rank], lags[events, 1 + rank] = sources, ways
        return reads, lags

    @cached_property
    def level(self) -> Int[np.ndarray, " events"]:
        """Topological level of each event, from 0; those that wait for nothing are in the first."""
        level = self.table.node_level - 1
        if self.table.computes_only:
            return level
        # Beside the compute lane, a task may be listed behind others and yet wait for none of them.
        reads, _ = self.gates
        return np.unique(np.where((reads < 0).all(axis=1), 0, level), return_inverse=True)[1]

    @cached_property
    def order(self) -> Int[np.ndarray, " events"]:
        """Events by level, within a level by worker."""
        # Sorting short integers is several times faster.
        return np.argsort(self.level.astype(np.uint16) if self.level.max() < 2**16 else self.level, kind="stable")

    @cached_property
    def place(self) -> Int[np.ndarray, " events"]:
        """Place of each event in `order`."""
        place = np.empty(self.count, np.int64)
        place[self.order] = np.arange(self.count)
        return place

    @cached_property
    def bounds(self) -> Int[np.ndarray, " levels_plus_1"]:
        """First place of every level, and the number of events."""
        return np.append(0, np.cumsum(np.bincount(self.level)))

    @cached_property
    def inputs(self) -> tuple[Int[np.ndarray, " reads"], Int[np.ndarray, " reads"]]:
        """What is read, level by level and within a level gate by gate: places, counted from 1 because 0 is the start
        of the step, and the flat index of each read in `gates`."""
        reads, _ = self.gates
        gates, width = reads.shape[1], np.diff(self.bounds)
        low = np.repeat(self.bounds[:-1], width)
        first = gates * low + np.arange(self.count) - low
        step = np.repeat(width, width)
        source = np.empty(gates * self.count, np.intp)
        for gate in range(gates):
            source[first + gate * step] = self.order * gates + gate
        place = np.append(self.place + 1, 0)
        return place[reads.reshape(-1)[source]], source

    @cached_property
    def phases(self) -> tuple[SteadyPhase, ...]:
        """Where the events repeat what they read and what they do."""
        reads, lags = (column[self.order] for column in self.gates)
        far = np.where(reads >= 0, np.arange(self.count)[:, None] - self.place[reads], 0)
        starts = np.zeros(self.count, bool)
        starts[self.bounds[:-1]] = True
        own = self.duration_class()[self.head][self.order]
        code = step_codes(starts, own, *(lags * (far.max() + 1) + far).T)
        return tuple(
            SteadyPhase(
                start=start,
                events=length,
                periods=periods,
                level=int(np.searchsorted(self.bounds, start)),
                levels=int(np.searchsorted(self.bounds, start + length) - np.searchsorted(self.bounds, start)),
                depth=max(1, int(far[start : start + length].max())),
            )
            for start, length, periods in phases(code, self.bounds)
        )

    def duration_class(self, micro_batches: int = 1) -> Int[np.ndarray, " tasks"]:
        """Row of `ClassSeconds.tasks` of each task.

        Args:
            micro_batches: the number of micro-batches if durations differ by micro-batch, of the longest chain;
                otherwise 1.
        """
        table = self.table
        cell = (table.kind * table.p + table.worker) * table.v + table.chunk
        if micro_batches == 1:
            return cell
        return cell * micro_batches + np.minimum(table.micro_batch, micro_batches - 1)

    @cached_property
    def closing(self) -> Int[np.ndarray, " closing"]:
        """The last events of every worker's lanes, messages left out: the last of them ends the worker's step."""
        lane = LANE[self.table.kind[self.head]].astype(np.int64)
        worker = self.table.worker[self.head]
        own = np.nonzero((lane != Lane.SEND) & (lane != Lane.RECEIVE))[0]
        _, last = np.unique((worker[own] * len(Lane) + lane[own])[::-1], return_index=True)
        return own[len(own) - 1 - last]

    @cached_property
    def _before(self) -> Int[np.ndarray, " events"]:
        """The event before each one in the compute lane of its worker, -1 for none or where it does not wait for it."""
        worker = self.table.worker[self.head]
        opens = np.append(True, worker[1:] != worker[:-1])
        if self.in_compute_lane.all():
            return np.where(opens, -1, np.arange(-1, self.count - 1))
        latest = np.maximum.accumulate(np.where(self.in_compute_lane, np.arange(self.count), -1))
        before = np.append(-1, latest[:-1])
        before[before < np.nonzero(opens)[0][np.cumsum(opens) - 1]] = -1
        received = LANE[self.table.kind[self.head]] == Lane.RECEIVE
        before[received & ~self.in_compute_lane] = -1
        return before

    @cached_property
    def messages(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tasks that take a result from another worker, the tasks that made it, and the class of the way."""
        table = self.table
        cells = table.p * table.v
        consumer = np.nonzero(table.crosses)[0]
        producer = table.needs[consumer, ALONG]
        kind = table.kind[consumer]
        forward = (kind == Kind.F) | (kind == Kind.RECV_F)
        # The edge between two stages belongs to the upstream one, in both directions.
        upstream = np.where(forward, producer, consumer)
        cell = table.worker[upstream] * table.v + table.chunk[upstream]
        way = np.where(forward, cell, cells + cell)
        return consumer, producer, way + 2 * cells + 1 if self.serial else way

    def _other_lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of events on one worker of which the first waits for the second, not both in the compute lane."""
        table, node = self.table, self.table.node
        computes = self.in_compute_lane[node]
        waits, needed = [], []
        for column in table.needs.T:
            local = (column >= 0) & (table.worker[column] == table.worker) & ~computes[column]
            tasks = np.nonzero(local)[0]
            waits.append(node[tasks])
            needed.append(node[column[tasks]])
        from meshwright.schedules.pairing import peer  # few schedules list their transfers

        lane = LANE[table.kind].astype(np.int64)
        own = np.nonzero(~computes & (lane != Lane.RECEIVE))[0]
        key = (table.worker[own] * len(Lane) + lane[own]) * (table.p + 1) + peer(table)[own] + 1
        by_lane = np.argsort(key, kind="stable")
        follows = np.nonzero(key[by_lane][1:] == key[by_lane][:-1])[0]
        waits.append(node[own[by_lane[follows + 1]]])
        needed.append(node[own[by_lane[follows]]])
        return np.concatenate(waits), np.concatenate(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyPhase:
    """A stretch of levels that repeats itself."""

    start: int
    """Place of its first event."""
    events: int
    """Events of one period."""
    periods: int
    level: int
    """The first level."""
    levels: int
    """Levels of one period."""
    depth: int
    """Largest distance back to what an event of it reads."""

    @property
    def end(self) -> int:
        """Place behind its last event."""
        return self.start + self.periods * self.events


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """When every event ends, for one set of durations."""

    events: Events
    end_s: Float[np.ndarray, " events"]
    task_s: Float[np.ndarray, " tasks"]
    """Duration of each task on its own."""
    event_s: Float[np.ndarray, " events"]
    """Duration of each event: the sum of its tasks."""
    way_s: Float[np.ndarray, "events gates"]

    @cached_property
    def latest_gate(self) -> tuple[Int[np.ndarray, " events"], Float[np.ndarray, " events"]]:
        """The event that each one waits for longest, -1 for none, and when that wait is over."""
        reads, _ = self.events.gates
        over = np.where(reads >= 0, self.end_s[reads] + self.way_s, -np.inf)
        gate = over.argmax(axis=1)
        rows = np.arange(len(gate))
        return reads[rows, gate], over[rows, gate]


def event_ends(events: Events, seconds: ClassSeconds, micro_batches: int, factor: np.ndarray | None = None) -> Solution:
    """Every end, level after level.

    Args:
        events: the events of a table.
        seconds: the seconds with one column.
        micro_batches: the number of micro-batches of the longest chain if durations differ by micro-batch, otherwise 1.
        factor: the factor of the duration of each task, if they are to vary.
    """
    _, lags = events.gates
    task_s = seconds.tasks[events.duration_class(micro_batches), 0]
    if factor is not None:
        task_s = task_s * factor
    event_s = task_s if events.table.fused is None else np.bincount(events.table.node, weights=task_s)
    way_s = seconds.edges[lags, 0]
    inputs, source = events.inputs
    gates = lags.shape[1]
    added = (way_s + event_s[:, None]).reshape(-1)[source]
    # Place 0 is the start of the step, which everything may wait for.
    found = np.zeros(events.count + 1)
    bounds = events.bounds.tolist()
    scratch = np.empty(gates * int(np.diff(events.bounds).max()))

    def run(first: int, behind: int) -> None:
        for low, high in pairwise(bounds[first : behind + 1]):
            reads = slice(gates * low, gates * high)
            over = scratch[: gates * (high - low)]
            found.take(inputs[reads], out=over, mode="clip")
            np.add(over, added[reads], out=over)
            if gates == 2:
                np.maximum(over[: high - low], over[high - low :], out=found[low + 1 : high + 1])
            else:
                over.reshape(gates, -1).max(axis=0, out=found[low + 1 : high + 1])

    level = 0
    for phase in events.phases:
        repeated = added[gates * phase.start : gates * phase.end].reshape(phase.periods, -1)
        if (repeated == repeated[0]).all():
            run(level, phase.level)
            level = _run_phase(phase, run, found)
    run(level, len(bounds) - 1)
    end_s = found[1:][events.place]
    return Solution(events=events, end_s=end_s, task_s=task_s, event_s=event_s, way_s=way_s)


def _run_phase(phase: SteadyPhase, run: Callable[[int, int], None], found: np.ndarray) -> int:
    """Find the ends of a phase: level by level until its state returns, from there on by what one return adds.

    Args:
        phase: the phase whose durations repeat, too.
        run: finds the ends of levels.
        found: the start of the step and the end at every place.

    Returns:
        The level from which on nothing is found.
    """
    together = max(1, PERIOD_LEVELS // phase.levels)
    former = 0
    looks, moves_at = 0, 1
    for period in range(0, phase.periods - together + 1, together):
        low = phase.level + period * phase.levels
        run(low, low + together * phase.levels)
        at = phase.start + (period + together) * phase.events + 1
        if former > phase.depth:
            shift = found[at - phase.depth : at] - found[former - phase.depth : former]
            gain, lag = shift[-1], at - former
            if np.abs(shift - gain).max() <= RETURNED * found[at - 1]:
                left = phase.end + 1 - at
                returns = np.arange(1, left // lag + 2)
                found[at : at + left] = (found[former:at] + gain * returns[:, None]).reshape(-1)[:left]
                return phase.level + phase.periods * phase.levels
        # Brent: each state is compared with one former state, which is moved on whenever its age has doubled.
        looks += 1
        if looks == moves_at:
            former, looks, moves_at = at, 0, 2 * moves_at
    return phase.level + phase.periods // together * together * phase.levels
