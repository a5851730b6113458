"""A compiled table run for many sets of durations at once: the ends of each worker, in memory that stays in the cache.

Only as many ends are kept as later levels read. Once a phase returns to a former state, shifted by a constant, for
every set of durations, the rest of it is known.
"""

from __future__ import annotations

import numpy as np

from meshwright.schedules.program import Program, Segment
from meshwright.shapes import Float

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
