"""A schedule table compiled for the simulator: level after level, with its steady phases folded.

The end of a task is a maximum of sums: end = max over inputs (end of input + latency) + duration. Tasks of one
topological level do not wait for each other, so a level is one array step for any number of duration sets. Most of a
long schedule repeats itself: a *phase* is a stretch of levels whose tasks read, at the same distances, what the levels
one period earlier read. Such a phase is a linear map over (max, +), iterated: once its state returns, shifted by a
constant, every later period is known (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, ch. 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.events import Events
from meshwright.schedules.kinds import Kind
from meshwright.schedules.periods import PERIOD_LEVELS, phases, step_codes
from meshwright.shapes import Float, Int

PLAIN_NODES = 4096
"""Longest run of nodes outside a phase that is prepared at once, so that its columns stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Levels that follow each other; a phase when `period` is set, and then one period of it."""

    start: int
    """First node, in level order."""
    nodes: int
    """Nodes of the segment; of one period when it is a phase."""
    reach: int
    """Largest distance from the segment's start back to an input."""
    levels: tuple[tuple[int, int], ...]
    """First and last + 1 node of each level, from the segment's start."""
    window: int
    """Largest distance from the start of a level back to an input."""
    inputs: Int[np.ndarray, " reads"]
    """Positions read, from `window` before their level: per level all first inputs, then all second ones, ..."""
    weights: Int[np.ndarray, " reads"]
    """Weight class of each read."""
    periods: int = 1
    """How often the segment runs; 0 for a phase whose periods are all in the segment after it."""
    joined: int = 0
    """Base periods in one run when the segment is a phase, 0 when it is none."""

    @property
    def end(self) -> int:
        """Node behind the last period."""
        return self.start + self.periods * self.nodes


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """A table as segments of levels, and the weight classes their reads add."""

    segments: tuple[Segment, ...]
    gates: int
    """Reads per node: the task before it on its worker, and one or more other workers."""
    last: Int[np.ndarray, " closing"]
    """Places of the last nodes of every worker, worker after worker."""
    last_first: Int[np.ndarray, " workers"]
    """Where each worker's begin."""
    durations: Int[np.ndarray, "classes parts"]
    """Rows of `ClassSeconds.tasks` that each weight class adds up."""
    edges: Int[np.ndarray, " classes"]
    """Row of `ClassSeconds.edges` that each weight class adds."""
    micro_batches: int
    """Micro-batches of the longest chain if durations differ by micro-batch, otherwise 1."""
    serial: bool
    """Whether messages occupy the workers."""
    per_micro_batch: int
    """Nodes that one more micro-batch in every chain adds."""

    def weights(
        self, tasks_s: Float[np.ndarray, "task_classes rows"], edges_s: Float[np.ndarray, "edge_classes rows"]
    ) -> Float[np.ndarray, "classes rows"]:
        """Seconds that each weight class adds: the durations of its node and the way of its edge.

        Args:
            tasks_s: the seconds of tasks, as in `ClassSeconds`.
            edges_s: latencies of the edge classes, as in `ClassSeconds`.
        """
        return tasks_s[self.durations].sum(axis=1) + edges_s[self.edges]

    def lookback(self, k: int) -> int:
        """Nodes before the end of segment k that its later periods or later segments still read."""
        return max(self._later(k), self.segments[k].nodes + self.segments[k].reach)

    def _later(self, k: int) -> int:
        """Nodes before the end of segment k that later segments still read."""
        end = self.segments[k].end
        return max((s.reach - (s.start - end) for s in self.segments[k + 1 :]), default=0)

    def periods_for(self, micro_batches: int) -> tuple[int, ...] | None:
        """Periods of every segment with that many more micro-batches.

        None if the phases do not divide them, do not account for all their tasks, or are read across.
        """
        periods: list[int] = []
        added = start = 0
        for k, segment in enumerate(self.segments):
            periods.append(segment.periods)
            if not segment.joined:
                start = segment.end
                continue
            if segment.joined == 1 and k + 1 < len(self.segments) and self.segments[k + 1].joined > 1:
                continue
            share, odd = divmod(int(np.bincount(self._duration_classes(segment)).max()), segment.joined)
            if odd or micro_batches % share or self._later(k) > segment.end - start:
                return None
            more = micro_batches // share
            added += more * segment.nodes // segment.joined
            if segment.joined > 1:
                together, periods[-2] = divmod(periods[-2] + more, segment.joined)
                periods[-1] += together
            else:
                periods[-1] += more
            start = segment.end
        return tuple(periods) if added == micro_batches * self.per_micro_batch else None

    def _duration_classes(self, segment: Segment) -> Int[np.ndarray, " nodes"]:
        """Duration class of the first part of each node of the segment."""
        firsts = np.concatenate(
            [np.arange(low * self.gates, low * self.gates + high - low) for low, high in segment.levels]
        )
        return self.durations[segment.weights[firsts], 0]


