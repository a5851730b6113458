"""Rows under schedules without a bound of their own, bounded from their factors before any row is priced.

    outline   rows of one (pp, m) under one schedule, bounded by what every order of its tasks makes workers wait for
    narrowed  without those whose worker 0 has no room, and bounded by the schedule's own order, recompute by recompute
    sketch    what is left, priced together with the rows of other schedules

Each is looked at in the order of the bounds, so that most rows are never priced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol, runtime_checkable

import numpy as np

from meshwright.budget import spent
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.states import has_extras
from meshwright.schedules import Schedule
from meshwright.search.bound import Factored, RowBounds
from meshwright.search.explored import SHAPE_BEATEN, SHAPE_TOO_LARGE
from meshwright.search.fitting import ROUNDING, Fitting, WorkerItems
from meshwright.search.geometry import ShapeFactory, pairs
from meshwright.search.grid import Grid
from meshwright.search.priced_rows import PricedRows
from meshwright.search.result import SpaceCounts
from meshwright.search.shape_tables import ShapeTables, one_micro_batch
from meshwright.search.shardings import ordered_shardings, shardings_for
from meshwright.search.sketch import Sketch, sketched
from meshwright.search.space import Space
from meshwright.search.table import of_each_pair, per_pair
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

Group = tuple[int, int, int]
"""Workers, micro-batches and sections of each: what rows are priced by."""


@runtime_checkable
class Asking(Protocol):
    """A search over a space of schedules without a bound of their own, as far as outlines need it."""

    model: ModelSpec
    workload: Workload
    hardware: Hardware
    space: Space
    factory: ShapeFactory
    bounds: RowBounds | None
    counts: SpaceCounts
    limit_bytes: float
    least_bytes: float
    beat_s: float

    @property
    def time_to_beat_s(self) -> float:
        """A plan above this is none of the answer."""

    def price_sketch(self, sketch: Sketch) -> None:
        """Price what a sketch leaves in question."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Outline:
    """The rows of one (pp, m) that one schedule and number of chunks may run within the time to beat."""

    schedule: Schedule
    v: int
    row: Int[np.ndarray, "rows"]
    """Number of the row in the grid."""
    bound_s: Float[np.ndarray, "rows"]
    plans: Int[np.ndarray, "rows"]
    """How many each row stands for."""

    @property
    def least_s(self) -> float:
        """No plan is faster."""
        return float(self.bound_s.min())

    def within(self, run: Asking) -> Outline | None:
        """What is left below the time to beat, the rest counted; None where nothing is."""
        good = self.good(run)
        if good.all():
            return self
        run.counts.pruned[SHAPE_BEATEN] += int(self.plans[~good].sum())
        return self.take(good) if good.any() else None

    def good(self, run: Asking) -> Bool[np.ndarray, "rows"]:
        """Rows that may keep within the time to beat."""
        return self.bound_s * (1.0 - ROUNDING) <= run.time_to_beat_s

    def take(self, here: Bool[np.ndarray, "rows"]) -> Outline:
        """Some of its rows."""
        return replace(self, row=self.row[here], bound_s=self.bound_s[here], plans=self.plans[here])


