"""A block: rows of one (pp, m) x pipeline shapes x shardings, bounded and priced by broadcasting."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.items import ItemCosts, item_costs
from meshwright.estimate.memory import (
    TIGHT_SHARE,
    PerParameter,
    WorkerLoad,
    always_bytes,
    fullest_bytes,
    usual,
    worker_bytes,
)
from meshwright.estimate.pipeline import BoundaryColumns, Placed, boundary_columns, data_groups, sync_layers
from meshwright.estimate.states import EXTRA_BYTES, EXTRA_SECONDS, has_extras, shared_update_s
from meshwright.estimate.sync import DataGroups, DataNetwork, StepCompute, step_sync
from meshwright.search.axes import WAYS
from meshwright.search.geometry import Shape, ShapeFactory, pairs
from meshwright.search.grid import Grid
from meshwright.search.shape_tables import ShapeTables
from meshwright.search.shardings import PLAIN_SHARDINGS, Sharding, ShardingTable, shardings_for
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, offload_of
from meshwright.specs.workload import Workload
from meshwright.strategies.base import OVERLAPS, StrategyColumns
from meshwright.strategies.data import Z3, ShardingColumns

AT_ONCE = 20_000
"""Plans that are priced in one go: few enough for the cache, enough for numpy to be quick."""

ROUNDING = 1e-9
"""Relative difference that sums of the same numbers in another order may have, with room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Plans that may be the best: bounded, not yet simulated."""

    row: Int[np.ndarray, "found"]
    """Row of the block's grid."""
    shape: Int[np.ndarray, "found"]
    """Pipeline shape, by number in the block."""
    sharding: Int[np.ndarray, "found"]
    """Index into `Block.shardings`."""
    bound_s: Float[np.ndarray, "found"]
    """Lower bound of the step time."""
    peak_bytes: Float[np.ndarray, "found"]


@dataclass(frozen=True, slots=True)
class _Terms:
    """Seconds of every row and shape under one way to shard."""

    pipeline_s: Float[np.ndarray, "used shapes"]
    first_forward_s: Float[np.ndarray, "used shapes"]
    """Of worker 0, per micro-batch."""
    first_backward_s: Float[np.ndarray, "used shapes"]


class PricedRows:
    """Rows with everything that is priced once for them."""

    def __init__(
        self,
        grid: Grid,
        factory: ShapeFactory,
        model: ModelSpec,
        hardware: Hardware,
        workload: Workload,
        sections: int = 1,
    ) -> None:
        self.grid, self.hardware, self.workload = grid, hardware, workload
        self.freezes = model.tuning is not None
        self.uneven = has_extras(model, workload)
        self.columns: StrategyColumns = grid.strategies(workload, sections)
        self.costs: ItemCosts = item_costs(factory.items, self.columns, model, hardware, workload)
        self.whole = np.array([item.part not in ("tie", "copy") for item in factory.items])
        placed = Placed(pp=grid.pp, dp=grid.dp)
        self.boundary: BoundaryColumns = boundary_columns(self.columns, placed, model, hardware, workload)
        self.groups: DataGroups = data_groups(self.columns)
        self.space, self.away = factory.space, offload_of(grid.offload)
        self.limit_bytes = hardware.memory_bytes * (1.0 if factory.space.tight else 1.0 - TIGHT_SHARE)

    @cached_property
    def shardings(self) -> list[Sharding]:
        """Choices that apply to at least one of the rows."""
        return sorted(
            {
                choice
                for dp, cp in {*zip(self.grid.dp.tolist(), self.grid.cp.tolist(), strict=True)}
                for choice in shardings_for(dp, cp, self.space)
            },
            key=lambda choice: ((*PLAIN_SHARDINGS, "hsdp").index(choice.name), choice.shard),
        )

    @cached_property
    def table(self) -> ShardingTable:
        """These choices on every row."""
        return ShardingTable.of(self.grid, self.shardings)

    @cached_property
    def plans_of_rows(self) -> Int[np.ndarray, "rows"]:
        """The shardings of each row: plans of one shape."""
        return np.asarray(self.table.legal.sum(axis=0))

    @cached_property
    def per_parameter(self) -> PerParameter:
        """What each choice keeps of a parameter of each row."""
        return PerParameter.of(self.table.columns, self.hardware, self.workload)

    @cached_property
    def least_per_parameter(self) -> PerParameter:
        """The fewest bytes of each kind under any choice of a row."""
        return self.per_parameter.least(self.table.legal)

    def take(self, index: Int[np.ndarray, "picked"]) -> PricedRows:
        """The rows of this index."""
        part = copy(self)
        for name in ("plans_of_rows", "shardings", "table", "per_parameter", "least_per_parameter"):
            part.__dict__.pop(name, None)
        part.grid, part.columns, part.costs = self.grid.take(index), self.columns.take(index), self.costs.take(index)
        part.boundary = self.boundary.take(index)
        part.groups = self.groups.take(index)
        return part


