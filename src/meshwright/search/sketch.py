"""Shapes of schedules without a bound of their own, bounded before their tables are built.

What holds for any order of tasks bounds a shape from few numbers; most shapes are slower than the best plan known even
so. Tables are built for the others only, schedule by schedule, in the order of these bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.schedules import Schedule
from meshwright.search.geometry import ShapeFactory, pairs
from meshwright.search.paths import Template
from meshwright.search.priced_rows import PricedRows
from meshwright.search.shape_tables import ShapeTables
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.workload import Workload


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Sketch:
    """The shapes of one schedule and number of chunks on some priced rows of one (pp, m)."""

    rows: PricedRows
    """All priced rows."""
    row: Int[np.ndarray, "rows"]
    """Numbers of the shapes' rows among the priced ones."""
    schedule: Schedule
    v: int
    recomputes: list[tuple[str, int]]
    allowed: Bool[np.ndarray, "rows recomputes"]
    """Whether the shapes can run what a row has beside its exchanges."""
    bound_s: Float[np.ndarray, "rows recomputes"]
    """Infinite where they cannot."""

    @property
    def least_s(self) -> float:
        """No plan is faster."""
        return float(self.bound_s.min())

    @property
    def plans(self) -> int:
        """Rows x shapes x the shardings of each row."""
        return int((self.rows.plans_of_rows[self.row] * self.allowed.sum(axis=1)).sum())

    def taken(self, index: Int[np.ndarray, "picked"]) -> PricedRows:
        """Some of its rows, the others left behind.

        Args:
            index: the index of them.
        """
        return self.rows.take(self.row[index])

    def build(self, factory: ShapeFactory) -> ShapeTables:
        """The shapes."""
        p, m = int(self.rows.grid.pp[0]), int(self.rows.grid.m[0])
        return ShapeTables.of([factory.sketched_shapes(self.schedule, p, m, self.v)])


def sketches(rows: PricedRows, factory: ShapeFactory, workload: Workload) -> Iterator[Sketch]:
    """All shapes of the rows that are not built at once.

    Args:
        rows: the rows of one (pp, m).
        factory: the factory of the search.
        workload: the step; rows of sections of micro-batches are priced anew.
    """
    p, m = int(rows.grid.pp[0]), int(rows.grid.m[0])
    priced = {1: rows}
    for schedule, v in factory.others(p, m):
        sections = schedule.sections()
        if sections not in priced:
            priced[sections] = PricedRows(
                rows.grid, factory, factory.model, rows.hardware, workload, rows.space, sections=sections
            )
        if factory.recomputes(p, v, schedule):
            yield sketched(priced[sections], np.arange(rows.grid.rows), factory, schedule, v)


def sketched(
    rows: PricedRows, row: Int[np.ndarray, "rows"], factory: ShapeFactory, schedule: Schedule, v: int
) -> Sketch:
    """The shapes of one schedule.

    Args:
        rows: the rows of one (pp, m), priced in the schedule's sections.
        row: the row, by number.
        factory: the factory of the search.
        schedule: the schedule that recomputes in some way.
        v: chunks per worker.
    """
    p, m = int(rows.grid.pp[0]), int(rows.grid.m[0])
    recomputes = factory.recomputes(p, v, schedule)
    templates = [factory.template(schedule, p, v, *recompute) for recompute in recomputes]
    bound_s = np.stack([_bound_s(template, m, rows, row) for template in templates], axis=1)
    pairing = np.array([pairs(schedule, p, m, v, recompute) for recompute, _ in recomputes])
    allowed = ~rows.grid.paired[row, None] | pairing
    return Sketch(
        rows=rows,
        row=row,
        schedule=schedule,
        v=v,
        recomputes=recomputes,
        allowed=allowed,
        bound_s=np.where(allowed, bound_s, np.inf),
    )


def _bound_s(template: Template, m: int, rows: PricedRows, row: Int[np.ndarray, "rows"]) -> Float[np.ndarray, " rows"]:
    costs = rows.costs
    length_s = (
        costs.forward_s[row] @ template.forward(m).T
        + costs.backward_s[row] @ template.backward(m).T
        + costs.weight_gradient_s[row] @ template.weight(m).T
        + rows.boundary.transfer_s[row, None] * template.transfers
    )
    return np.asarray(length_s.max(axis=1))