class Outlines:
    """The outlines of some rows, and what bounds them from the factors of their costs."""

    def __init__(self, run: Asking, grid: Grid) -> None:
        """Outline nothing yet.

        Args:
            run: the run over a space of schedules without a bound of their own.
            grid: rows.
        """
        self.run, self.grid = run, grid
        host_s = 0.0 if run.bounds is None else run.bounds.host_update_s
        self.host_s = np.broadcast_to(host_s, grid.rows)
        self.paired = grid.paired
        self.by_parameters = run.model.tuning is None and not has_extras(run.model, run.workload)
        """Whether worker 0's parameters and activations alone say that a shape does not fit."""
        self.fittings: dict[int, Fitting] = {}

    def fitting(self, sections: int) -> Fitting:
        """Costs of rows whose micro-batches are run in so many sections, from their factors."""
        if sections not in self.fittings:
            run = self.run
            factored = Factored(self.grid, run.hardware, run.workload, sections=sections)
            self.fittings[sections] = Fitting(factored, run.factory.items, run.model, run.limit_bytes)
        return self.fittings[sections]

    def of(self, row: Int[np.ndarray, "rows"]) -> Iterator[Outline]:
        """All schedules of rows that may keep within the time to beat; others are counted.

        Args:
            row: the rows, by number in the grid.
        """
        run, here_grid = self.run, self.grid.take(row)
        choices = per_pair(here_grid.dp, here_grid.cp, lambda dp, cp: len(shardings_for(dp, cp, run.space)))
        if here_grid.first.any():
            names = per_pair(here_grid.dp, here_grid.cp, lambda dp, cp: ordered_shardings(dp, cp, run.space))
            choices = np.where(here_grid.first, names, choices)
        paired = here_grid.paired
        for p, m, here in of_each_pair(here_grid.pp, here_grid.m):
            if limit := spent():
                # No order of the rows that are left is quicker than what bounds them all.
                run.counts.stop(limit, 0.0 if run.bounds is None else float(run.bounds.time_s[row].min()))
                return
            for schedule, v in run.factory.others(p, m):
                recomputes = run.factory.recomputes(p, v, schedule)
                pairing = sum(pairs(schedule, p, m, v, recompute) for recompute, _ in recomputes)
                plans = choices[here] * np.where(paired[here], pairing, len(recomputes))
                some = row[here[plans > 0]]
                if not len(some):
                    continue
                # Where no layer recomputes is no slower than any other way.
                least = recomputes[:1] if recomputes[0][0] == "none" else recomputes
                templates = [run.factory.template(schedule, p, v, *recompute) for recompute in least]
                bound_s = self.fitting(schedule.sections()).least_s(some, m, templates) + self.host_s[some]
                one = Outline(schedule=schedule, v=v, row=some, bound_s=bound_s, plans=plans[plans > 0])
                left = one.within(run)
                if left is not None:
                    yield left

    def narrowed(self, one: Outline) -> Outline | None:
        """The rows of an outline of which some way to recompute fits and is quick enough; None where none is.

        Args:
            one: bounded by what holds for any order.
        """
        run, factory, (p, m, sections) = self.run, self.run.factory, self.group(one)
        schedule, v, fitting = one.schedule, one.v, self.fitting(sections)
        ways = tuple(factory.recomputes(p, v, schedule))
        pairing = np.array([pairs(schedule, p, m, v, recompute) for recompute, _ in ways])
        templates = [factory.template(schedule, p, v, *recompute) for recompute in ways]
        length_s = fitting.any_order_s(one.row, m, templates)
        able = np.where(~self.paired[one.row, None] | pairing, length_s, np.inf)
        # Few rows are left whose order of tasks has to be made.
        left = self._with_room(one, able, one_micro_batch(schedule, factory.counts(schedule, p, v, ways)))
        if left is not None:
            left = self._with_room(*left, factory.fullest_of(schedule, p, m, v, ways))
        if left is None:
            return None
        one, able = left
        shapes = ShapeTables.of([factory.sketched_shapes(schedule, p, m, v)])
        return self._bounded(one, np.maximum(able, fitting.paths_s(one.row, shapes))).within(run)

    def _with_room(
        self, one: Outline, way_s: Float[np.ndarray, "rows ways"], held: WorkerItems
    ) -> tuple[Outline, Float[np.ndarray, "rows ways"]] | None:
        """The rows of an outline and the bounds of their ways, infinite for those with which worker 0 has no room.

        Args:
            one: the outline.
            way_s: bound of each way to recompute.
            held: the bytes that worker 0 holds.
        """
        run = self.run
        if self.by_parameters:
            room, least_bytes = self.fitting(one.schedule.sections()).has_room(one.row, held)
            way_s = np.where(room, way_s, np.inf)
            some = np.isfinite(way_s).any(axis=1)
            run.counts.pruned[SHAPE_TOO_LARGE] += int(one.plans[~some].sum())
            run.least_bytes = min(run.least_bytes, least_bytes)
            one, way_s = one.take(some), way_s[some]
        one = self._bounded(one, way_s)
        good = one.good(run)
        run.counts.pruned[SHAPE_BEATEN] += int(one.plans[~good].sum())
        return (one.take(good), way_s[good]) if good.any() else None

    def _bounded(self, one: Outline, way_s: Float[np.ndarray, "rows ways"]) -> Outline:
        """An outline bounded by the quickest way of each row."""
        return replace(one, bound_s=np.maximum(one.bound_s, way_s.min(axis=1) + self.host_s[one.row]))

    def group(self, one: Outline) -> Group:
        """What its rows are priced with."""
        first = one.row[0]
        return int(self.grid.pp[first]), int(self.grid.m[first]), one.schedule.sections()