class Block:
    """Priced rows x pipeline shapes."""

    def __init__(self, rows: PricedRows, shapes: list[Shape], tables: ShapeTables | None = None) -> None:
        """Bound every row under every shape.

        Args:
            rows: of one (pp, m).
            shapes: of the same.
            tables: of these shapes, where they are known.
        """
        self.rows, self.shapes = rows, shapes
        self.grid, self.columns, self.costs, self.whole = rows.grid, rows.columns, rows.costs, rows.whole
        self.boundary, self.groups, self.shardings = rows.boundary, rows.groups, rows.shardings
        self.hardware, self.workload, self.limit_bytes = rows.hardware, rows.workload, rows.limit_bytes
        self.tables = tables or ShapeTables.of(shapes)
        self._bare = self._terms(self.costs, self.costs.forward_s, self.costs.backward_s, self.boundary.transfer_s)
        self.paired = self.grid.paired
        pairing = np.array([pairs(shape.schedule, shape.p, shape.m, shape.v, shape.recompute) for shape in shapes])
        self.allowed = ~self.paired[:, None] | pairing
        """Whether a shape can run what a row has beside its exchanges."""
        self._first_dense = self.costs.dense_parameters @ self.tables.first.T
        self._first_experts = self.costs.expert_parameters @ self.tables.first.T
        self.least_bytes = np.inf
        """No plan that was priced needs less."""
        self.uneven = rows.uneven
        self.settled_early = not (rows.uneven or rows.freezes or rows.grid.offload)
        """Whether worker 0's parameters and activations alone say that a pair does not fit."""
        if self.uneven:
            self._first_update_s = [getattr(self.costs, name) @ self.tables.first.T for name in EXTRA_SECONDS]

    def plan_row(self, row: int, shape: Shape, choice: Sharding) -> PlanRow:
        """One plan of the block as a row of degrees."""
        grid = self.grid
        return PlanRow(
            tp=int(grid.tp[row]),
            tensor=grid.tensor,
            tp_overlap=OVERLAPS[int(grid.overlap[row])],
            cp=grid.levels(row),
            pp=shape.p,
            vpp=shape.v,
            ep=int(grid.ep[row]),
            etp=int(grid.etp[row]),
            dispatcher=WAYS[int(grid.way[row])][0],
            ep_overlap=WAYS[int(grid.way[row])][1],
            hot_experts=WAYS[int(grid.way[row])][2],
            dp=int(grid.dp[row]),
            sharding=choice.name,
            shard_group=choice.shard * int(grid.cp[row]) if choice.name == "hsdp" else 0,
            mbs=int(grid.mbs[row]),
            gbs=self.workload.global_batch,
            schedule=shape.schedule.token,
            recompute=shape.recompute,
            recompute_layers=shape.recompute_layers,
            offload=grid.offload,
        )

    def plans(self) -> int:
        """Plans in the block: rows x shapes x the shardings of each row."""
        return int((self.rows.plans_of_rows * self.allowed.sum(axis=1)).sum())

    def sharding_columns(self, choice: Int[np.ndarray, "picked"], rows: Int[np.ndarray, "picked"]) -> ShardingColumns:
        """Data-parallel choices, by number, of these rows; columns of shape picked x 1."""
        return self.rows.table.take(choice, rows)

    def _terms(
        self,
        costs: ItemCosts,
        forward_s: Float[np.ndarray, "used items"],
        backward_s: Float[np.ndarray, "used items"],
        transfer_s: Float[np.ndarray, "used"],
    ) -> _Terms:
        """Longest path of every shape, a lower bound of the pipeline's time, and the work of worker 0."""
        shapes, paths, items = self.tables.path_forward.shape
        length = (
            forward_s @ self.tables.path_forward.reshape(-1, items).T
            + backward_s @ self.tables.path_backward.reshape(-1, items).T
            + transfer_s[:, None] * self.tables.path_transfer.reshape(-1)
        )
        if self.tables.splits:
            length = length + costs.weight_gradient_s @ self.tables.path_weight.reshape(-1, items).T
        return _Terms(
            pipeline_s=length.reshape(-1, shapes, paths).max(axis=2),
            first_forward_s=forward_s @ self.tables.first.T,
            first_backward_s=backward_s @ self.tables.first.T,
        )

    def bounds_s(self) -> Float[np.ndarray, "rows shapes"]:
        """Lower bound of the step time under any sharding."""
        return self._bare.pipeline_s

    def price(
        self, wanted: Bool[np.ndarray, "rows shapes"], threshold_s: float, *, spare: bool = True
    ) -> tuple[Candidates, int, int]:
        """Time bound and memory of every sharding of the wanted (row, shape) pairs.

        Args:
            wanted: pairs whose bound is still good enough.
            threshold_s: plans above it cannot be among the answer.
            spare: settle the shardings of a pair at once where it holds too much under each of them.

        Returns:
            Plans below the threshold that fit, the number priced, and the number of these that fit.
        """
        pair_row, pair_shape = np.nonzero(wanted)
        found: list[tuple[np.ndarray, ...]] = []
        feasible = 0
        if not len(pair_row):
            return _candidates(found), 0, 0
        legal = self.rows.table.legal[:, pair_row]
        priced = int(legal.sum())
        if spare and self.settled_early:
            held = self._first_bytes[pair_row, pair_shape]
            self.least_bytes = float(held.min())
            open_pairs = np.flatnonzero(held <= self.hardware.memory_bytes * (1.0 + ROUNDING))
            if not len(open_pairs):
                return _candidates(found), priced, 0
            pair_row, pair_shape, legal = pair_row[open_pairs], pair_shape[open_pairs], legal[:, open_pairs]
        load = self._pair_load(pair_row, pair_shape)
        if spare and usual(load):
            # Most pairs hold too much under any sharding.
            least = fullest_bytes(load, self.rows.least_per_parameter.every(slice(None), pair_row), self.hardware)[0]
            open_pairs = np.flatnonzero(least <= self.limit_bytes)
            self.least_bytes = min(self.least_bytes, float(least.min()))
            if not len(open_pairs):
                return _candidates(found), priced, 0
            pair_row, pair_shape = pair_row[open_pairs], pair_shape[open_pairs]
            load, legal = load.take(open_pairs), legal[:, open_pairs]
        together = max(1, AT_ONCE // len(pair_row))
        for first in range(0, len(legal), together):
            some = slice(first, first + together)
            peak, has_room = self._peak_bytes(load, some, pair_row)
            self.least_bytes = min(self.least_bytes, float(np.min(peak, where=legal[some], initial=np.inf)))
            choices, pairs = np.nonzero(legal[some] & has_room)
            feasible += len(pairs)
            if not len(pairs):
                continue
            rows, shapes, peak, choices = pair_row[pairs], pair_shape[pairs], peak[choices, pairs], choices + first
            time_s = self._step_bound_s(choices, rows, shapes)
            good = np.flatnonzero(time_s <= threshold_s)
            found.append((rows[good], shapes[good], choices[good], time_s[good], peak[good]))
        return _candidates(found), priced, feasible

    @cached_property
    def _first_bytes(self) -> Float[np.ndarray, "rows shapes"]:
        """What worker 0 holds at least, whatever the sharding: its states and what its micro-batches keep."""
        each = self.rows.least_per_parameter
        dense, experts = each.dense_weights + each.dense_others, each.expert_weights + each.expert_others
        allocated = dense[0][:, None] * self._first_dense + experts[0][:, None] * self._first_experts
        allocated = allocated + self.costs.kept_bytes @ self.tables.alive[:, 0].T
        return allocated * (1.0 + self.hardware.software.fragmentation) + always_bytes(self.hardware)

    def _peak_bytes(
        self, load: WorkerLoad, choices: slice, rows: Int[np.ndarray, "pairs"]
    ) -> tuple[Float[np.ndarray, "choices pairs"], Bool[np.ndarray, "choices pairs"]]:
        """Of the fullest worker of every pair under some choices, and whether device and host have room for it.

        Both mean nothing where a choice is not legal.
        """
        if usual(load):
            peak = fullest_bytes(load, self.rows.per_parameter.every(choices, rows), self.hardware)
        else:
            sharding = self.rows.table.every(choices, rows)
            peak = worker_bytes(load, sharding, self.hardware, self.workload).peak.max(axis=-1)
        return peak, (peak <= self.limit_bytes) & self._host_has_room(load, choices, rows)

    def _host_has_room(
        self, load: WorkerLoad, choices: slice, rows: Int[np.ndarray, "pairs"]
    ) -> Bool[np.ndarray, "choices pairs"] | bool:
        """Whether what is away has room on the host, as far as it states how much there is."""
        memory, disks = self.hardware.host_memory_bytes, self.hardware.disk_bytes
        room = True
        if not self.grid.offload or (memory is None and disks is None):
            return room
        held = worker_bytes(load, self.rows.table.every(choices, rows), self.hardware, self.workload)
        if memory is not None:
            room = room & (held.host.max(axis=-1) <= memory * HOST_SHARE)
        if disks is not None:
            room = room & (held.disk.max(axis=-1) <= disks)
        return room

    def _pair_load(self, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]) -> WorkerLoad:
        """What the fullest workers of every pair hold."""
        costs, tables = self.costs, self.tables
        held, alive = tables.held, tables.alive
        every, workers, items = held.shape
        set_of = tables.set_of[shapes]

        used, row = _distinct(rows, self.grid.rows)
        used_shapes, shape = _distinct(shapes, every)

        def products(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
            """Of the rows and shapes of all pairs, of which the pairs are taken: one product is quicker than many short
            sums."""
            whole = table[used] @ counts[used_shapes].reshape(-1, items).T
            return whole.reshape(-1, len(used_shapes), workers)[row, shape]

        def largest(table: np.ndarray) -> np.ndarray:
            by_set = np.stack([np.max(table, axis=1, where=here, initial=0.0) for here in tables.sets], axis=1)
            return by_set[rows[:, None], set_of]

        found = {
            "activations": products(costs.kept_bytes, alive),
            "transient": largest(costs.transient_bytes),
            "dense_parameters": products(costs.dense_parameters, held),
            "expert_parameters": products(costs.expert_parameters, held),
            "largest_dense": largest(costs.dense_parameters * self.whole),
            "largest_expert": largest(costs.expert_parameters * self.whole),
        }
        if self.paired.any():
            # A forward more than in the plain order is under way.
            chunks = np.array([shape.v if shape.p > 1 else np.inf for shape in self.shapes])
            more = (costs.kept_bytes @ tables.first.T / chunks) * self.paired[:, None]
            found["activations"] = found["activations"] + more[rows, shapes][:, None]
        if self.rows.away.activations:
            found["away"] = products(costs.away_bytes, alive)
        if self.rows.freezes:
            frozen = costs.frozen_dense_bytes, costs.frozen_expert_bytes
            found["frozen_dense_bytes"], found["frozen_expert_bytes"] = (products(table, held) for table in frozen)
            found["largest_frozen_bytes"] = largest(sum(frozen) * self.whole)
        if self.uneven:
            found |= {name: products(getattr(costs, name), held) for name in EXTRA_BYTES}
        return WorkerLoad(
            **found,
            communicators=self.boundary.communicators[rows][:, None],
            offload_weights=np.full((1, 1), self.rows.away.weights),
            weight_versions=tables.versions[shapes],
        )

    def _step_bound_s(
        self,
        choices: Int[np.ndarray, "picked"],
        rows: Int[np.ndarray, "picked"],
        shapes: Int[np.ndarray, "picked"],
    ) -> Float[np.ndarray, "picked"]:
        """Pipeline bound with what the sharding adds to layers, and what worker 0 waits for around it."""
        sharding, groups = self.sharding_columns(choices, rows), self.groups.take(rows)
        pipeline_s = self._bare.pipeline_s[rows, shapes]
        forward_s, backward_s = self._bare.first_forward_s[rows, shapes], self._bare.first_backward_s[rows, shapes]
        gathering = np.flatnonzero(sharding.zero[:, 0] == Z3)
        if len(gathering):
            code, shape = choices[gathering] * self.grid.rows + rows[gathering], shapes[gathering]
            used, place = _distinct(code, len(self.shardings) * self.grid.rows)
            terms = self._gathered_terms(*np.divmod(used, self.grid.rows))
            pipeline_s[gathering] = terms.pipeline_s[place, shape]
            forward_s[gathering] = terms.first_forward_s[place, shape]
            backward_s[gathering] = terms.first_backward_s[place, shape]
        step = step_sync(
            self._first_dense[rows, shapes][:, None],
            self._first_experts[rows, shapes][:, None],
            StepCompute(
                forward_s=forward_s[:, None],
                backward_s=backward_s[:, None],
                micro_batches=self.tables.per_update[shapes][:, None],
                passes=self.tables.last_passes[shapes][:, None],
            ),
            sharding,
            DataNetwork(sharding, groups, self.hardware),
            self.workload,
        )
        optimizer_s = step.optimizer_s
        if self.uneven:
            dense_s, expert_s = (seconds[rows, shapes][:, None] for seconds in self._first_update_s)
            optimizer_s = optimizer_s + shared_update_s(dense_s, expert_s, sharding)
        once_s = (step.gradients_s + step.gather_s + optimizer_s + step.offload_s)[:, 0]
        around = once_s * self.tables.updates[shapes]
        return pipeline_s + around + self.boundary.tied_s[rows] * self.tables.apart[shapes]

    def _gathered_terms(self, choices: Int[np.ndarray, "used"], rows: Int[np.ndarray, "used"]) -> _Terms:
        """Of rows whose layers gather their weights."""
        costs, sharding = self.costs.take(rows), self.sharding_columns(choices, rows)
        sync = sync_layers(costs, self.columns.take(rows), sharding, self.hardware, self.workload, anything=True)
        forward_s, backward_s = costs.forward_s + sync.forward_s, costs.backward_s + sync.backward_s
        return self._terms(costs, forward_s, backward_s, self.boundary.transfer_s[rows])


def _distinct(codes: Int[np.ndarray, "many"], most: int) -> tuple[Int[np.ndarray, "distinct"], Int[np.ndarray, "many"]]:
    """The numbers below `most` that occur, ascending, and the place of each code among them."""
    place = np.zeros(most, dtype=np.int64)
    place[codes] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    return found, place[codes]


def _candidates(found: list[tuple[np.ndarray, ...]]) -> Candidates:
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Candidates(row=none, shape=none, sharding=none, bound_s=np.zeros(0), peak_bytes=np.zeros(0))
    row, shape, sharding, bound_s, peak_bytes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Candidates(row=row, shape=shape, sharding=sharding, bound_s=bound_s, peak_bytes=peak_bytes)
