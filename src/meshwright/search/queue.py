"""Plans that wait to be simulated, best bound first, and what the simulated ones prove about the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from meshwright.budget import spent
from meshwright.estimate.data.sync import sync_layers
from meshwright.estimate.pipeline import PricedItems, pipeline_columns
from meshwright.estimate.step import Workers, run_pipeline, step_of
from meshwright.estimate.uneven_delay import uneven_delay
from meshwright.search.block import ROUNDING, Block, Candidates
from meshwright.search.engine import Columns
from meshwright.search.shape_tables import Shape
from meshwright.search.shardings import Sharding
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.row import PlanRow
from meshwright.strategies.data import Z3

TOGETHER = 48
"""Plans simulated before the bounds of the others are looked at again."""
COMPANIONS = 16
"""Next best plans of the same shape simulated with each: a simulation takes the same time for one row as for twenty."""
EQUAL = 1e-9
"""Relative difference below which two times are equal."""
ROUNDED = 1e-8
"""Relative difference above which times are in order whatever they are rounded to."""
FRONT_STEP = 0.01
"""A plan joins the front only if it needs this much less memory than any quicker one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A plan whose time is known."""

    row: PlanRow
    time_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Candidates of one block, with their layouts."""

    block: Block
    found: Candidates
    layouts: list[tuple[int, ...]]
    """The distinct layouts of the block."""
    layout: Int[np.ndarray, "found"]
    """Each candidate's, by number."""

    def keep(self, alive: np.ndarray) -> _Waiting:
        """The candidates of a mask."""
        return _Waiting(self.block, _pick(self.found, alive), self.layouts, self.layout[alive])


