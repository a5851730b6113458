"""The ways to run a step that a scheduler chooses from: named schedules, and placements for list scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.schedules.base import Schedule
from meshwright.schedules.in_flight import live_vectors, peak_live_bytes
from meshwright.schedules.list_scheduling import Work
from meshwright.schedules.order_bounds import order_lower_bound_s
from meshwright.schedules.stage_shares import Caps, share_bytes, share_times, virtual_stage_work
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.schedules.times import Times
from meshwright.shapes import Float, Int

PLACEMENTS = ("linear", "loop", "v", "wave")
"""Placements that list scheduling knows."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run the step that was looked at."""

    name: str
    """Name of a schedule, or `list scheduling` and its placement or the schedule it starts from."""
    v: int
    """Chunks per worker."""
    named: bool
    """Whether it is a named schedule as it is."""
    bound_s: float | None = None
    """Lower bound of all orders on this placement; None if the way is not legal."""
    makespan_s: float | None = None
    """None if it was not run."""
    span_s: float | None = None
    """Longest time from first start to last end of one worker; None where it was not asked for."""
    peak_bytes: float | None = None
    """Peak bytes of the fullest worker; None if that was not counted."""
    why_not: str = ""
    """Why it is out; empty if it ran."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Way:
    """A named schedule, or a placement for list scheduling, with the times and the memory of its chunks."""

    name: str
    v: int
    schedule: Schedule | None
    """None for list scheduling."""
    placement: Placement
    times: Times
    stage_bytes: Float[np.ndarray, "workers chunks"]
    bound_s: float

    def candidate(
        self,
        *,
        makespan_s: float | None = None,
        span_s: float | None = None,
        peak_bytes: float | None = None,
        why_not: str = "",
    ) -> Candidate:
        """What became of it."""
        return Candidate(
            name=self.name,
            v=self.v,
            named=self.schedule is not None,
            bound_s=self.bound_s,
            makespan_s=makespan_s,
            span_s=span_s,
            peak_bytes=peak_bytes,
            why_not=why_not,
        )

    def work(self, m: int, caps: Caps | None, *, split: bool = True) -> Work:
        """The way as one chain of work for list scheduling.

        Args:
            m: micro-batches per step.
            caps: the caps of the workers.
            split: whether weight gradients run apart, if their times are given.
        """
        return virtual_stage_work(self.placement, (m,), self.times, self.stage_bytes, caps, split)

    def table(self, m: int) -> ScheduleTable:
        """The order of a named schedule.

        Args:
            m: micro-batches per step.
        """
        assert self.schedule is not None
        return self.schedule.table(self.placement.p, m, self.v)

    def peak_bytes(
        self, m: int, caps: Caps | None, table: ScheduleTable | None = None
    ) -> Float[np.ndarray, " workers"]:
        """Bytes of each worker at its fullest: copies of the weights, own activations, and others' that lie there.

        Args:
            m: micro-batches per step.
            caps: the caps of the workers.
            table: its order, where it is not that of a named schedule.
        """
        p, schedule = self.placement.p, self.schedule
        splits = schedule is None or Kind.I in schedule.kinds
        if splits and caps is not None and caps.of("released_by_input", p).any():
            table = self.table(m) if table is None else table
            live = peak_live_bytes(table, self.stage_bytes, caps.released(self.placement))
        elif schedule is None:
            assert table is not None
            live = _most_live(live_vectors(table), self.stage_bytes)
        else:
            live = _most_live(schedule.in_flight(p, m, self.v), self.stage_bytes)
        copies = np.ones(p)
        if schedule is not None:
            copies = np.asarray(schedule.worker_weight_copies(p, m, self.v), float)
            kept, guests = schedule.parked(p, m).T
            if guests.any():
                live = np.minimum(live, kept * self.stage_bytes[:, 0]) + guests * self.stage_bytes[::-1, 0]
        return live + copies * (0.0 if caps is None else caps.of("weight_bytes", p))


def _most_live(
    vectors: Sequence[Int[np.ndarray, "_ chunks"]], stage_bytes: Float[np.ndarray, "workers chunks"]
) -> Float[np.ndarray, " workers"]:
    # Each worker has as many vectors as it has, which the shape of a sequence cannot say.
    return np.array([float((counts @ stage_bytes[r]).max()) for r, counts in enumerate(vectors)])


def named_ways(
    named: Sequence[Schedule], times: Times, m: int, caps: Caps | None, chunks: Sequence[int], *, span: bool = False
) -> tuple[list[Way], list[Candidate]]:
    """Schedules with as many chunks as asked for that are legal, and the others with their reasons.

    Args:
        named: the schedules.
        times: the times by worker and chunk, or of whole shares.
        m: micro-batches per step.
        caps: the caps of the workers.
        chunks: the chunks per worker, to try.
        span: whether bounds are those of the longest span.
    """
    p = len(np.asarray(times.forward_s))
    ways, out = [], []
    for schedule in named:
        legal = [v for v in chunks if not schedule.problems(p, m, v)]
        why = ""
        if not legal:
            problem = schedule.problems(p, m, chunks[-1])[0]
            why = f"{problem.what}: {problem.why}"
        if schedule.kinds & {Kind.I, Kind.W} and times.weight_s is None:
            why = "needs the times of weight gradients"
        if schedule.kinds & {Kind.R, Kind.X} and times.recompute_s is None:
            why = "needs the times of recomputation"
        if why:
            out.append(Candidate(name=schedule.token, v=chunks[-1], named=True, why_not=why))
        else:
            ways += [_named_way(schedule, times, p, m, v, caps, span) for v in legal]
    return ways, out


def _named_way(schedule: Schedule, times: Times, p: int, m: int, v: int, caps: Caps | None, span: bool) -> Way:
    placement, parts = schedule.placement(p, v), schedule.tasks_per_share(v)
    recomputes = bool(schedule.kinds & {Kind.R, Kind.X})
    own = share_times(times if recomputes else _with_recompute(times), placement, parts)
    size = share_bytes(caps, placement, parts)
    busy_s = None
    if recomputes:
        table = schedule.table(p, m, v)
        again = np.isin(table.kind, (Kind.R, Kind.X))
        seconds = np.asarray(own.recompute_s)[table.worker[again], table.chunk[again]]
        busy_s = np.bincount(table.worker[again], weights=seconds, minlength=p)
    # Memory bounds the time only where every activation stays on the worker that made it.
    stays = placement.chains == 1 and not schedule.parked(p, m)[:, 1].any()
    units = max(1, m * schedule.sections() // placement.chains)
    split = bool(schedule.kinds & {Kind.I, Kind.W})
    work = virtual_stage_work(placement, (units,) * placement.chains, own, size, caps if stays else None, split)
    return Way(
        name=schedule.token,
        v=v,
        schedule=schedule,
        placement=placement,
        times=own,
        stage_bytes=size,
        bound_s=order_lower_bound_s(work, busy_s, span=span),
    )


def listed_ways(
    times: Times,
    m: int,
    caps: Caps | None,
    chunks: Sequence[int],
    placements: Sequence[str],
    split: bool,
    *,
    span: bool = False,
) -> tuple[list[Way], list[Candidate]]:
    """Placements for list scheduling on which one micro-batch fits, and the others with what they lack.

    Args:
        times: the times by worker and chunk, or of whole shares.
        m: micro-batches per step.
        caps: the caps of the workers.
        chunks: the chunks per worker, to try.
        placements: the placements to try.
        split: whether weight gradients run apart, if their times are given.
        span: whether bounds are those of the longest span.
    """
    p = len(np.asarray(times.forward_s))
    ways, out = [], []
    for kind in placements:
        for v in chunks:
            placement = _placed(kind, p, v)
            if placement is None:
                continue
            own = share_times(_with_recompute(times), placement, v)
            if not split:
                own = Times(forward_s=own.forward_s, backward_s=own.backward_s, transfer_s=own.transfer_s)
            size = share_bytes(caps, placement, v)
            name = f"list scheduling, {kind}"
            if caps is not None:
                lacking = caps.lack(caps.of("weight_bytes", p) + size.sum(axis=1))
                if lacking:
                    why = f"one micro-batch alone is too large: {lacking}"
                    out.append(Candidate(name=name, v=v, named=False, why_not=why))
                    continue
            bound_s = order_lower_bound_s(virtual_stage_work(placement, (m,), own, size, caps), span=span)
            ways.append(
                Way(name=name, v=v, schedule=None, placement=placement, times=own, stage_bytes=size, bound_s=bound_s)
            )
    return ways, out


def _placed(kind: str, p: int, v: int) -> Placement | None:
    """A placement by its name; None where it has another number of chunks or is another one's special case."""
    if kind == "linear":
        return Placement.loop(p, 1) if v == 1 else None
    if p == 1:
        return None
    if kind == "loop":
        return Placement.loop(p, v) if v > 1 else None
    if (kind == "v" and v == 2) or (kind == "wave" and v > 2 and v % 2 == 0):
        there = list(range(p))
        return Placement.of_chains([(there + there[::-1]) * (v // 2)])
    return None


def _with_recompute(times: Times) -> Times:
    """The times with recomputation as part of the backward."""
    if times.recompute_s is None:
        return times
    return Times(
        forward_s=times.forward_s,
        backward_s=np.asarray(times.backward_s, float) + times.recompute_s,
        transfer_s=times.transfer_s,
        weight_s=times.weight_s,
        recompute_s=times.recompute_s,
    )
