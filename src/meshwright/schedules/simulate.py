"""The event simulator: exact start and end of every task of a schedule table, for one or many sets of durations.

Each worker runs its list in order; a task starts when the worker is free and its inputs have arrived. Within a worker
results are free. Between workers a message leaves its producer, takes `sending_s` to leave behind the message before it
on its channel, and arrives a latency later; with `overlap` it occupies nobody but its channel. Without overlap each
SEND holds its worker for latency + sending seconds, right behind the producer, and its RECV the other worker for as
long, right before the consumer, from the start of the SEND at the earliest.

A compiled table is run for many sets of durations at once, in memory that stays in the cache.
Only as many ends are kept as later levels read. Once a phase returns to a former state, shifted by a constant, for
every set of durations, the rest of it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshwright.errors import InputError
from meshwright.schedules.events import Events, event_ends
from meshwright.schedules.kinds import LANE, Kind, Lane, Placement
from meshwright.schedules.program import Program, Segment, compile_events
from meshwright.schedules.table import ScheduleTable
from meshwright.schedules.times import Times, class_seconds, edge_latency_s
from meshwright.shapes import Float

if TYPE_CHECKING:
    from meshwright.schedules.timeline import Timeline

KEPT_CELLS = 1 << 18
"""Ends kept at once, all sets of durations together: about what the cache of one core holds."""
FEWEST_ROWS, MOST_ROWS = 128, 512
"""Sets of durations run together."""
READY_CELLS = 1 << 15
"""Largest array of weights that is laid out beforehand for a phase."""
PERIODS_WORTH_A_LOOK = 8
"""Depths of the state that a phase must run through before looking for a return pays."""


def rows_together(program: Program) -> int:
    """Sets of durations that one run takes best.

    Args:
        program: what to run.
    """
    return min(MOST_ROWS, max(FEWEST_ROWS, KEPT_CELLS // _kept(program)))


def end_times(
    program: Program, weights: Float[np.ndarray, "classes rows"], periods: tuple[int, ...] | None = None
) -> Float[np.ndarray, "closing rows"]:
    """Ends of the nodes `program.last`, one column per set of durations.

    Args:
        program: what to run.
        weights: seconds of each weight class, one column per set of durations.
        periods: the periods of every segment, if not the program's own.
    """
    counts = tuple(segment.periods for segment in program.segments) if periods is None else periods
    rows, gates = weights.shape[1], program.gates
    tail = _kept(program, counts)
    widest = max(high - low for segment in program.segments for low, high in segment.levels)
    # The tail moves to the front when the end is reached; the longer the buffer, the seldomer.
    ends = np.zeros((2 * tail + max(tail, 8 * widest), rows))
    scratch, added = np.empty((2, gates * widest, rows))
    closing = np.empty((len(program.last), rows))
    at = tail
    for k, (segment, count) in enumerate(zip(program.segments, counts, strict=True)):
        ready = weights[segment.weights] if _lays_out(segment, count, gates, rows) else None
        memory = _Returns(program.lookback(k), ends.shape[1]) if _may_return(program, k, count) else None
        closers = _closers(program, k)
        window, done = segment.window, 0
        while done < count:
            last = closers if done == count - 1 else {}
            for level, (low, high) in enumerate(segment.levels):
                reads, width = slice(gates * low, gates * high), high - low
                if at + width > len(ends):
                    ends[:tail] = ends[at - tail : at]
                    at = tail
                over = scratch[: gates * width]
                ends[at - window : at].take(segment.inputs[reads], 0, over, "clip")
                if ready is None:
                    way = added[: gates * width]
                    weights.take(segment.weights[reads], 0, way, "clip")
                else:
                    way = ready[reads]
                np.add(over, way, over)
                if gates == 2:
                    np.maximum(over[:width], over[width:], out=ends[at : at + width])
                else:
                    over.reshape(gates, width, rows).max(axis=0, out=ends[at : at + width])
                if level in last:
                    which, where = last[level]
                    closing[which] = ends[at + where]
                at += width
            done += 1
            # The last period runs as it is: in it the workers may end.
            if memory is not None and done < count - 1 and memory.returned(ends[at - memory.depth : at]):
                memory.skip(ends[at - memory.depth : at], count - 1 - done)
                done = count - 1
    return closing


def _kept(program: Program, counts: tuple[int, ...] | None = None) -> int:
    """Ends that must be kept: all that a later level reads, and the state of phases that may return."""
    counts = tuple(segment.periods for segment in program.segments) if counts is None else counts
    states = (program.lookback(k) for k, count in enumerate(counts) if _may_return(program, k, count))
    return max(*(segment.window for segment in program.segments), 1, *states)


def _lays_out(segment: Segment, count: int, gates: int, rows: int) -> bool:
    return count > 2 and gates * segment.nodes * rows <= READY_CELLS


def _may_return(program: Program, k: int, count: int) -> bool:
    segment = program.segments[k]
    return bool(segment.joined) and count * segment.nodes >= PERIODS_WORTH_A_LOOK * program.lookback(k)


def _closers(program: Program, k: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Closing nodes in each level of the last period of a segment, and where in the level."""
    # Found once, and kept with the program, so that it goes when the program goes.
    known: dict[int, dict[int, tuple[np.ndarray, np.ndarray]]] = program.__dict__.setdefault("_closers", {})
    if k not in known:
        known[k] = _closers_of(program, program.segments[k])
    return known[k]


