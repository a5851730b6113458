"""Rows under schedules without a bound of their own, bounded from their factors before any row is priced.

Where there is a time to beat, most rows are slower under most schedules even if their workers never waited for more
than every order makes them wait. Rows are priced for the schedules that are left, and sketched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from meshwright.budget import spent
from meshwright.estimate.hardware import Hardware
from meshwright.schedules import Schedule
from meshwright.search.bound import Factored, RowBounds
from meshwright.search.fitting import ROUNDING, Fitting
from meshwright.search.geometry import ShapeFactory, pairs
from meshwright.search.grid import Grid
from meshwright.search.priced_rows import PricedRows
from meshwright.search.result import SpaceCounts
from meshwright.search.shardings import ordered_shardings, shardings_for
from meshwright.search.sketch import Sketch, sketched
from meshwright.search.space import Space
from meshwright.search.table import of_each_pair, per_pair
from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload


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
    beat_s: float

    @property
    def time_to_beat_s(self) -> float:
        """A plan above this is none of the answer."""

    def count_slow(self, plans: int) -> None:
        """Count plans whose schedule alone takes longer than the time to beat."""

    def price_sketch(self, sketch: Sketch) -> None:
        """Price what a sketch leaves in question."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Outline:
    """The rows of one (pp, m) that one schedule and number of chunks may run within the time to beat."""

    schedule: Schedule
    v: int
    row: Int[np.ndarray, "rows"]
    """By number in the grid."""
    bound_s: Float[np.ndarray, "rows"]
    plans: Int[np.ndarray, "rows"]
    """How many each row stands for."""

    @property
    def least_s(self) -> float:
        """No plan is faster."""
        return float(self.bound_s.min())


def outlines(run: Asking, grid: Grid, row: Int[np.ndarray, "rows"]) -> list[Outline]:
    """All schedules of rows that may keep within the time to beat, the most promising first; others are counted.

    Args:
        run: over a space of such schedules.
        grid: rows.
        row: which of them.
    """
    fittings: dict[int, Fitting] = {}
    found, here_grid = [], grid.take(row)
    choices = per_pair(here_grid.dp, here_grid.cp, lambda dp, cp: len(shardings_for(dp, cp, run.space)))
    if here_grid.first.any():
        names = per_pair(here_grid.dp, here_grid.cp, lambda dp, cp: ordered_shardings(dp, cp, run.space))
        choices = np.where(here_grid.first, names, choices)
    paired = here_grid.paired
    host_s = np.broadcast_to(0.0 if run.bounds is None else run.bounds.host_update_s, grid.rows)[row]
    for p, m, here in of_each_pair(here_grid.pp, here_grid.m):
        if limit := spent():
            # No order of the rows that are left is quicker than what bounds them all.
            run.counts.stop(limit, 0.0 if run.bounds is None else float(run.bounds.time_s[row].min()))
            break
        for schedule, v in run.factory.others(p, m):
            recomputes = run.factory.recomputes(p, v, schedule)
            pairing = sum(pairs(schedule, p, m, v, recompute) for recompute, _ in recomputes)
            plans = choices[here] * np.where(paired[here], pairing, len(recomputes))
            some = here[plans > 0]
            if not len(some):
                continue
            sections = schedule.sections()
            if sections not in fittings:
                factored = Factored(grid, run.hardware, run.workload, sections=sections)
                fittings[sections] = Fitting(factored, run.factory.items, run.model, run.limit_bytes)
            # Where no layer recomputes is no slower than any other way.
            least = recomputes[:1] if recomputes[0][0] == "none" else recomputes
            templates = [run.factory.template(schedule, p, v, *recompute) for recompute in least]
            bound_s = fittings[sections].least_s(row[some], m, templates) + host_s[some]
            good = bound_s * (1.0 - ROUNDING) <= run.beat_s
            run.count_slow(int(plans[plans > 0][~good].sum()))
            if good.any():
                one = Outline(
                    schedule=schedule, v=v, row=row[some[good]], bound_s=bound_s[good], plans=plans[plans > 0][good]
                )
                found.append(one)
    return sorted(found, key=lambda one: one.least_s)


def explore_outlines(run: Asking, grid: Grid, row: Int[np.ndarray, "rows"]) -> None:
    """Price and sketch the rows of each outline that what has been found leaves in question.

    Args:
        run: over a space of schedules without a bound of their own, with a time to beat.
        grid: rows.
        row: which of them.
    """
    every = outlines(run, grid, row)
    priced = _Priced(run, grid, every)
    for one in every:
        if limit := spent():
            run.counts.stop(limit, one.least_s)
            return
        good = one.bound_s * (1.0 - ROUNDING) <= run.time_to_beat_s
        run.count_slow(int(one.plans[~good].sum()))
        if good.any():
            rows, numbers = priced.rows(one, one.row[good])
            sketch = sketched(rows, numbers, run.factory, one.schedule, one.v)
            run.price_sketch(sketch)


PRICED_AT_ONCE = 1 << 16
"""Rows that are kept priced for other outlines: a quarter of a gigabyte for a model of a dozen kinds of items."""


class _Priced:
    """Rows priced when they are first asked for, together with others of the same sections; those that were not asked
    for longest make room for others."""

    def __init__(self, run: Asking, grid: Grid, every: list[Outline]) -> None:
        self.run, self.grid = run, grid
        self.wanted: dict[tuple[int, int, int], list[Outline]] = {}
        for one in every:
            self.wanted.setdefault(self._key(one), []).append(one)
        self.made: dict[tuple[int, int, int], tuple[Int[np.ndarray, "rows"], PricedRows]] = {}

    def rows(self, one: Outline, row: Int[np.ndarray, "rows"]) -> tuple[PricedRows, Int[np.ndarray, "rows"]]:
        """Priced rows, and the numbers there of rows of an outline, which are by number in the grid."""
        key = self._key(one)
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

    def _key(self, one: Outline) -> tuple[int, int, int]:
        first = one.row[0]
        return int(self.grid.pp[first]), int(self.grid.m[first]), one.schedule.sections()
