"""A block: rows of one (pp, m) x pipeline shapes x shardings, bounded and priced by broadcasting."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.items import ItemCosts, item_costs
from meshwright.estimate.memory import TIGHT_SHARE, WorkerLoad, fullest_bytes, worker_bytes
from meshwright.estimate.pipeline import BoundaryColumns, Placed, boundary_columns, data_groups, sync_layers
from meshwright.estimate.states import EXTRA_BYTES, EXTRA_SECONDS, has_extras, shared_update_s
from meshwright.estimate.sync import DataGroups, DataNetwork, step_sync
from meshwright.search.geometry import Shape, ShapeFactory
from meshwright.search.grid import Grid, divisors
from meshwright.search.space import Space
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, offload_of
from meshwright.specs.strategy import Offload
from meshwright.specs.workload import Workload
from meshwright.strategies.base import OVERLAPS, StrategyColumns
from meshwright.strategies.data import ShardingColumns

PLAIN_SHARDINGS = ("z0", "z1", "z2", "z3", "fsdp", "fsdp-keep")


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


@dataclass(frozen=True, slots=True)
class Sharding:
    """A data-parallel choice; `shard` counts data ranks of an HSDP group."""

    name: str
    shard: int = 0


def shardings_for(dp: int, cp: int, space: Space) -> list[Sharding]:
    """Choices for a data and context degree: one where nothing is shared, else all kinds and every HSDP group.

    Args:
        dp: data degree.
        cp: context degree, whose ranks share states too.
        space: pinned choices.

    Returns:
        The choices.
    """
    wanted = space.pinned("sharding")
    if dp * cp == 1:
        return [Sharding("z0")] if wanted is None or "z0" in wanted else []
    found = [Sharding(name) for name in PLAIN_SHARDINGS]
    found += [Sharding("hsdp", shard) for shard in divisors(dp)[:-1] if shard * cp > 1]
    return [choice for choice in found if wanted is None or choice.name in wanted]


def sharding_columns(grid: Grid, choice: Sharding, rows: Int[np.ndarray, "picked"]) -> ShardingColumns:
    """One data-parallel choice for these rows of a grid, columns of shape picked x 1."""
    dp, cp = grid.dp[rows], grid.cp[rows]
    ranks = dp * cp
    expert_ranks = np.maximum(grid.tp[rows] * ranks // (grid.ep[rows] * grid.etp[rows]), 1)
    zero = {"z0": 0, "z1": 1, "z2": 2}.get(choice.name, 3)
    replicate = np.ones_like(dp)
    if choice.name == "z0":
        replicate, expert_replicate = ranks, expert_ranks
    else:
        if choice.name == "hsdp":
            replicate = dp // choice.shard
        expert_replicate = np.where(expert_ranks % replicate == 0, replicate, 1)
    count, away = len(rows), offload_of(grid.offload)

    def column(values: np.ndarray) -> np.ndarray:
        return np.asarray(values).reshape(-1, 1)

    return ShardingColumns(
        zero=column(np.full(count, zero)),
        fsdp=column(np.full(count, choice.name in ("fsdp", "fsdp-keep", "hsdp"))),
        reshard=column(np.full(count, choice.name != "fsdp-keep")),
        shard=column(ranks // replicate),
        replicate=column(replicate),
        expert_shard=column(expert_ranks // expert_replicate),
        expert_replicate=column(expert_replicate),
        overlap=column(np.full(count, True)),
        offload_optimizer=column(np.full(count, away.optimizer)),
        **({} if not grid.offload else _away_columns(away, count)),
    )


def _away_columns(away: Offload, count: int) -> dict[str, Float[np.ndarray, "rows 1"]]:
    """Columns of what is away besides the optimizer, the same in all rows."""
    values = {
        "offload_gradients": away.gradients,
        "offload_weights": away.weights,
        "offload_disk": float(away.tier == "nvme"),
        "delayed_update": float(away.delayed_update),
    }
    return {name: np.full((count, 1), value) for name, value in values.items()}


def offload_suits(away: Offload, choice: str, ranks: Int[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Rows that may keep so much away under a data-parallel choice.

    Gradients that leave as they come are summed before; weights of several ranks are sharded over all of them, so that
    each fetches its own.

    Args:
        away: what is away.
        choice: name of the sharding.
        ranks: data x context ranks.
    """
    summed = choice in ("z2", "z3", "fsdp", "fsdp-keep", "hsdp") or not away.gradients
    sharded = choice in ("z3", "fsdp") or not away.weights
    return (ranks == 1) | (summed and sharded)


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

    def legal(self, choice: Sharding) -> Bool[np.ndarray, "rows"]:
        """Rows that a data-parallel choice applies to."""
        dp, cp = self.grid.dp, self.grid.cp
        suits = offload_suits(self.away, choice.name, dp * cp)
        if choice.name == "hsdp":
            return suits & (dp % choice.shard == 0) & (dp > choice.shard) & (choice.shard * cp > 1)
        return suits & ((dp * cp > 1) | (choice.name == "z0"))

    @cached_property
    def plans_per_shape(self) -> int:
        """The shardings of each row, summed over the rows."""
        return sum(int(self.legal(choice).sum()) for choice in self.shardings)

    def take(self, index: Int[np.ndarray, "picked"]) -> PricedRows:
        """The rows of this index."""
        part = copy(self)
        for name in ("plans_per_shape", "shardings"):
            part.__dict__.pop(name, None)
        part.grid, part.columns, part.costs = self.grid.take(index), self.columns.take(index), self.costs.take(index)
        part.boundary = self.boundary.take(index)
        part.groups = self.groups.take(index)
        return part


