"""The exact search of one space of plans, pruned by bounds that cannot lose the best plan, decided by simulation.

    rows     every legal (tp, cp, ep, etp, pp, dp, mbs, overlap), each with a lower bound over all its settings
    sketches shapes of schedules without a bound of their own, bounded by what holds for any order of tasks
    blocks   rows of one pp x shapes (schedule, chunks, recompute) x shardings, bounded by broadcasting
    plans    those whose bound is below the best simulated plans are simulated, in the order of their bounds

A row, pair or plan is dropped only if its bound is above the time of plans already simulated, or it cannot fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from meshwright.budget import spent
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.layers.states import has_extras
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plans
from meshwright.estimate.result import StepEstimate
from meshwright.search.axes import first_ways, paired_ways, ways_of
from meshwright.search.block import Block
from meshwright.search.bound import RowBounds
from meshwright.search.engine import explore
from meshwright.search.explored import ROW_BEATEN, SHAPE_BEATEN, SHAPE_TOO_LARGE, GridRows, OpenRows
from meshwright.search.fitting import Fitting
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid
from meshwright.search.legal_rows import build_grid, most_offload
from meshwright.search.priced_rows import PricedRows, priced_together
from meshwright.search.queue import Queue, Simulated
from meshwright.search.result import FoundPlan, PlanCertificate, SearchResult, SpaceCounts
from meshwright.search.shape_tables import ShapeTables
from meshwright.search.shardings import ordered_shardings, shardings_for
from meshwright.search.space import MOST_CHUNKS, Space, chunk_options
from meshwright.search.table import distinct_values, of_each_pair, per_pair
from meshwright.search.watching import SpaceWatch, found, watcher
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.lengths import DYNAMIC
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

if TYPE_CHECKING:
    from meshwright.search.sketch import Sketch

FEW = 256
"""Rows of which it takes no less to say which are worth pricing than to price them."""
ROW_TOO_LARGE = "row: states exceed memory"
SIMULATED = "simulated"
"""Effort of a certificate: plans run through the event simulator."""
FRONT_SLACK = 1.1
"""The front of time and memory reaches to plans this much slower than the best."""


class SpaceSearch:
    """One run over one space."""

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space, top: int, *, pareto: bool
    ) -> None:
        self.model, self.cluster, self.workload, self.space = model, cluster, workload, space
        self.hardware: Hardware = hardware_of(cluster.groups[0], workload)
        self.factory = ShapeFactory.of(model, workload, space)
        self.in_order = all(schedule.bound_by_formula for schedule in self.factory.schedules)
        self.queue = Queue(top, FRONT_SLACK if pareto else 1.0, space.near)
        self.plain: PlainRows | None = None
        """Rows of this tensor strategy and their bounds where nothing is away."""
        self.beat_s = np.inf
        """A plan that is slower even if no layer recomputes is not wanted: other spaces have enough quicker ones."""
        self.limit_bytes = self.hardware.memory_bytes * (1.0 if space.tight else 1.0 - TIGHT_SHARE)
        self.shapes: dict[tuple[int, ...], ShapeTables | None] = {}
        self.bounds: RowBounds | None = None
        self.fitting: Fitting | None = None
        """What says of rows whether a shape fits them, made when it is first asked."""
        self.counts = SpaceCounts()
        watch = watcher()
        self.watch: SpaceWatch | None = None if watch is None else watch.space()
        self.rows_stopped = ""
        """The limit for which legal rows are not looked at."""
        self.least_bytes = np.inf
        """No plan that was looked at for its memory needs less."""

    @property
    def may_fit_tightly(self) -> bool:
        """Whether a plan may fit that leaves less than the usual reserve."""
        host = self.space.pinned("offload") not in (None, ("none",))
        return host or self.least_bytes <= self.hardware.memory_bytes

    @property
    def sketched_only(self) -> bool:
        """Whether no schedule brings a bound of its own, and no plan has only one worker."""
        workers = self.space.pinned("pp")
        alone = workers is None or 1 in workers
        return not alone and not any(schedule.bound_by_formula for schedule in self.factory.schedules)

    @property
    def time_to_beat_s(self) -> float:
        """A plan above this is none of the answer: of this space, or of all."""
        return min(self.queue.threshold_s, self.beat_s)

    def run(self, started: float) -> SearchResult:
        """Search; `started` is when the clock of the certificate began."""
        grid, plans = self._grid()
        if grid.rows:
            self.bounds = bounds = self._bounds(grid)
            hopeless = bounds.peak_bytes > self.limit_bytes
            self.least_bytes = float(bounds.peak_bytes[hopeless].min(initial=np.inf))
            self.counts.pruned[ROW_TOO_LARGE] += int(plans[hopeless].sum())
            beaten = ~hopeless & (bounds.time_s > self.beat_s)
            self.counts.pruned[ROW_BEATEN] += int(plans[beaten].sum())
            row = np.flatnonzero(~hopeless & ~beaten & (plans > 0))
            if len(row):
                if self.beat_s < np.inf and (limit := spent()):
                    # There is an answer already; nothing of this space is quicker than its rows' bounds.
                    self.counts.stop(limit, float(bounds.time_s[row].min()))
                elif self.sketched_only and self.beat_s < np.inf:
                    from meshwright.search.outlines import explore_outlines  # few searches open the axis of schedules

                    explore_outlines(self, grid, row)
                else:
                    rows = GridRows(run=self, grid=grid, row=row, bound_s=bounds.time_s[row], plans=plans[row])
                    explore(rows, self.queue, self.counts)
            if not grid.offload and not self.rows_stopped:
                self.plain = PlainRows(grid=grid, plans=plans, time_s=bounds.time_s, space=self.counts.space)
        self.queue.simulate()
        return self._result(started)

    def _grid(self) -> tuple[Grid, Int[np.ndarray, "rows"]]:
        """The rows, and how many plans each stands for; without those that are beaten with nothing away already."""
        if self.plain is None:
            ways = ways_of(self.space, self.workload.expert_load)
            grid = self._grid_in_ways(ways) if self.beat_s < np.inf and len(ways) > 1 else self._built()
            plans = self._plans_of_row(grid)
            self.counts.space += int(plans.sum())
            return grid, plans
        plain = self.plain
        self.counts.space = plain.space
        # Copies to the host and updates there only add to a step.
        left = plain.time_s <= self.beat_s
        self.counts.pruned[ROW_BEATEN] += plain.space - int(plain.plans[left].sum())
        return replace(plain.grid.take(left), offload=most_offload(self.space)), plain.plans[left]

    def _built(self, ways: Int[np.ndarray, "ways"] | None = None) -> Grid:
        """All legal rows, or as many of them as the limits have room for."""
        grid = build_grid(self.model, self.workload, self.cluster.devices, self.space, ways)
        self.rows_stopped = grid.stopped
        return grid

    def _grid_in_ways(self, ways: Int[np.ndarray, "ways"]) -> Grid:
        """The rows that the best of all ways to reach experts leaves below the time to beat; the others are counted."""
        grid = self._built(ways[:1])
        if not grid.rows:
            return grid
        left = self._bounds(grid, ways).time_s <= self.beat_s
        beaten = grid.take(~left)
        plans = int(self._plans_of_row(beaten, ways).sum())
        self.counts.space += plans
        self.counts.pruned[ROW_BEATEN] += plans
        return grid.take(left).in_ways(ways)

    def _bounds(self, grid: Grid, ways: Int[np.ndarray, "ways"] | None = None) -> RowBounds:
        """What bounds the plans of rows under the schedules of the space; of each way, where rows stand for several."""
        chunked = any(chunk_options(schedule, MOST_CHUNKS) != (1,) for schedule in self.factory.schedules)
        return RowBounds(
            grid,
            self.model,
            self.hardware,
            self.workload,
            any_order=not self.in_order,
            chunked=chunked,
            # What is worth pricing is told by shape.
            each_chunked=False,
            ways=ways,
        )

    def _plans_of_row(self, grid: Grid, ways: Int[np.ndarray, "ways"] | None = None) -> Int[np.ndarray, "rows"]:
        """How many plans each row stands for: shapes of its (pp, m) times shardings of its (dp, cp).

        Args:
            grid: rows.
            ways: the ways that each row with experts on several ranks stands for; its own if not given.
        """
        if not grid.rows:
            return np.zeros(0, dtype=np.int64)
        shapes = per_pair(grid.pp, grid.m, self.factory.count)
        shardings = per_pair(grid.dp, grid.cp, lambda dp, cp: len(shardings_for(dp, cp, self.space)))
        paired, first = (grid.paired, grid.first) if ways is None else (paired_ways(ways), first_ways(ways))
        both = per_pair(grid.pp, grid.m, self.factory.count_paired) if paired.any() else shapes
        ordered = (
            per_pair(grid.dp, grid.cp, lambda dp, cp: ordered_shardings(dp, cp, self.space))
            if first.any()
            else shardings
        )
        if ways is None:
            return np.where(paired, both, shapes) * np.where(first, ordered, shardings)
        # Ways that run alike stand for as many plans each: four products, whatever their number.
        alike = Counter(zip(paired.tolist(), first.tolist(), strict=True))
        every = sum(
            number * (both if beside else shapes) * (ordered if before else shardings)
            for (beside, before), number in alike.items()
        )
        return np.where(grid.ep > 1, every, shapes * shardings)

    def opened(self, grid: Grid) -> Iterator[OpenRows]:
        """Rows with the shapes that fit them, the best of their plans simulated as they are explored.

        Shapes of schedules without a bound of their own come after all others.
        """
        kept, blocks = [], []
        for rows in self.rows(grid):
            if self.queue.best_of_layout and (limit := spent()):
                # The rows that are left are bounded where they are explored.
                self.counts.stop(limit, np.inf)
                break
            block = self.block(rows)
            if block is not None:
                blocks.append(block)
            if blocks and np.isinf(self.queue.threshold_s):
                # Whatever time there is to beat spares the next blocks most of their plans.
                yield OpenRows.of(self, blocks)
                blocks = []
            # Tables of rows that nobody needs again make room for the next ones in the cache.
            if not self.in_order:
                kept.append(rows)
        if blocks:
            yield OpenRows.of(self, blocks)
        self.queue.simulate(rounds=2)
        self._tell()
        if kept:
            from meshwright.search.sketch import sketches

            sketched = [found for rows in kept for found in sketches(rows, self.factory, self.workload)]
            for sketch in sorted(sketched, key=lambda found: found.least_s):
                if limit := spent():
                    self.counts.stop(limit, float(sketch.least_s))
                    break
                self.price_sketch(sketch)

    def worth_pricing(self, rows: GridRows) -> GridRows:
        """The rows that a shape fits which is quick enough; few rows are priced as soon as they are looked at.

        Rows that schedules without a bound of their own may run are all kept.
        """
        if not self.in_order or len(rows.row) <= FEW or self.bounds is None:
            return rows
        if self.fitting is None:
            self.fitting = Fitting(self.bounds.factored, self.factory.items, self.model, self.limit_bytes)
        grid = rows.grid.take(rows.row)
        memory = self.model.tuning is None and not has_extras(self.model, self.workload)
        worth = np.zeros(grid.rows, dtype=bool)
        for pp, m, here in of_each_pair(grid.pp, grid.m):
            shapes = self.shapes_of(pp, m)
            if shapes is None:
                continue
            fits, quick, least_bytes = self.fitting.rows(
                rows.row[here], shapes, self.queue.threshold_s, self.beat_s, memory=memory
            )
            worth[here] = quick
            self.least_bytes = min(self.least_bytes, least_bytes)
            self.counts.pruned[SHAPE_TOO_LARGE] += int(rows.plans[here[~fits]].sum())
            self.counts.pruned[SHAPE_BEATEN] += int(rows.plans[here[fits & ~quick]].sum())
        return rows.take(worth)

    def rows(self, grid: Grid) -> Iterator[PricedRows]:
        """The rows priced, all at once, and those of each block together."""
        if not grid.rows:
            return
        priced = PricedRows(grid, self.factory, self.model, self.hardware, self.workload, self.space)
        for here in priced_together(grid, self.factory):
            yield priced.take(here)

    def block(self, rows: PricedRows) -> Block | None:
        """Rows with all shapes whose schedules bring a bound of their own; None if there are none that may fit."""
        whole = self.whole_block(rows)
        if whole is None:
            return None
        plans = whole.plans(whole.allowed & ~whole.open)
        self.counts.pruned[SHAPE_TOO_LARGE] += int(plans.sum())
        self.least_bytes = min(self.least_bytes, whole.least_bytes)
        some = whole.open.any(axis=1)
        if not some.any():
            return None
        block = whole if some.all() else whole.take(np.flatnonzero(some))
        if self.beat_s < np.inf:
            beaten = block.open & (block.refined_bounds_s() > self.beat_s)
            self.counts.pruned[SHAPE_BEATEN] += int(block.plans(beaten).sum())
            block.open = block.open & ~beaten
        return block if block.open.any() else None

    def whole_block(self, rows: PricedRows) -> Block | None:
        """The same, whether they fit or not."""
        shapes = self.shapes_of(int(rows.grid.pp[0]), *distinct_values(rows.grid.m)[0].tolist())
        return None if shapes is None else Block(rows, shapes)

    def shapes_of(self, pp: int, *micro_batches: int) -> ShapeTables | None:
        """All shapes of so many workers and micro-batches, where there are any; made once."""
        key = pp, *micro_batches
        if key not in self.shapes:
            self.shapes[key] = self.factory.shapes(pp, *micro_batches)
            if limit := spent():
                # Some shapes may be missing: the rows are bounded where they are explored.
                self.counts.stop(limit, np.inf)
        return self.shapes[key]

    def price_sketch(self, sketch: Sketch) -> None:
        """Build the shapes of a sketch for the rows that it leaves in question, and simulate the best of them."""
        open_rows = np.flatnonzero((sketch.bound_s <= self.time_to_beat_s).any(axis=1))
        plans = sketch.plans
        if not len(open_rows):
            self.counts.pruned[SHAPE_BEATEN] += plans
            return
        block = Block(sketch.taken(open_rows), sketch.build(self.factory))
        self.price(block, block.allowed, plans, self.beat_s)
        self.queue.simulate(rounds=1)
        self._tell()

    def _tell(self) -> None:
        """Tell whoever watches how far this is."""
        if self.watch is not None:
            best = next(iter(self.queue.best()), None)
            if best is not None:
                found(best.row.format(), best.time_s)
            self.watch.tell(self.counts.space, self.counts.priced + self.counts.pruned.total())

    def price(self, block: Block, pairs: Bool[np.ndarray, "rows shapes"], plans: int, beat_s: float = np.inf) -> None:
        """Price what bounds leave of some pairs of a block, which with others of no hope stand for so many plans.

        Args:
            block: the block of them.
            pairs: the pairs of rows and shapes.
            plans: how many.
            beat_s: slower ones are not wanted, however quick the rest is.
        """
        threshold_s = min(self.queue.threshold_s, beat_s)
        wanted = (block.bounds_s() <= threshold_s) & pairs & block.open
        found, priced, feasible = block.price(wanted, threshold_s)
        self.least_bytes = min(self.least_bytes, block.least_bytes)
        self.counts.priced += priced
        self.counts.feasible += feasible
        self.counts.pruned[SHAPE_BEATEN] += plans - priced
        self.queue.add(block, found)

    def _result(self, started: float) -> SearchResult:
        plans = self._found(self.queue.best())
        front = self._found(self.queue.front) if self.queue.slack > 1.0 else ()
        self.counts.effort[SIMULATED] = self.queue.simulated
        if limit := spent():
            waiting_s = self.queue.least_waiting_s
            if self.counts.stopped or waiting_s <= self.queue.threshold_s:
                self.counts.stop(limit, waiting_s)
        if self.rows_stopped:
            self.counts.stop(self.rows_stopped, min((fastest_s(plan.estimate) for plan in plans), default=np.inf))
        grouped = self.workload.packing == DYNAMIC
        if grouped:
            # Searched with packed rows; ranked by the micro-batches that each plan would run.
            plans = tuple(sorted(plans, key=lambda plan: plan.estimate.step_time_s))
        proven = self.counts.certificate(optimal=bool(plans) and not grouped, started=started)
        bound_s = min([self.counts.unseen_s, *(plan.estimate.step_time_s for plan in plans[:1])])
        certificate = PlanCertificate(
            **{field.name: getattr(proven, field.name) for field in fields(proven)},
            bound_step_time_s=None if grouped or np.isinf(bound_s) else bound_s,
        )
        return SearchResult(plans=plans, pareto=front, certificate=certificate, relaxed=False)

    def _found(self, plans: Sequence[Simulated]) -> tuple[FoundPlan, ...]:
        executions = [expand(plan.row, self.model, self.workload.seq_len) for plan in plans]
        estimates = estimate_plans(executions, self.model, self.cluster, self.workload)
        found = zip(plans, executions, estimates, strict=True)
        return tuple(FoundPlan(row=plan.row, plan=execution, estimate=one) for plan, execution, one in found)


def fastest_s(estimate: StepEstimate) -> float:
    """Seconds of the useful work of a step at the peak of the devices: no plan takes fewer, looked at or not.

    Args:
        estimate: the estimate of any plan of the same model, devices and workload.
    """
    return estimate.step_time_s * estimate.mfu


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows of a space where nothing is away, which those of other values of the axis share."""

    grid: Grid
    plans: Int[np.ndarray, "rows"]
    time_s: Float[np.ndarray, "rows"]
    space: int
    """All plans, those of rows that were beaten before included."""

    def within(self, beat_s: float) -> PlainRows:
        """The rows that a time to beat leaves in question, whatever is away: millions more would take gigabytes."""
        left = self.time_s <= beat_s
        return replace(self, grid=self.grid.take(left), plans=self.plans[left], time_s=self.time_s[left])
