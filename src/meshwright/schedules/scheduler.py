"""The scheduler: for stage times and memory that are what they are, the fastest order any known way gives.

Every named schedule that is legal and fits competes with list scheduling on every placement, and the simulator decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from meshwright.errors import InfeasibleError, InputError, Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.named.zero_bubble import SPLIT
from meshwright.schedules.order_search import FULL_TASKS, Order, greedy_options, order_of, search_orders, warmup_options
from meshwright.schedules.simulate import simulate
from meshwright.schedules.span_search import given_orders, greedy_families, shortest_span
from meshwright.schedules.stage_shares import Caps
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.timeline import Timeline
from meshwright.schedules.times import Times
from meshwright.schedules.ways import PLACEMENTS, Candidate, Way, listed_ways, named_ways
from meshwright.shapes import Float

OBJECTIVES = ("makespan", "span")
"""What may be short: the end of a step, or the longest time of a worker from its first to its last task, which is what
a step takes among others where no barrier parts them because updates are validated after they are made."""

EXTRAS = (0.0, 1.0, 0.5)
"""Warm-up depths that are tried, beyond what covers the way of a micro-batch; see `warmup_options`."""
MARGIN = 1e-9
"""Share of the time that a way must be able to save to be tried."""
IMPROVED_NAMED = 3
"""Named schedules, the fastest ones, whose orders are improved too."""
PLAIN = frozenset({Kind.F, Kind.B})
"""Kinds of tasks of an order that can be improved; those of `SPLIT` are the other ones."""


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """The fastest order that was found."""

    name: str
    v: int
    schedule: Schedule | None
    """The named schedule that won; None for list scheduling."""
    times: Times
    """Times of the chunks of the winner's placement."""
    timeline: Timeline
    peak_bytes: Float[np.ndarray, " workers"]
    """Weights and live activations of each worker at its fullest."""
    bound_s: float
    """Lower bound of all orders on any of the placements."""
    candidates: tuple[Candidate, ...]
    rule: str = ""
    """How list scheduling found the order; empty for a named schedule."""
    objective: str = "makespan"

    def __repr__(self) -> str:
        return f"Scheduled({self.verdict})"

    @property
    def table(self) -> ScheduleTable:
        """Who runs what in which order."""
        return self.timeline.table

    @property
    def makespan_s(self) -> float:
        """Makespan of the step."""
        return self.timeline.makespan_s

    @property
    def span_s(self) -> float:
        """Largest time from first start to last end of one worker."""
        return self.timeline.span_s

    @property
    def sought_s(self) -> float:
        """What was to be short: makespan or span."""
        return self.span_s if self.objective == "span" else self.makespan_s

    @property
    def best_named(self) -> Candidate | None:
        """The fastest named schedule that fits, the first of equals; None if none does."""
        ran = [found for found in self.candidates if found.named and self._sought_s(found) is not None]
        return min(ran, key=lambda found: self._sought_s(found) or 0.0, default=None)

    def _sought_s(self, found: Candidate) -> float | None:
        return found.span_s if self.objective == "span" else found.makespan_s

    @property
    def gain(self) -> float:
        """Share of the best named schedule's time that is saved; 0 if it won itself or none fits."""
        named = self.best_named
        named_s = None if named is None else self._sought_s(named)
        return 0.0 if self.schedule is not None or not named_s else 1.0 - self.sought_s / named_s

    @property
    def gap(self) -> float:
        """How far the time is above the bound of any order: makespan or span / bound - 1."""
        return max(0.0, self.sought_s / self.bound_s - 1.0) if self.bound_s else 0.0

    def to_dict(self) -> dict[str, object]:
        """As data: `meshwright.best-schedule/1`."""
        timeline, named = self.timeline, self.best_named
        rows = zip(timeline.table.entries(), self.peak_bytes.tolist(), timeline.busy_s.tolist(), strict=True)
        return {
            "schema": "meshwright.best-schedule/1",
            "name": self.name,
            "p": self.table.p,
            "m": sum(self.table.micro_batches) // self.table.segments,
            "v": self.v,
            "rule": self.rule,
            "objective": self.objective,
            "verdict": self.verdict,
            "makespan_s": timeline.makespan_s,
            "span_s": timeline.span_s,
            "bound_s": self.bound_s,
            "gap": self.gap,
            "best_named": None if named is None else named.name,
            "gain": self.gain,
            "bubble_makespan": timeline.bubble_makespan,
            "bubble_span": timeline.bubble_span,
            "candidates": [asdict(seen) for seen in self.candidates],
            "workers": [{"order": order, "peak_bytes": peak, "busy_s": busy_s} for order, peak, busy_s in rows],
        }

    @property
    def verdict(self) -> str:
        """Which one won, by how much, and how much any order could still gain."""
        named = self.best_named
        against = ""
        if self.schedule is None and named is not None:
            against = f", {100 * self.gain:.2f}% less than {named.name} ({self._sought_s(named):.6g} s)"
        sought = " of longest span" if self.objective == "span" else ""
        return (
            f"{self.name}, v = {self.v}: {self.sought_s:.6g} s{sought}{against};"
            f" {100 * self.gap:.2f}% above the bound of any order, {self.bound_s:.6g} s"
        )