def _closers_of(program: Program, segment: Segment) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    here = np.nonzero((program.last >= segment.start) & (program.last < segment.end))[0]
    if not len(here):
        return {}
    inside = program.last[here] - (segment.end - segment.nodes)
    lows = np.array([low for low, _ in segment.levels])
    level = np.searchsorted(lows, inside, side="right") - 1
    return {one: (here[level == one], inside[level == one] - lows[one]) for one in sorted(set(level.tolist()))}


class _Returns:
    """The states a phase went through, to see when each column of durations returns to one of them plus a constant.

    (max, +) maps do not widen distances: two states that agree within epsilon up to a constant stay so, and the error
    of all that is skipped is below epsilon times the number of returns skipped.
    """

    TOLERANCE = 4e-14
    KEPT = 24
    FEW = 16

    def __init__(self, depth: int, rows: int) -> None:
        self.depth = depth
        self._few = np.array(sorted(set(np.linspace(0, depth - 1, self.FEW).astype(int).tolist())))
        self._states: list[np.ndarray] = []
        self._anchors: list[np.ndarray] = []
        self._lag = np.zeros(rows, np.int64)
        self._age, self._most = 0, 1

    def returned(self, state: Float[np.ndarray, "depth rows"]) -> bool:
        """Note the state behind a period; whether every column has returned.

        Args:
            state: the last `depth` ends.
        """
        anchor = state[-1]
        normal = state - anchor
        open_rows = np.nonzero(self._lag == 0)[0]
        if self._states:
            former, back = self._states[-self._age], self._age
            tolerance = self.TOLERANCE * np.abs(anchor)
            # A few ends tell nearly all states apart; only where they agree all of them are looked at.
            apart = np.abs(former[self._few] - normal[self._few]).max(axis=0)[open_rows]
            likely = open_rows[apart <= tolerance[open_rows]]
            if len(likely):
                same = np.abs(former[:, likely] - normal[:, likely]).max(axis=0) <= tolerance[likely]
                self._lag[likely[same]] = back
        self._states.append(normal)
        self._anchors.append(anchor.copy())
        del self._states[: -self.KEPT], self._anchors[: -self.KEPT]
        # Brent: each state is compared with one former state, which is moved on whenever its age has doubled.
        self._age += 1
        if self._age > self._most:
            self._age, self._most = 1, min(2 * self._most, self.KEPT - 1)
        return bool((self._lag > 0).all())

    def skip(self, state: Float[np.ndarray, "depth rows"], periods: int) -> None:
        """Set the state to what it is that many periods later.

        Args:
            state: the last `depth` ends, overwritten.
            periods: the number of periods to leave out.
        """
        newest = len(self._states) - 1
        full, rest = np.divmod(periods, self._lag)
        like = np.where(rest == 0, newest, newest - self._lag + rest)
        full = full + (rest > 0)
        anchors = np.stack(self._anchors)
        columns = np.arange(len(self._lag))
        gain = anchors[newest] - anchors[newest - self._lag, columns]
        anchor = anchors[like, columns] + full * gain
        states = np.stack(self._states)
        state[:] = states[like, :, columns].T + anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Random durations: each task takes exp(sigma*n - sigma^2/2) times its duration, n standard normal, mean 1.

    Messages keep theirs. The draws follow the order of the table, so a seed gives one result for a table.
    """

    sigma: float
    seed: int = 0

    def factor(self, tasks: int) -> Float[np.ndarray, " tasks"]:
        """What each task's duration is multiplied by.

        Args:
            tasks: number of tasks.
        """
        normal = np.random.default_rng(self.seed).standard_normal(tasks)
        return np.exp(self.sigma * normal - self.sigma**2 / 2)


def simulate(table: ScheduleTable, times: Times, *, overlap: bool = True, jitter: Jitter | None = None) -> Timeline:
    """Start and end of every task: end = max(worker free, inputs arrived) + duration.

    Args:
        table: what runs in which order.
        times: one set of durations, without leading axes.
        overlap: whether workers compute while they send and receive.
        jitter: what varies the durations.
    """
    events = events_of(table, times, overlap=overlap)
    most = max(table.micro_batches)
    seconds = class_seconds(table.placement, times, events.table.kinds, most, serial=events.serial)
    if seconds.lead:
        raise InputError(
            what=f"{seconds.tasks.shape[-1]} sets of durations for one timeline",
            why="a timeline shows one set",
            fix="pass arrays of shape (workers, chunks), or ask `makespans` for many sets",
            field="times",
        )
    factor = None
    if jitter is not None:
        own = ~np.isin(LANE[events.table.kind], (Lane.SEND, Lane.RECEIVE))
        factor = np.ones(events.table.tasks)
        factor[own] = jitter.factor(int(own.sum()))
    from meshwright.schedules.timeline import timeline_of  # only what is shown or traced

    return timeline_of(table, event_ends(events, seconds, most if times.by_micro_batch else 1, factor))


def makespans(table: ScheduleTable, times: Times, *, overlap: bool = True) -> Float[np.ndarray, "*all_rows workers"]:
    """End of each worker's last task for many sets of durations at once; the step's makespan is the largest.

    Equal to `simulate` up to rounding (relative 1e-10); the middle of a steady phase is skipped where it is periodic.

    Args:
        table: what runs in which order.
        times: sets of durations along leading axes.
        overlap: whether workers compute while they send and receive.
    """
    events = events_of(table, times, overlap=overlap)
    most = max(table.micro_batches) if times.by_micro_batch else 1
    known = table.__dict__.setdefault("_programs", {})
    key = events.table is table, events.serial, most
    if key not in known:
        known[key] = compile_events(events, most)
    return worker_ends(known[key], table.placement, events.table.kinds, times)


def worker_ends(
    program: Program, placement: Placement, kinds: frozenset[Kind], times: Times, periods: tuple[int, ...] | None = None
) -> Float[np.ndarray, "*all_rows workers"]:
    """`makespans` of a compiled table, its phases run `periods` times.

    Args:
        program: the compiled table.
        placement: the placement of its virtual stages.
        kinds: kinds of tasks it holds.
        times: sets of durations along leading axes.
        periods: the periods of every segment, if not the program's own.
    """
    seconds = class_seconds(placement, times, kinds, program.micro_batches, serial=program.serial)
    rows, block = seconds.tasks.shape[-1], rows_together(program)
    worker_end_s = np.empty((rows, placement.p))
    for low in range(0, rows, block):
        part = slice(low, low + block)
        ends_s = end_times(program, program.weights(seconds.tasks[:, part], seconds.edges[:, part]), periods)
        worker_end_s[part] = np.maximum.reduceat(ends_s, program.last_first, axis=0).T
    return worker_end_s.reshape(*seconds.lead, placement.p)


def events_of(table: ScheduleTable, times: Times, *, overlap: bool = True) -> Events:
    """The events of a table: with messages of their own where they hold up each other or the workers.

    Args:
        table: what runs in which order.
        times: durations.
        overlap: whether workers compute while they send and receive.
    """
    serial = not overlap and bool(table.crosses.any())
    spelt_out = serial or times.occupies_channels
    known = table.__dict__.setdefault("_events", {})
    key = spelt_out, serial
    if key not in known:
        if spelt_out:
            from meshwright.schedules.communication import with_communication  # most tables leave transfers to times

            table = with_communication(table)
        known[key] = Events(table=table, serial=serial)
    events: Events = known[key]
    return events


__all__ = ["Jitter", "Times", "edge_latency_s", "makespans", "simulate", "worker_ends"]
