"""Which rows have a shape that fits them and is quick enough, told from factors before any row is priced.

What a block finds out of priced rows follows nearly as well from their factors, of which there are far fewer: how long
each shape takes with its recompute and its copies to and from the host, and whether its worker 0 has room for what it
keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

import numpy as np

from meshwright.estimate.away import updated_bytes
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.items import Item, repeated_modules, with_tiles, works_of
from meshwright.estimate.layers.work_seconds import ModuleSeconds, WorkSeconds
from meshwright.estimate.memory import always_bytes
from meshwright.ops.edges import edge_work
from meshwright.search.bound import Factored, least_state_bytes
from meshwright.search.grid import Grid
from meshwright.search.paths import Template
from meshwright.search.shape_tables import ShapeTables
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork
from meshwright.specs.row import offload_of
from meshwright.specs.strategy import Recompute
from meshwright.strategies.columns import StrategyColumns, local_units
from meshwright.strategies.memory import kept_bytes

AT_ONCE = 1 << 17
"""Paths of rows whose lengths are looked at in one go: few enough for the cache."""
ROUNDING = 1e-9
"""Relative difference that sums of the same numbers in another order may have, with room."""
EXPERT_REGIONS = ("expert", "expert-in")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FactorCosts:
    """Costs of items, as far as they depend on one factor."""

    forward_s: Float[np.ndarray, "distinct items"]
    backward_s: Float[np.ndarray, "distinct items"]
    """Both gradients and what is recomputed."""
    weight_gradient_s: Float[np.ndarray, "distinct items"]
    kept_bytes: Float[np.ndarray, "distinct items"]
    dense_parameters: Float[np.ndarray, "distinct items"]
    expert_parameters: Float[np.ndarray, "distinct items"]

    def take(self, index: Int[np.ndarray, "picked"]) -> _FactorCosts:
        """The values of this index."""
        return _FactorCosts(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@runtime_checkable
class WorkerItems(Protocol):
    """What workers hold under each shape, those first that the paths end at."""

    @property
    def first(self) -> Float[np.ndarray, "shapes items"]:
        """Items of worker 0."""

    @property
    def alive(self) -> Float[np.ndarray, "shapes fullest items"]:
        """Items times what is in flight."""


class Fitting:
    """Bounds of rows under every shape of theirs, from the factors of a grid."""

    def __init__(self, factored: Factored, items: tuple[Item, ...], model: ModelSpec, limit_bytes: float) -> None:
        """Price the items once for every distinct factor.

        Args:
            factored: the rows.
            items: what shapes consist of.
            model: the model.
            limit_bytes: what a plan may need.
        """
        self.factored, self.limit_bytes = factored, limit_bytes
        self.hardware: Hardware = factored.hardware
        self.away = offload_of(factored.grid.offload)
        self.stored = np.array([item.part not in ("tie", "copy") for item in items])
        self.moved = np.array([item.part not in ("head", "mtp") for item in items])
        """Items all of whose activations go to the host where any do."""
        """Items whose weights are those of their own layer."""
        self.dense = self._costs(items, model, experts=False)
        self.experts = self._costs(items, model, experts=True)

    def rows(
        self,
        rows: Int[np.ndarray, "rows"],
        shapes: ShapeTables,
        threshold_s: float,
        beat_s: float = np.inf,
        *,
        memory: bool,
    ) -> tuple[Bool[np.ndarray, "rows"], Bool[np.ndarray, "rows"], float]:
        """Rows with a shape whose worker 0 has room, those where one of these is quick enough, and the least bytes.

        Args:
            rows: the rows of one (pp, m), by number in the grid.
            shapes: all of theirs.
            threshold_s: what is slower is none of the answer.
            beat_s: what is slower is none either, even if its layers choose their recompute one by one.
            memory: whether worker 0's parameters and activations alone say that a shape does not fit.
        """
        fits = np.ones((len(rows), len(shapes)), dtype=bool)
        grid = self.factored.grid.take(rows)
        paired = grid.paired
        if paired.any():
            fits = ~paired[:, None] | shapes.pairing
        least_bytes = np.inf
        shared = self._first_shared(rows, grid, shapes)
        if memory:
            held = self._first_bytes(rows, shapes, shared)
            least_bytes = float(held.min(initial=np.inf, where=fits))
            fits = fits & (held * (1.0 - ROUNDING) <= self.limit_bytes)
        some = np.asarray(fits.any(axis=1))
        quick = some.copy()
        if min(threshold_s, beat_s) < np.inf and not shapes.splits and some.any():
            update_s = shared[some] * self._update_s
            limits_s = threshold_s, beat_s
            quick[some] = self._quick(
                rows[some], grid.take(np.flatnonzero(some)), fits[some], shapes, update_s, limits_s
            )
        return some, quick, least_bytes

    @property
    def _update_s(self) -> float:
        """Lower bound of the seconds per parameter that worker 0 has updated on the host behind its pipeline."""
        if self.away.delayed_update or not self.factored.workload.training:
            return 0.0
        moved = self.away.optimizer * updated_bytes(self.factored.workload)
        return moved / self.hardware.host_update_bytes_per_s if moved else 0.0

    def _first_shared(
        self, rows: Int[np.ndarray, "rows"], grid: Grid, tables: WorkerItems
    ) -> Float[np.ndarray, "rows shapes"]:
        """Parameters of worker 0, as every rank shares them that can."""
        first, data = tables.first.T, grid.cp * grid.dp
        shards = np.maximum(grid.tp * data // (grid.ep * grid.etp), 1)
        shared: Float[np.ndarray, "rows shapes"] = np.zeros((grid.rows, first.shape[1]))
        for costs, number in self.factors_of(rows):
            if costs.dense_parameters.any():
                shared += (costs.dense_parameters @ first)[number] / data[:, None]
            if costs.expert_parameters.any():
                shared += (costs.expert_parameters @ first)[number] / shards[:, None]
        return shared

    def _first_bytes(
        self, rows: Int[np.ndarray, "rows"], tables: WorkerItems, shared: Float[np.ndarray, "rows shapes"]
    ) -> Float[np.ndarray, "rows shapes"]:
        """What worker 0 holds at least under every shape: its share of its states and what its micro-batches keep."""
        alive = tables.alive[:, 0].T * (1.0 - self.away.activations)
        held = shared * least_state_bytes(self.factored)
        for costs, number in self.factors_of(rows):
            held += (costs.kept_bytes @ alive)[number]
        return held * (1.0 + self.hardware.software.fragmentation) + always_bytes(self.hardware)

    def _quick(
        self,
        rows: Int[np.ndarray, "rows"],
        grid: Grid,
        fits: Bool[np.ndarray, "rows shapes"],
        tables: ShapeTables,
        update_s: Float[np.ndarray, "rows shapes"],
        limits_s: tuple[float, float],
    ) -> Bool[np.ndarray, "rows"]:
        """Rows of which a shape that fits has no path beyond the limits."""
        shapes, paths, _ = tables.path_forward.shape
        threshold_s, beat_s = (limit_s * (1.0 + ROUNDING) for limit_s in limits_s)
        lengths = _PathLengths(self, rows, grid, tables)
        quick = np.zeros(len(rows), dtype=bool)
        together = max(1, AT_ONCE // (shapes * paths))
        for start in range(0, len(rows), together):
            here = slice(start, start + together)
            longest_s = lengths.of(here).reshape(-1, shapes, paths).max(axis=2) + update_s[here]
            # Layers that choose their recompute one by one take no less than under the quicker of two ways.
            refined_s = np.minimum(longest_s, longest_s[:, tables.bare])
            quick[here] = (fits[here] & (longest_s <= threshold_s) & (refined_s <= beat_s)).any(axis=1)
        return quick

    def least_s(self, rows: Int[np.ndarray, "rows"], m: int, templates: list[Template]) -> Float[np.ndarray, "rows"]:
        """Seconds below which no order of a schedule's tasks takes rows, under the quickest of some ways to recompute.

        Args:
            rows: the rows of one (pp, m), by number in the grid.
            m: micro-batches.
            templates: the templates of one schedule and number of chunks, one for each way to recompute.
        """
        return self.any_order_s(rows, m, templates).min(axis=1)

    def any_order_s(
        self, rows: Int[np.ndarray, "rows"], m: int, templates: list[Template]
    ) -> Float[np.ndarray, "rows templates"]:
        """The same under each way to recompute; arguments as `least_s`."""
        factors, found = self.factors_of(rows), np.empty((len(rows), len(templates)))
        for place, template in enumerate(templates):
            tables = template.forward(m).T, template.backward(m).T, template.weight(m).T
            length_s = sum(
                (costs.forward_s @ tables[0] + costs.backward_s @ tables[1] + costs.weight_gradient_s @ tables[2])[
                    number
                ]
                for costs, number in factors
            )
            np.max(length_s, axis=1, out=found[:, place])
        return found

    def has_room(
        self, rows: Int[np.ndarray, "rows"], shapes: WorkerItems
    ) -> tuple[Bool[np.ndarray, "rows shapes"], float]:
        """Whether worker 0 has room for what it holds at least under every shape, and the least bytes that it needs.

        Args:
            rows: the rows of one (pp, m), by number in the grid.
            shapes: what it holds, and keeps alive, of each item.
        """
        shared = self._first_shared(rows, self.factored.grid.take(rows), shapes)
        held = self._first_bytes(rows, shapes, shared)
        return held * (1.0 - ROUNDING) <= self.limit_bytes, float(held.min(initial=np.inf))

    def paths_s(self, rows: Int[np.ndarray, "rows"], tables: ShapeTables) -> Float[np.ndarray, "rows shapes"]:
        """Seconds of the longest path of each shape, at least.

        Args:
            rows: the rows of one (pp, m), by number in the grid.
            tables: all shapes of theirs.
        """
        shapes, paths, _ = tables.path_forward.shape
        lengths = _PathLengths(self, rows, self.factored.grid.take(rows), tables)
        found = np.empty((len(rows), shapes))
        together = max(1, AT_ONCE // (shapes * paths))
        for start in range(0, len(rows), together):
            here = slice(start, start + together)
            np.max(lengths.of(here).reshape(-1, shapes, paths), axis=2, out=found[here])
        return found

    def factors_of(self, rows: Int[np.ndarray, "rows"]) -> list[tuple[_FactorCosts, Int[np.ndarray, "rows"]]]:
        """The factors that these rows have, and which of them each row has."""
        found = []
        for costs, factor in ((self.dense, self.factored.dense_of), (self.experts, self.factored.expert_of)):
            used, number = np.unique(factor[rows], return_inverse=True)
            found.append((costs.take(used), number.reshape(-1)))
        return found

    def _costs(self, items: tuple[Item, ...], model: ModelSpec, *, experts: bool) -> _FactorCosts:
        factored = self.factored
        columns, workload = factored.columns(experts=experts), factored.workload
        parts = {field.name: np.zeros((columns.rows, len(items))) for field in fields(_FactorCosts)}
        for number, item in enumerate(items):
            if item.part in ("tie", "copy"):
                table = local_units(model.vocab, columns.tp) * model.hidden * (not experts)
                parts["dense_parameters"][:, number] = table if item.part == "copy" else -table
                continue
            for work, quantised, recompute in works_of(item, model, workload, self.hardware.software):
                seconds = factored.seconds(work, quantised=quantised, experts=experts)
                for name, value in self._of_work(work, seconds, columns, recompute, experts=experts).items():
                    parts[name][:, number] += value
            if item.part == "mtp":
                # Its loss uses the head's projection, which the stage already holds.
                head = factored.seconds(edge_work(model, "head", workload.loss_tiles), quantised=False, experts=experts)
                parts["dense_parameters"][:, number] -= head.dense_parameters
        return _FactorCosts(**parts)

    def _of_work(
        self, work: LayerWork, seconds: WorkSeconds, columns: StrategyColumns, recompute: Recompute, *, experts: bool
    ) -> dict[str, Float[np.ndarray, "distinct"]]:
        """One work under one way to recompute; nobody waits for a host."""
        workload = self.factored.workload
        training = workload.training and work.reached
        tiled = workload.mlp_tiles > 1
        recompute = with_tiles(recompute) if tiled else recompute
        behind = [seconds.backward, *repeated_modules(seconds, recompute, tiled=tiled)] if training else []
        whole = recompute.kind in ("full", "grouped")
        kept = replace(
            work,
            ops=() if experts else work.ops,
            kept=tuple(one for one in work.kept if (one.region in EXPERT_REGIONS) == experts),
        )
        nothing = np.zeros(columns.rows)
        return {
            "forward_s": _sum_s(seconds.forward),
            "backward_s": sum((_sum_s(module) for module in behind), nothing),
            "weight_gradient_s": seconds.weight_gradient_s,
            # A layer's input is kept once.
            "kept_bytes": kept_bytes(kept, columns, workload.precision, recompute)
            if training and not (experts and whole)
            else nothing,
            "dense_parameters": seconds.dense_parameters,
            "expert_parameters": seconds.expert_parameters,
        }


class _PathLengths:
    """Seconds of all paths of rows, with copies to and from the host where they take longer than what hides them."""

    def __init__(self, fitting: Fitting, rows: Int[np.ndarray, "rows"], grid: Grid, tables: ShapeTables) -> None:
        items = tables.path_forward.shape[2]
        ways = [table.reshape(-1, items).T for table in (tables.path_forward, tables.path_backward)]
        away, hardware = fitting.away, fitting.hardware
        factors = fitting.factors_of(rows)
        self.copies = bool(away.activations or away.weights)
        seconds = [(costs.forward_s @ ways[0], costs.backward_s @ ways[1], number) for costs, number in factors]
        if tables.splits:
            # Copies only add to passes, whichever of their parts runs when.
            self.copies, way = False, tables.path_weight.reshape(-1, items).T
            weights = [(costs.weight_gradient_s @ way, number) for costs, number in factors]
            seconds = [(first + more, *others) for (first, *others), (more, _) in zip(seconds, weights, strict=True)]
        if not self.copies:
            self.computed = [(forward_s + backward_s, number) for forward_s, backward_s, number in seconds]
            return
        self.sides = [[(of[side], of[2]) for of in seconds] for side in (0, 1)]
        # Each rank fetches its share of the weights; activations leave in one pass and return in the other.
        weight = fitting.factored.workload.precision.bytes_of("weights") / hardware.host_bytes_per_s
        self.fetched_s = np.broadcast_to(grid.strategies(fitting.factored.workload).offload_weights * weight, grid.rows)
        kept_s = fitting.moved * (away.activations / hardware.host_bytes_per_s)
        self.fetched = [
            [
                ((costs.dense_parameters + costs.expert_parameters) * fitting.stored @ way, number)
                for costs, number in factors
            ]
            for way in ways
        ]
        self.kept = [[(costs.kept_bytes * kept_s @ way, number) for costs, number in factors] for way in ways]

    def of(self, here: slice) -> Float[np.ndarray, "rows paths"]:
        """Lower bound of the path lengths of some rows."""
        if not self.copies:
            return self._sum(self.computed, here)
        # Layer by layer the longer of two counts; their sums are no longer than that.
        return sum(
            np.maximum(
                self._sum(self.sides[side], here),
                self._sum(self.fetched[side], here) * self.fetched_s[here, None] + self._sum(self.kept[side], here),
            )
            for side in (0, 1)
        )

    @staticmethod
    def _sum(parts: list[tuple[np.ndarray, np.ndarray]], here: slice) -> Float[np.ndarray, "rows paths"]:
        return sum(length[number[here]] for length, number in parts)


def _sum_s(module: ModuleSeconds) -> Float[np.ndarray, "distinct"]:
    return module.compute_s + module.tp_s + module.cp_s + module.ep_s