def best_among(
    named: Sequence[Schedule],
    times: Times,
    m: int,
    caps: Caps | None = None,
    *,
    chunks: Sequence[int] = (1, 2),
    placements: Sequence[str] = PLACEMENTS,
    split: bool = True,
    objective: str = "makespan",
) -> Scheduled:
    """The fastest order of a step: the best of the named schedules and of list scheduling, within memory.

    Never slower than a named schedule that is legal and fits. Ways whose lower bound is no better than what has been
    found, by a billionth, are left out; the same arguments give the same order.

    Args:
        named: schedules that may be used.
        times: seconds of one micro-batch by worker and chunk (one chunk: whole worker shares), without leading axes.
            A placement with another number of chunks divides each worker's sum evenly. Recomputation is part of the
            backward where a schedule has no task for it. `weight_s` allows split backwards.
        m: micro-batches per step.
        caps: memory of the workers; None for any amount.
        chunks: the chunks per worker, to try.
        placements: the placements for list scheduling.
        split: whether list scheduling may part weight gradients from backwards.
        objective: what is to be short.

    Raises:
        InputError: arguments that contradict each other.
        InfeasibleError: nothing fits, with what the least demanding way lacks.
    """
    _check(times, m, caps, chunks, placements, objective)
    span = objective == "span"
    ways, out = named_ways(named, times, m, caps, chunks, span=span)
    ran, found = _run(ways, m, caps, span)
    best_s = min((sought_s for sought_s, _ in ran), default=float("inf"))
    listed, unfit = listed_ways(times, m, caps, chunks, placements, split, span=span)
    tried = [way for way in listed if way.bound_s < best_s * (1 - MARGIN)]
    out += [*found, *unfit, *(_left_out(way, best_s) for way in listed if way not in tried)]
    fitting = {(seen.name, seen.v) for seen in found if seen.peak_bytes is None or seen.makespan_s is not None}
    least_s = min(
        [way.bound_s for way in ways if (way.name, way.v) in fitting] + [way.bound_s for way in listed],
        default=float("inf"),
    )
    won = min(ran, key=lambda one: one[0])[1] if ran else None
    table, rule = None, ""
    if tried:
        if span:
            order, way = _shortest_span(tried, ways, m, caps, least_s, split)
        else:
            order, way = _list_scheduled(tried, ran, m, caps, least_s)
        listed_table = table_of_lists(way.placement, (m,), order.lists)
        peak_bytes = way.peak_bytes(m, caps, listed_table)
        assert caps is None or not caps.lack(peak_bytes)
        most_bytes = float(peak_bytes.max())
        out.append(way.candidate(makespan_s=order.makespan_s, span_s=order.span_s, peak_bytes=most_bytes))
        out += [other.candidate(why_not="list scheduling is faster elsewhere") for other in tried if other is not way]
        if (order.span_s if span else order.makespan_s) < best_s * (1 - 1e-12):
            won, table, rule = way, listed_table, order.rule
    if won is None:
        raise InfeasibleError(_nothing_fits(out, m))
    return Scheduled(
        name=won.name,
        v=won.v,
        schedule=won.schedule,
        times=won.times,
        timeline=simulate(won.table(m) if table is None else table, won.times),
        peak_bytes=won.peak_bytes(m, caps, table),
        bound_s=least_s,
        candidates=tuple(out),
        rule=rule,
        objective=objective,
    )


Ran = tuple[float, Way]
"""A way and its makespan, or its span."""


def _run(ways: Sequence[Way], m: int, caps: Caps | None, span: bool) -> tuple[list[Ran], list[Candidate]]:
    """Named schedules simulated, unless they cannot win or do not fit, and what became of each."""
    ran: list[Ran] = []
    out = []
    best_s = float("inf")
    # The lowest bound first, so that the rest is left out soon; of equals the one that was named first.
    for way in sorted(ways, key=lambda way: way.bound_s):
        assert way.schedule is not None
        if way.bound_s >= best_s * (1 - MARGIN):
            out.append(_left_out(way, best_s))
            continue
        peak_bytes = way.peak_bytes(m, caps)
        most_bytes = float(peak_bytes.max())
        lacking = "" if caps is None else caps.lack(peak_bytes)
        if lacking:
            out.append(way.candidate(peak_bytes=most_bytes, why_not=lacking))
            continue
        if span:
            timeline = simulate(way.table(m), way.times)
            makespan_s, sought_s = timeline.makespan_s, timeline.span_s
        else:
            makespan_s = sought_s = float(way.schedule.end_s(way.placement.p, m, way.v, way.times).max())
        span_s = sought_s if span else None
        out.append(way.candidate(makespan_s=makespan_s, span_s=span_s, peak_bytes=most_bytes))
        ran.append((sought_s, way))
        best_s = min(best_s, sought_s)
    return ran, out