@dataclass(slots=True)
class Queue:
    """Candidates of all blocks in the order of their bounds."""

    top: int
    slack: float
    """Plans up to this many times the best are simulated if nothing quicker needs as little memory; 1 for none."""
    near: float = math.inf
    """Plans above this many times the best are none of the answer."""
    waiting: list[_Waiting] = field(default_factory=list)
    best_of_layout: dict[tuple[int, ...], Simulated] = field(default_factory=dict)
    front: list[Simulated] = field(default_factory=list)
    simulated: int = 0

    @property
    def threshold_s(self) -> float:
        """No plan with a bound above this belongs to the answer."""
        times = sorted(plan.time_s for plan in self.best_of_layout.values())
        if not times or (len(times) < self.top and math.isinf(self.near)):
            return np.inf
        last_s = min([times[0] * self.near, *times[self.top - 1 : self.top]])
        return max(last_s, times[0] * self.slack) * (1.0 + EQUAL)

    def hopeful(self, columns: Columns) -> Bool[np.ndarray, "rows"]:
        """Rows of whose plans one may belong to the answer."""
        return np.asarray(columns.bound_s <= self.threshold_s)

    def add(self, block: Block, found: Candidates) -> None:
        """Let candidates of a block wait."""
        if len(found.row):
            grid = block.grid
            degrees = np.stack([grid.tp, grid.cp, grid.ep, grid.etp, grid.pp, grid.dp], axis=1)
            layouts, number = np.unique(degrees, axis=0, return_inverse=True)
            rows = [tuple(layout) for layout in layouts.tolist()]
            self.waiting.append(_Waiting(block, found, rows, number.reshape(-1)[found.row]))

    def simulate(self, *, rounds: int | None = None) -> None:
        """Simulate in the order of bounds until no waiting plan can be part of the answer, or for some rounds.

        A waiting plan is part of no answer if its bound is above the threshold, or if its layout has a plan at least as
        quick and (where a front is wanted) some plan is at least as quick and as small.
        """
        number = 0
        while self.waiting and (rounds is None or number < rounds):
            picked = self._next()
            # One round is run at any rate, so that a search out of time has an answer where there is one.
            if not len(picked) or (self.best_of_layout and spent()):
                return
            self._run(picked)
            number += 1

    def _next(self) -> list[tuple[int, int]]:
        """The best-bounded plans worth simulating, as (block, index), at most TOGETHER; drops those that are not."""
        threshold_s = self.threshold_s
        worth: list[tuple[float, float, int, int]] = []
        kept: list[_Waiting] = []
        for entry in self.waiting:
            alive = (entry.found.bound_s <= threshold_s) & self._undecided(entry)
            if alive.any():
                kept.append(entry.keep(alive))
        self.waiting = kept
        for place, entry in enumerate(kept):
            best = _least(entry.found.bound_s, entry.found.peak_bytes, TOGETHER)
            worth += [(float(entry.found.bound_s[i]), float(entry.found.peak_bytes[i]), place, int(i)) for i in best]
        worth.sort()
        # One plan of a layout at a time: the next of it may be settled by this one.
        seen: set[tuple[int, ...]] = set()
        picked = []
        for _, _, place, index in worth:
            layout = kept[place].layouts[int(kept[place].layout[index])]
            if self.slack > 1.0 or layout not in seen:
                seen.add(layout)
                picked.append((place, index))
            if len(picked) == TOGETHER:
                break
        return picked

    def _undecided(self, entry: _Waiting) -> np.ndarray:
        """Candidates that could still be the best of their layout, or part of the front."""
        best = [self.best_of_layout.get(layout) for layout in entry.layouts]
        times = np.array([np.inf if plan is None else plan.time_s for plan in best])
        undecided = entry.found.bound_s * (1.0 + EQUAL) < times[entry.layout]
        if self.slack > 1.0 and self.front:
            time_s = np.array([plan.time_s for plan in self.front])
            peak = np.array([plan.peak_bytes for plan in self.front])
            # The front is sorted by time, its memory falls: the last plan as quick as the bound needs the least.
            place = np.searchsorted(time_s, entry.found.bound_s * (1.0 + EQUAL), side="right") - 1
            covered = (place >= 0) & (peak[np.maximum(place, 0)] * (1.0 - FRONT_STEP) <= entry.found.peak_bytes)
            undecided |= ~covered
        elif self.slack > 1.0:
            undecided[:] = True
        return undecided

    def _run(self, picked: list[tuple[int, int]]) -> None:
        by_shape: dict[tuple[int, int], list[int]] = {}
        for place, index in picked:
            by_shape.setdefault((place, int(self.waiting[place].found.shape[index])), []).append(index)
        gone: dict[int, list[int]] = {}
        learnt: list[Simulated] = []
        for (place, shape), indices in by_shape.items():
            entry = self.waiting[place]
            indices = _with_companions(entry.found, shape, indices)
            own = entry.block.shapes.shape(shape)
            time_s, peak = simulate_plans(entry.block, own, entry.found, np.array(indices))
            self.simulated += len(indices)
            # Beside a backward of the micro-batch before, a worker keeps more than its bound knows.
            has_room = peak <= entry.block.limit_bytes * (1.0 + ROUNDING)
            for number, index in enumerate(indices):
                if not has_room[number]:
                    continue
                found = entry.found
                choice: Sharding = entry.block.shardings[int(found.sharding[index])]
                row = entry.block.plan_row(int(found.row[index]), own, choice)
                learnt.append(Simulated(row=row, time_s=float(time_s[number]), peak_bytes=float(peak[number])))
            gone.setdefault(place, []).extend(indices)
        self._learn(learnt)
        for place, out in gone.items():
            entry = self.waiting[place]
            alive = np.ones(len(entry.found.row), dtype=bool)
            alive[out] = False
            self.waiting[place] = entry.keep(alive)

    def _learn(self, plans: list[Simulated]) -> None:
        for plan in plans:
            known = self.best_of_layout.get(plan.row.layout)
            # Names are made only where times may be equal.
            may = known is None or plan.time_s <= known.time_s * (1.0 + ROUNDED)
            if may and (known is None or _order(plan) < _order(known)):
                self.best_of_layout[plan.row.layout] = plan
        if self.slack > 1.0:
            self.front = pareto_front([*self.front, *plans])

    @property
    def least_waiting_s(self) -> float:
        """No plan that still waits takes fewer seconds."""
        return min((float(entry.found.bound_s.min()) for entry in self.waiting if len(entry.found.row)), default=np.inf)

    def best(self) -> list[Simulated]:
        """The best plan of each of the best layouts."""
        plans = sorted(self.best_of_layout.values(), key=_order)[: self.top]
        return [plan for plan in plans if plan.time_s <= plans[0].time_s * self.near]