def compile_events(events: Events, micro_batches: int = 1, period: int = 0) -> Program:
    """Level order, reads and phases of the events of a table.

    Args:
        events: the events of a table.
        micro_batches: the number of micro-batches of the longest chain if durations differ by micro-batch, otherwise 1.
        period: nodes of one period of the only phase that is looked for; 0 for all phases.
    """
    table, count = events.table, events.count
    zero = len(Kind) * table.p * table.v * micro_batches
    duration = events.duration_class(micro_batches)
    parts = int(np.bincount(table.node).max())
    summed = np.full((count, parts), zero)
    summed[table.node, np.arange(table.tasks) - events.head[table.node]] = duration
    reads, lags = (column.copy() for column in events.gates)
    gates = reads.shape[1]
    # A node with nothing before it on its worker reads its other input twice, and so does a node with one input only:
    # then every node of a level has as many reads, and only nodes without any input read the start.
    for gate in (*range(1, gates), *range(gates)):
        for other in range(gates):
            lacks = (reads[:, gate] < 0) & (reads[:, other] >= 0)
            reads[lacks, gate], lags[lacks, gate] = reads[lacks, other], lags[lacks, other]

    ordered, place = events.order, events.place
    span = zero + 1
    key = lags[ordered].astype(np.int64)
    for part in range(parts):
        key = key * span + summed[ordered, part][:, None]
    distinct, weight = np.unique(key, return_inverse=True)
    weight = weight.reshape(count, gates)
    durations = np.empty((len(distinct), parts), np.int64)
    rest = distinct
    for part in reversed(range(parts)):
        rest, durations[:, part] = np.divmod(rest, span)
    reads = reads[ordered]
    distance = np.where(reads >= 0, np.arange(count)[:, None] - place[reads], 0)
    starts = np.zeros(count, bool)
    starts[events.bounds[:-1]] = True
    last = events.closing
    by_worker = np.argsort(table.worker[events.head[last]], kind="stable")
    last = last[by_worker]
    return Program(
        segments=_segments(distance, weight, starts, period),
        gates=gates,
        last=place[last],
        last_first=np.searchsorted(table.worker[events.head[last]], np.arange(table.p)),
        durations=durations,
        edges=rest,
        micro_batches=micro_batches,
        serial=events.serial,
        per_micro_batch=int(np.count_nonzero(table.micro_batch[events.head] == max(table.micro_batches) // 2)),
    )


def _segments(
    distance: Int[np.ndarray, "nodes gates"], weight: Int[np.ndarray, "nodes gates"], starts: np.ndarray, known: int
) -> tuple[Segment, ...]:
    """The nodes in level order, cut into phases (of `known` nodes a period, if not 0) and what lies between them."""
    count = len(distance)
    code = step_codes(starts, *(weight * (distance.max() + 1) + distance).T)
    bounds = np.append(np.nonzero(starts)[0], count)
    made: list[Segment] = []
    at = 0
    for start, period, periods in [*phases(code, bounds, known), (count, 0, 0)]:
        while at < start:
            stop = int(bounds[np.searchsorted(bounds, min(start, at + PLAIN_NODES), side="right") - 1])
            stop = stop if stop > at else int(bounds[np.searchsorted(bounds, at, side="right")])
            made.append(_segment(distance, weight, bounds, at, stop))
            at = stop
        if periods:
            levels = int(np.searchsorted(bounds, start + period) - np.searchsorted(bounds, start))
            join = min(periods, max(1, round(PERIOD_LEVELS / levels)))
            together, single = divmod(periods, join)
            if join > 1:
                made.append(_segment(distance, weight, bounds, at, at + period, periods=single, joined=1))
                at += single * period
            made.append(_segment(distance, weight, bounds, at, at + join * period, periods=together, joined=join))
            at += together * join * period
    return tuple(made)


def _segment(
    distance: np.ndarray,
    weight: np.ndarray,
    bounds: np.ndarray,
    start: int,
    stop: int,
    periods: int = 1,
    joined: int = 0,
) -> Segment:
    """One segment; reads and weights level by level, input by input."""
    cuts = bounds[np.searchsorted(bounds, start) : np.searchsorted(bounds, stop) + 1] - start
    gates = distance.shape[1]
    inside = np.arange(stop - start)
    absolute = inside[:, None] - distance[start:stop]
    # A read of the start (distance 0) is possible in the first level only, and lies one place before it.
    absolute[distance[start:stop] == 0] = -1
    reach = int(max(1, -absolute.min()))
    width = np.diff(cuts)
    low, step = np.repeat(cuts[:-1], width), np.repeat(width, width)
    place = ((gates - 1) * low + inside)[:, None] + step[:, None] * np.arange(gates)
    window = int(max(1, (low[:, None] - absolute).max()))
    inputs = np.empty(gates * (stop - start), np.intp)
    classes = np.empty(gates * (stop - start), np.intp)
    inputs[place] = absolute - low[:, None] + window
    classes[place] = weight[start:stop]
    pairs = tuple(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return Segment(
        start=start,
        nodes=stop - start,
        reach=reach,
        window=window,
        levels=pairs,
        inputs=inputs,
        weights=classes,
        periods=periods,
        joined=joined,
    )