def explore_outlines(run: Asking, grid: Grid, row: Int[np.ndarray, "rows"]) -> None:
    """Price and sketch the rows of each outline that what has been found leaves in question.

    Args:
        run: the run over a space of schedules without a bound of their own, with a time to beat.
        grid: rows.
        row: the number of the row.
    """
    every, number = Outlines(run, grid), count()
    groups: dict[Group, list[Outline]] = {}
    for one in every.of(row):
        groups.setdefault(every.group(one), []).append(one)
    priced = _Priced(run, grid)
    waiting: list[tuple[float, int, Group, Outline | None]] = [
        (min(one.least_s for one in group), next(number), key, None) for key, group in groups.items()
    ]
    heapify(waiting)
    while waiting:
        least_s, _, key, outline = heappop(waiting)
        if outline is None:
            # Rows are priced for all schedules of a group that want them.
            left = []
            for one in groups.pop(key):
                if limit := spent():
                    run.counts.stop(limit, least_s)
                    return
                left += [narrow for near in [one.within(run)] if near and (narrow := every.narrowed(near))]
            priced.wanted[key] = left
            for one in left:
                heappush(waiting, (one.least_s, next(number), key, one))
            continue
        if limit := spent():
            run.counts.stop(limit, least_s)
            return
        near = outline.within(run)
        if near is not None:
            rows, numbers = priced.rows(key, near.row)
            run.price_sketch(sketched(rows, numbers, run.factory, near.schedule, near.v))


PRICED_AT_ONCE = 1 << 16
"""Rows that are kept priced for other outlines: a quarter of a gigabyte for a model of a dozen kinds of items."""


class _Priced:
    """Rows priced when they are first asked for, together with others of the same sections; those that were not asked
    for longest make room for others."""

    def __init__(self, run: Asking, grid: Grid) -> None:
        self.run, self.grid = run, grid
        self.wanted: dict[Group, list[Outline]] = {}
        self.made: dict[Group, tuple[Int[np.ndarray, "rows"], PricedRows]] = {}

    def rows(self, key: Group, row: Int[np.ndarray, "rows"]) -> tuple[PricedRows, Int[np.ndarray, "rows"]]:
        """Priced rows, and the numbers there of rows of a group, which are by number in the grid."""
        if key not in self.made:
            limit_s = self.run.time_to_beat_s
            wanted = [other.row[other.bound_s * (1.0 - ROUNDING) <= limit_s] for other in self.wanted[key]]
            numbers = np.unique(np.concatenate(wanted))
            run, grid = self.run, self.grid.take(numbers)
            while self.made and sum(len(kept) for kept, _ in self.made.values()) + len(numbers) > PRICED_AT_ONCE:
                self.made.pop(next(iter(self.made)))
            rows = PricedRows(grid, run.factory, run.model, run.hardware, run.workload, run.space, sections=key[2])
            self.made[key] = numbers, rows
        numbers, rows = self.made[key] = self.made.pop(key)
        return rows, np.searchsorted(numbers, row)