def _list_scheduled(
    tried: Sequence[Way], ran: Sequence[Ran], m: int, caps: Caps | None, least_s: float
) -> tuple[Order, Way]:
    """The best order that greedy rules find, or that the orders of the fastest named schedules become if improved."""
    works = [way.work(m, caps) for way in tried]
    ways = {id(work): way for work, way in zip(works, tried, strict=True)}
    options = []
    for work in works:
        groups = (None,) if work.placement.v == 1 else (work.placement.p, None)
        warmups = warmup_options(work, EXTRAS)
        options.append(greedy_options(warmups, split=work.weight_s is not None, groups=groups))
    starts = []
    for makespan_s, way in sorted(ran, key=lambda one: one[0])[:IMPROVED_NAMED]:
        if 3 * m * way.placement.stages > FULL_TASKS:
            break
        table = way.table(m)
        kinds = frozenset(Kind(kind) for kind in np.unique(table.kind))
        listed = replace(way, name=f"{way.name}, improved", schedule=None)
        plain = kinds in (PLAIN, SPLIT) and table.fused is None and table.segments == 1 and way.placement.chains == 1
        if plain and (caps is None or not caps.lack(listed.peak_bytes(m, caps, table))):
            work = way.work(m, caps, split=kinds == SPLIT)
            ways[id(work)] = listed
            starts.append(order_of(table, work, makespan_s, way.name))
    order = search_orders(works, options, least_s, starts)
    return order, ways[id(order.work)]


def _shortest_span(
    tried: Sequence[Way], named: Sequence[Way], m: int, caps: Caps | None, least_s: float, split: bool
) -> tuple[Order, Way]:
    """The order of the shortest span, by greedy rules or as a named schedule with its weight gradients placed anew."""
    ways: dict[int, Way] = {}
    starts, greedy = [], []
    for way in named:
        table = way.table(m)
        kinds = frozenset(Kind(kind) for kind in np.unique(table.kind))
        plain = kinds in (PLAIN, SPLIT) and table.fused is None and table.segments == 1 and way.placement.chains == 1
        if plain and _ascending(table):
            work = way.work(m, caps, split=split)
            words = f"{way.name}, weight gradients placed" if work.weight_s is not None else f"{way.name}, placed"
            ways[id(work)] = replace(way, name=words, schedule=None)
            starts.append((work, order_of(table, work, 0.0, way.name).lists, way.name))
    for way in tried:
        work = way.work(m, caps)
        ways[id(work)] = way
        greedy += greedy_families(work)
    order = shortest_span([*given_orders(starts), *greedy], least_s)
    return order, ways[id(order.work)]


def _ascending(table: ScheduleTable) -> bool:
    """Whether every stage runs its micro-batches in order, each kind for itself."""
    key = table.stage.astype(np.int64) * (int(table.kind.max()) + 1) + table.kind
    in_order = np.argsort(key, kind="stable")
    same = key[in_order][1:] == key[in_order][:-1]
    return bool((np.diff(table.micro_batch[in_order])[same] > 0).all())


def _left_out(way: Way, best_s: float) -> Candidate:
    return way.candidate(why_not=f"takes {way.bound_s:.6g} s at least, and {best_s:.6g} s is found")


def _check(
    times: Times, m: int, caps: Caps | None, chunks: Sequence[int], placements: Sequence[str], objective: str
) -> None:
    """Raise with everything that is wrong."""
    shape = np.shape(times.forward_s)
    problems = []
    if len(shape) != 2:
        why = "one set of durations by worker and chunk"
        problems.append(Problem(what=f"forward_s has shape {shape}", why=why, fix="(workers, chunks)", field="times"))
    if m < 1:
        problems.append(Problem(what=f"m = {m}", why="micro-batches count from 1", fix="m = 1 or more", field="m"))
    if not chunks or min(chunks) < 1:
        why = "chunks per worker count from 1"
        problems.append(Problem(what=f"chunks = {tuple(chunks)}", why=why, fix="chunks = (1, 2)", field="chunks"))
    strange = [kind for kind in placements if kind not in PLACEMENTS]
    if strange:
        known = ", ".join(PLACEMENTS)
        why = f"the placements are {known}"
        problems.append(Problem(what=f"placements = {strange}", why=why, fix=known, field="placements"))
    if objective not in OBJECTIVES:
        known = " or ".join(OBJECTIVES)
        problems.append(
            Problem(what=f"objective = {objective!r}", why=f"{known} may be short", fix=known, field="objective")
        )
    if caps is not None and len(shape) == 2:
        problems += caps.problems(shape[0])
    if problems:
        raise InputError(problems)


def _nothing_fits(out: Sequence[Candidate], m: int) -> Problem:
    """What the way that comes nearest lacks."""
    counted = [found for found in out if found.peak_bytes is not None] or list(out)
    nearest = min(counted, key=lambda found: found.peak_bytes or 0.0, default=None)
    why = "nothing was allowed" if nearest is None else f"{nearest.name}, v = {nearest.v}: {nearest.why_not}"
    fix = "more capacity, smaller micro-batches, recomputation, or more schedules to choose from"
    return Problem(what=f"no order of m = {m} micro-batches fits", why=why, fix=fix, field="caps")