def _least(
    bound_s: Float[np.ndarray, "found"], peak_bytes: Float[np.ndarray, "found"], count: int
) -> Int[np.ndarray, "least"]:
    """The candidates with the lowest bounds, in order; of equal bounds those that need less memory."""
    if len(bound_s) > count:
        limit = np.partition(bound_s, count)[count]
        candidates = np.flatnonzero(bound_s <= limit)
    else:
        candidates = np.arange(len(bound_s))
    return candidates[np.lexsort((peak_bytes[candidates], bound_s[candidates]))][:count]


def _with_companions(found: Candidates, shape: int, picked: list[int]) -> list[int]:
    """Picked candidates of a shape and the best-bounded others of it that wait."""
    others = found.shape == shape
    others[picked] = False
    numbers = np.flatnonzero(others)
    least = _least(found.bound_s[numbers], found.peak_bytes[numbers], COMPANIONS * len(picked))
    return [*picked, *numbers[least].tolist()]


def pareto_front(plans: list[Simulated]) -> list[Simulated]:
    """Plans by time, each needing at least FRONT_STEP less memory than every quicker one."""
    from meshwright.search.points import thinned  # a search for the quickest plan alone has no front

    return thinned(sorted(plans, key=_order), lambda plan: (plan.time_s, plan.peak_bytes), FRONT_STEP)


def _order(plan: Simulated) -> tuple[float, float, str]:
    """Quicker first; among equals the one that needs less memory, then by name."""
    return (float(f"{plan.time_s:.9g}"), plan.peak_bytes, plan.row.format())


def _pick(found: Candidates, alive: np.ndarray) -> Candidates:
    return Candidates(
        row=found.row[alive],
        shape=found.shape[alive],
        sharding=found.sharding[alive],
        bound_s=found.bound_s[alive],
        peak_bytes=found.peak_bytes[alive],
    )


def simulate_plans(
    block: Block, shape: Shape, found: Candidates, indices: Int[np.ndarray, "picked"]
) -> tuple[Float[np.ndarray, "picked"], Float[np.ndarray, "picked"]]:
    """Exact step time and peak memory of plans of one shape.

    Args:
        block: the block whose plans they are.
        shape: the pipeline shape they share.
        found: candidates of the block.
        indices: the plans to simulate, by number.

    Returns:
        Seconds and bytes per plan.
    """
    rows, choices = found.row[indices], found.sharding[indices]
    sharding = block.sharding_columns(choices, rows)
    costs, columns = block.costs.take(rows), block.columns.take(rows)
    sharded = bool((sharding.zero == Z3).any())
    sync = sync_layers(costs, columns, sharding, block.hardware, block.workload, anything=sharded)
    pipeline = pipeline_columns(
        schedule=shape.schedule,
        micro_batches=shape.m,
        counts=shape.counts,
        items=PricedItems(
            costs=costs,
            sync=sync,
            whole=block.whole,
            edges=block.edges,
            uneven_delay=uneven_delay(
                shape.schedule, (shape.p, shape.m, shape.v), columns.mbs.astype(float), block.workload
            ),
        ),
        boundary=block.boundary.take(rows),
        sharding=sharding,
        groups=block.groups.take(rows),
        offload_weights=np.full(len(rows), block.rows.away.weights),
    )
    ran = run_pipeline(pipeline, transfers_apart=False)
    step = step_of([ran], Workers.alike(block.hardware, shape.p), block.workload)
    return step.step_time_s, step.peak_bytes.max(axis=1)