class Block:
    """Priced rows x pipeline shapes."""

    def __init__(self, rows: PricedRows, shapes: list[Shape]) -> None:
        self.rows, self.shapes = rows, shapes
        self.grid, self.columns, self.costs, self.whole = rows.grid, rows.columns, rows.costs, rows.whole
        self.boundary, self.groups, self.shardings = rows.boundary, rows.groups, rows.shardings
        self.hardware, self.workload, self.limit_bytes = rows.hardware, rows.workload, rows.limit_bytes
        self._stack()
        self._bare = self._terms(self.costs, self.costs.forward_s, self.costs.backward_s, self.boundary.transfer_s)
        self._first_dense = self.costs.dense_parameters @ self.first.T
        self._first_experts = self.costs.expert_parameters @ self.first.T
        self.uneven = rows.uneven
        if self.uneven:
            self._first_update_s = [getattr(self.costs, name) @ self.first.T for name in EXTRA_SECONDS]

    def _stack(self) -> None:
        """Shapes padded to equal numbers of paths and worker classes, so that one product serves all."""
        self.path_forward = _padded([shape.path_forward for shape in self.shapes])
        self.path_backward = _padded([shape.path_backward for shape in self.shapes])
        self.path_weight = _padded([shape.path_weight for shape in self.shapes])
        self.splits = bool(self.path_weight.any())
        self.path_transfer = _padded([shape.path_transfer for shape in self.shapes])
        fullest = [shape.fullest for shape in self.shapes]
        self.held = _padded([workers.held for workers in fullest])
        self.alive = _padded([workers.alive for workers in fullest])
        self.versions = _padded([workers.versions for workers in fullest])
        self.first = np.stack([workers.first for workers in fullest])
        self.per_update = np.array([float(shape.per_update) for shape in self.shapes])
        self.updates = np.array([float(shape.updates) for shape in self.shapes])
        self.apart = np.array([float(shape.apart) for shape in self.shapes])

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
        return len(self.shapes) * self.rows.plans_per_shape

    def sharding_columns(self, choice: Sharding, rows: Int[np.ndarray, "picked"]) -> ShardingColumns:
        """One data-parallel choice for these rows, columns of shape picked x 1."""
        return sharding_columns(self.grid, choice, rows)

    def _terms(
        self,
        costs: ItemCosts,
        forward_s: Float[np.ndarray, "used items"],
        backward_s: Float[np.ndarray, "used items"],
        transfer_s: Float[np.ndarray, "used"],
    ) -> _Terms:
        """Longest path of every shape, a lower bound of the pipeline's time, and the work of worker 0."""
        shapes, paths, items = self.path_forward.shape
        length = (
            forward_s @ self.path_forward.reshape(-1, items).T
            + backward_s @ self.path_backward.reshape(-1, items).T
            + transfer_s[:, None] * self.path_transfer.reshape(-1)
        )
        if self.splits:
            length = length + costs.weight_gradient_s @ self.path_weight.reshape(-1, items).T
        return _Terms(
            pipeline_s=length.reshape(-1, shapes, paths).max(axis=2),
            first_forward_s=forward_s @ self.first.T,
            first_backward_s=backward_s @ self.first.T,
        )

    def bounds_s(self) -> Float[np.ndarray, "rows shapes"]:
        """Lower bound of the step time under any sharding."""
        return self._bare.pipeline_s

    def price(self, wanted: Bool[np.ndarray, "rows shapes"], threshold_s: float) -> tuple[Candidates, int, int]:
        """Time bound and memory of every sharding of the wanted (row, shape) pairs.

        Args:
            wanted: pairs whose bound is still good enough.
            threshold_s: plans above it cannot be among the answer.

        Returns:
            Plans below the threshold that fit, the number priced, and the number of these that fit.
        """
        pair_row, pair_shape = np.nonzero(wanted)
        found: list[tuple[np.ndarray, ...]] = []
        priced = feasible = 0
        if not len(pair_row):
            return _candidates(found), 0, 0
        activations, transient, dense, experts, largest = self._pair_memory(pair_row, pair_shape)
        beyond = self._pair_frozen(pair_row, pair_shape) | self._pair_extras(pair_row, pair_shape)
        away = self._pair_away(pair_row, pair_shape)
        for number, choice in enumerate(self.shardings):
            legal = np.flatnonzero(self.rows.legal(choice)[pair_row])
            if not len(legal):
                continue
            priced += len(legal)
            # Taking all costs no copy.
            here = slice(None) if len(legal) == len(pair_row) else legal
            rows, shapes = pair_row[here], pair_shape[here]
            sharding = self.sharding_columns(choice, rows)
            load = WorkerLoad(
                dense_parameters=dense[here],
                expert_parameters=experts[here],
                largest_dense=largest[0][here],
                largest_expert=largest[1][here],
                activations=activations[here],
                transient=transient[here],
                communicators=self.boundary.communicators[rows][:, None],
                offload_weights=np.full((len(rows), 1), self.rows.away.weights),
                away=away if isinstance(away, float) else away[here],
                weight_versions=self.versions[shapes],
                **{name: values[here] for name, values in beyond.items()},
            )
            peak = fullest_bytes(load, sharding, self.hardware, self.workload)
            fit = np.flatnonzero((peak <= self.limit_bytes) & self._host_has_room(load, sharding))
            feasible += len(fit)
            if not len(fit):
                continue
            time_s = self._step_bound_s(choice, rows[fit], shapes[fit])
            good = np.flatnonzero(time_s <= threshold_s)
            kept = fit[good]
            found.append((rows[kept], shapes[kept], np.full(len(kept), number), time_s[good], peak[kept]))
        return _candidates(found), priced, feasible

    def _host_has_room(self, load: WorkerLoad, sharding: ShardingColumns) -> Bool[np.ndarray, "pairs"] | bool:
        """Whether what is away has room on the host, as far as it states how much there is."""
        memory, disks = self.hardware.host_memory_bytes, self.hardware.disk_bytes
        room = True
        if not self.grid.offload or (memory is None and disks is None):
            return room
        held = worker_bytes(load, sharding, self.hardware, self.workload)
        if memory is not None:
            room = room & (held.host.max(axis=1) <= memory * HOST_SHARE)
        if disks is not None:
            room = room & (held.disk.max(axis=1) <= disks)
        return room

    def _pair_away(
        self, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]
    ) -> Float[np.ndarray, "pairs workers"] | float:
        """Activations of the fullest workers of every pair in host memory."""
        if not self.rows.away.activations:
            return 0.0
        return np.einsum("ni,nwi->nw", self.costs.away_bytes[rows], self.alive[shapes], optimize=False)

    def _pair_memory(
        self, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Activations, transient, dense and expert parameters of the fullest workers of every pair."""
        costs = self.costs
        every, workers, items = self.held.shape

        def products(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
            """Of all rows and shapes, of which the pairs are taken: one product is quicker than many short sums."""
            whole = table @ counts.reshape(-1, items).T
            return whole.reshape(-1, every, workers)[rows, shapes]

        # Few sets of items stand on workers, however many shapes there are.
        present, place = np.unique((self.held > 0).reshape(-1, items), axis=0, return_inverse=True)
        set_of = place.reshape(every, workers)[shapes]

        def largest(table: np.ndarray) -> np.ndarray:
            by_set = np.stack([np.max(table, axis=1, where=here, initial=0.0) for here in present], axis=1)
            return by_set[rows[:, None], set_of]

        return (
            products(costs.kept_bytes, self.alive),
            largest(costs.transient_bytes),
            products(costs.dense_parameters, self.held),
            products(costs.expert_parameters, self.held),
            (largest(costs.dense_parameters * self.whole), largest(costs.expert_parameters * self.whole)),
        )

    def _pair_frozen(
        self, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]
    ) -> dict[str, Float[np.ndarray, "pairs workers"]]:
        """Bytes of weights that are not trained on the fullest workers of every pair, by field of `WorkerLoad`."""
        if not self.rows.freezes:
            return {}
        costs, held = self.costs, self.held[shapes]
        found = {
            "frozen_dense_bytes": np.einsum("ni,nwi->nw", costs.frozen_dense_bytes[rows], held, optimize=False),
            "frozen_expert_bytes": np.einsum("ni,nwi->nw", costs.frozen_expert_bytes[rows], held, optimize=False),
        }
        whole = (costs.frozen_dense_bytes + costs.frozen_expert_bytes) * self.whole
        largest = np.where(held > 0, whole[rows][:, None, :], 0.0).max(axis=2)
        return {**found, "largest_frozen_bytes": largest}

    def _pair_extras(
        self, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]
    ) -> dict[str, Float[np.ndarray, "pairs workers"]]:
        """Bytes of the fullest workers of every pair beyond what follows from the number of their parameters."""
        if not self.uneven:
            return {}
        held = self.held[shapes]
        tables = {name: getattr(self.costs, name)[rows] for name in EXTRA_BYTES}
        return {name: np.einsum("ni,nwi->nw", table, held, optimize=False) for name, table in tables.items()}

    def _step_bound_s(
        self, choice: Sharding, rows: Int[np.ndarray, "picked"], shapes: Int[np.ndarray, "picked"]
    ) -> Float[np.ndarray, "picked"]:
        """Pipeline bound with what the sharding adds to layers, and what worker 0 waits for around it."""
        if choice.name in ("z0", "z1", "z2"):
            terms, place = self._bare, rows
        else:
            used, place = np.unique(rows, return_inverse=True)
            costs = self.costs.take(used)
            sharding = self.sharding_columns(choice, used)
            sync = sync_layers(costs, self.columns.take(used), sharding, self.hardware, self.workload, anything=True)
            forward_s, backward_s = costs.forward_s + sync.forward_s, costs.backward_s + sync.backward_s
            terms = self._terms(costs, forward_s, backward_s, self.boundary.transfer_s[used])
        groups = self.groups.take(rows)
        picked = self.sharding_columns(choice, rows)
        step = step_sync(
            self._first_dense[rows, shapes][:, None],
            self._first_experts[rows, shapes][:, None],
            terms.first_forward_s[place, shapes][:, None],
            terms.first_backward_s[place, shapes][:, None],
            self.per_update[shapes][:, None],
            picked,
            DataNetwork(picked, groups, self.hardware),
            self.workload,
        )
        optimizer_s = step.optimizer_s
        if self.uneven:
            dense_s, expert_s = (seconds[rows, shapes][:, None] for seconds in self._first_update_s)
            optimizer_s = optimizer_s + shared_update_s(dense_s, expert_s, picked)
        around = (step.gradients_s + step.gather_s + optimizer_s + step.offload_s)[:, 0] * self.updates[shapes]
        return terms.pipeline_s[place, shapes] + around + self.boundary.tied_s[rows] * self.apart[shapes]


def _padded(tables: list[np.ndarray]) -> np.ndarray:
    """Tables as one, the last row of each repeated to the length of the longest."""
    lengths = [len(table) for table in tables]
    filled = np.empty((len(tables), max(lengths), *tables[0].shape[1:]))
    for place, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        filled[place, :length] = table
        filled[place, length:] = table[-1]
    return filled


def _candidates(found: list[tuple[np.ndarray, ...]]) -> Candidates:
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Candidates(row=none, shape=none, sharding=none, bound_s=np.zeros(0), peak_bytes=np.zeros(0))
    row, shape, sharding, bound_s, peak_bytes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Candidates(row=row, shape=shape, sharding=sharding, bound_s=bound_s, peak_bytes=peak_bytes)
