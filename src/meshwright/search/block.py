"""A block: rows of one pp x pipeline shapes x shardings, bounded and priced by broadcasting."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.data.network import DataNetwork
from meshwright.estimate.data.sync import StepCompute, step_sync, sync_layers
from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.estimate.layers.states import EXTRA_BYTES, shared_update_s, tensor_updates_s
from meshwright.estimate.memory import WorkerLoad, fullest_bytes, usual, worker_bytes
from meshwright.search.priced_rows import PricedRows
from meshwright.search.shape_tables import FirstWorker, Shape, ShapeTables
from meshwright.search.shardings import Sharding
from meshwright.search.table import distinct_codes
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.row import PlanRow, recompute_fields
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
    """Seconds of pairs of a row and a shape."""

    pipeline_s: Float[np.ndarray, "..."]
    first_forward_s: Float[np.ndarray, "..."]
    """Seconds of worker 0's forward, per micro-batch."""
    first_backward_s: Float[np.ndarray, "..."]


class Block:
    """Priced rows x pipeline shapes."""

    def __init__(self, rows: PricedRows, shapes: ShapeTables) -> None:
        """Bound every row under every shape.

        Args:
            rows: the rows of one pp.
            shapes: the shapes of the same, and of every number of micro-batches that a row has.
        """
        self.rows, self.shapes = rows, shapes
        self.grid, self.columns, self.costs, self.whole = rows.grid, rows.columns, rows.costs, rows.whole
        self.edges = rows.edges
        self.boundary, self.groups, self.shardings = rows.boundary, rows.groups, rows.shardings
        self.hardware, self.workload, self.limit_bytes = rows.hardware, rows.workload, rows.limit_bytes
        self.first = FirstWorker(rows.costs, shapes, rows.hardware)
        self.paired = self.grid.paired
        self.allowed = (self.grid.m[:, None] == shapes.m) & (~self.paired[:, None] | shapes.pairing)
        """Whether a shape is of a row's micro-batches, and can run what it has beside its exchanges."""
        self.least_bytes = np.inf
        """No plan that was priced needs less."""
        self.uneven = rows.uneven
        self.settled_early = not (rows.uneven or rows.freezes or rows.grid.offload)
        """Whether worker 0's parameters and activations alone say that a pair does not fit."""

    def take(self, index: Int[np.ndarray, "picked"]) -> Block:
        """The rows of this index."""
        return Block(self.rows.take(index), self.shapes)

    @cached_property
    def open(self) -> Bool[np.ndarray, "rows shapes"]:
        """Pairs whose worker 0 has room for what it holds under any sharding."""
        if not self.settled_early:
            return self.allowed
        held = self.first.least_bytes(self.rows.least_per_parameter)
        self.least_bytes = min(self.least_bytes, float(held.min(initial=np.inf, where=self.allowed)))
        return self.allowed & (held <= self.limit_bytes * (1.0 + ROUNDING))

    @cached_property
    def _bare(self) -> _Terms:
        """Where nothing is gathered."""
        return self._terms(self.costs, self.costs.forward_s, self.costs.backward_s, self.boundary.transfer_s)

    def plan_row(self, row: int, shape: Shape, choice: Sharding) -> PlanRow:
        """One plan of the block as a row of degrees."""
        grid = self.grid
        return grid.plan_row(
            row,
            pp=shape.p,
            vpp=shape.v,
            **choice.settings(int(grid.cp[row])),
            gbs=self.workload.global_batch,
            schedule=shape.schedule.token,
            **recompute_fields(shape.recompute),
            recompute_layers=shape.recompute_layers,
            offload=grid.offload,
        )

    def plans(self, pairs: Bool[np.ndarray, "rows shapes"]) -> Int[np.ndarray, "rows"]:
        """How many plans these pairs of each row stand for: one for each sharding of the row."""
        return np.asarray(self.rows.plans_of_rows * pairs.sum(axis=1))

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
        shapes, paths, items = self.shapes.path_forward.shape
        length = (
            forward_s @ self.shapes.path_forward.reshape(-1, items).T
            + backward_s @ self.shapes.path_backward.reshape(-1, items).T
            + transfer_s[:, None] * self.shapes.path_transfer.reshape(-1)
        )
        if self.shapes.splits:
            length = length + costs.weight_gradient_s @ self.shapes.path_weight.reshape(-1, items).T
        return _Terms(
            pipeline_s=length.reshape(-1, shapes, paths).max(axis=2),
            first_forward_s=forward_s @ self.shapes.first.T,
            first_backward_s=backward_s @ self.shapes.first.T,
        )

    def bounds_s(self) -> Float[np.ndarray, "rows shapes"]:
        """Lower bound of the step time under any sharding."""
        return self._bare.pipeline_s

    def refined_bounds_s(self) -> Float[np.ndarray, "rows shapes"]:
        """The same of plans whose layers choose their recompute one by one: no quicker than where none recomputes, or
        than where all do, where what is kept leaves for the host."""
        bounds_s = self.bounds_s()
        return np.minimum(bounds_s, bounds_s[:, self.shapes.bare])

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
        # What is away leaves some rows no legal sharding.
        pair_row, pair_shape = np.nonzero(wanted & (self.rows.plans_of_rows > 0)[:, None])
        found: list[tuple[np.ndarray, ...]] = []
        feasible = 0
        if not len(pair_row):
            return _candidates(found), 0, 0
        priced = int(self.rows.plans_of_rows[pair_row].sum())
        open_plans, time_s = self.rows.table.legal[:, pair_row], None
        if spare and self.settled_early:
            # What one worker holds and how long a plan takes leave few plans whose other workers have to be looked at.
            open_plans &= self._first_has_room(pair_row, pair_shape, open_plans)
            time_s = self._times_s(open_plans, pair_row, pair_shape, threshold_s)
            open_plans &= time_s <= threshold_s
            some = np.flatnonzero(open_plans.any(axis=0))
            pair_row, pair_shape, open_plans, time_s = (
                pair_row[some],
                pair_shape[some],
                open_plans[:, some],
                time_s[:, some],
            )
            if not len(some):
                return _candidates(found), priced, 0
        load = self._pair_load(pair_row, pair_shape)
        if spare and usual(load):
            # Most pairs hold too much under any sharding.
            least = fullest_bytes(load, self.rows.least_per_parameter.every(slice(None), pair_row), self.hardware)[0]
            some = np.flatnonzero(least <= self.limit_bytes)
            self.least_bytes = min(self.least_bytes, float(least.min()))
            pair_row, pair_shape, open_plans, load = (
                pair_row[some],
                pair_shape[some],
                open_plans[:, some],
                load.take(some),
            )
            time_s = None if time_s is None else time_s[:, some]
        if not len(pair_row):
            return _candidates(found), priced, 0
        together = max(1, AT_ONCE // len(pair_row))
        for first in range(0, len(open_plans), together):
            part = slice(first, first + together)
            peak, has_room = self._peak_bytes(load, part, pair_row)
            self.least_bytes = min(self.least_bytes, float(np.min(peak, where=open_plans[part], initial=np.inf)))
            choices, pairs = np.nonzero(open_plans[part] & has_room)
            feasible += len(pairs)
            if not len(pairs):
                continue
            rows, shapes, peak, choices = pair_row[pairs], pair_shape[pairs], peak[choices, pairs], choices + first
            took_s = self._step_bound_s(choices, rows, shapes) if time_s is None else time_s[choices, pairs]
            good = np.flatnonzero(took_s <= threshold_s)
            found.append((rows[good], shapes[good], choices[good], took_s[good], peak[good]))
        return _candidates(found), priced, feasible

    def _first_has_room(
        self,
        rows: Int[np.ndarray, "pairs"],
        shapes: Int[np.ndarray, "pairs"],
        legal: Bool[np.ndarray, "choices pairs"],
    ) -> Bool[np.ndarray, "choices pairs"]:
        """Whether worker 0 has room for its states under each choice and what its micro-batches keep."""
        held = self.first.held_bytes(self.rows.per_parameter, rows, shapes)
        self.least_bytes = min(self.least_bytes, float(np.min(held, where=legal, initial=np.inf)))
        return np.asarray(held <= self.limit_bytes * (1.0 + ROUNDING))

    def _times_s(
        self,
        open_plans: Bool[np.ndarray, "choices pairs"],
        rows: Int[np.ndarray, "pairs"],
        shapes: Int[np.ndarray, "pairs"],
        threshold_s: float,
    ) -> Float[np.ndarray, "choices pairs"]:
        """Bounds of the step time of open plans; infinite where the pipeline alone takes longer than the threshold."""
        time_s = np.full(open_plans.shape, np.inf)
        choices, pairs = np.nonzero(open_plans)
        for first in range(0, len(choices), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            found = self._step_bound_s(choices[part], rows[pairs[part]], shapes[pairs[part]], threshold_s)
            time_s[choices[part], pairs[part]] = found
        return time_s

    def _peak_bytes(
        self, load: WorkerLoad, choices: slice, rows: Int[np.ndarray, "pairs"]
    ) -> tuple[Float[np.ndarray, "choices pairs"], Bool[np.ndarray, "choices pairs"]]:
        """Bytes of the fullest worker of every pair, and whether device and host have room for it.

        Both mean nothing where a choice is not legal.
        """
        sharding = self.rows.table.every(choices, rows)
        if usual(load) and not np.any(np.asarray(sharding.layers_ahead) > 1):
            peak = fullest_bytes(load, self.rows.per_parameter.every(choices, rows), self.hardware)
        else:
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
        costs, tables = self.costs, self.shapes
        held, alive = tables.held, tables.alive
        every, workers, items = held.shape
        set_of = tables.set_of[shapes]

        used, row = distinct_codes(rows, self.grid.rows)
        used_shapes, shape = distinct_codes(shapes, every)

        def products(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
            """Sums of all pairs out of one product of all rows and shapes: it is quicker than many short sums."""
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
            more = (costs.kept_bytes @ tables.first.T / tables.chunks) * self.paired[:, None]
            found["activations"] = found["activations"] + more[rows, shapes][:, None]
        if self.rows.away.activations:
            found["away"] = products(costs.away_bytes, alive)
        if self.rows.freezes:
            frozen = costs.frozen_dense_bytes, costs.frozen_expert_bytes
            found["frozen_dense_bytes"], found["frozen_expert_bytes"] = (products(table, held) for table in frozen)
            found["largest_frozen_bytes"] = largest(costs.gathered_bytes * self.whole)
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
        threshold_s: float = np.inf,
    ) -> Float[np.ndarray, "picked"]:
        """Pipeline bound with what the sharding adds to layers, and what worker 0 waits for around it.

        Infinite where the pipeline alone takes longer than the threshold.
        """
        terms = self._pipeline_terms(choices, rows, shapes)
        some = np.flatnonzero(terms.pipeline_s <= threshold_s)
        time_s = np.full(len(rows), np.inf)
        if len(some):
            picked = _Terms(*(getattr(terms, field.name)[some] for field in fields(_Terms)))
            time_s[some] = picked.pipeline_s + self._around_s(picked, choices[some], rows[some], shapes[some])
        return time_s

    def _pipeline_terms(
        self, choices: Int[np.ndarray, "picked"], rows: Int[np.ndarray, "picked"], shapes: Int[np.ndarray, "picked"]
    ) -> _Terms:
        """Pipeline terms of each plan, with what gathering weights adds to its layers."""
        pipeline_s = self._bare.pipeline_s[rows, shapes]
        forward_s, backward_s = self._bare.first_forward_s[rows, shapes], self._bare.first_backward_s[rows, shapes]
        gathering = np.flatnonzero(self.rows.table.columns.zero[choices, rows] == Z3)
        if len(gathering):
            code, shape = choices[gathering] * self.grid.rows + rows[gathering], shapes[gathering]
            used, place = distinct_codes(code, len(self.shardings) * self.grid.rows)
            terms = self._gathered_terms(*np.divmod(used, self.grid.rows))
            pipeline_s[gathering] = terms.pipeline_s[place, shape]
            forward_s[gathering] = terms.first_forward_s[place, shape]
            backward_s[gathering] = terms.first_backward_s[place, shape]
        return _Terms(pipeline_s=pipeline_s, first_forward_s=forward_s, first_backward_s=backward_s)

    def _around_s(
        self,
        terms: _Terms,
        choices: Int[np.ndarray, "picked"],
        rows: Int[np.ndarray, "picked"],
        shapes: Int[np.ndarray, "picked"],
    ) -> Float[np.ndarray, "picked"]:
        """What worker 0 waits for around the pipeline."""
        sharding, groups = self.sharding_columns(choices, rows), self.groups.take(rows)
        step = step_sync(
            self.first.dense[rows, shapes][:, None],
            self.first.experts[rows, shapes][:, None],
            StepCompute(
                forward_s=terms.first_forward_s[:, None],
                backward_s=terms.first_backward_s[:, None],
                micro_batches=self.shapes.per_update[shapes][:, None],
                passes=self.shapes.last_passes[shapes][:, None],
            ),
            sharding,
            DataNetwork(sharding, groups, self.hardware),
            self.workload,
        )
        dense, experts = (tensors[rows, shapes][:, None] for tensors in self.first.tensors)
        tensors_s = tensor_updates_s(dense, experts, sharding, self.hardware, self.workload)
        optimizer_s = step.optimizer_s + tensors_s
        if self.uneven:
            dense_s, expert_s = (seconds[rows, shapes][:, None] for seconds in self.first.update_s)
            optimizer_s = optimizer_s + shared_update_s(dense_s, expert_s, sharding)
        once_s = (step.gradients_s + step.gather_s + optimizer_s + step.offload_s)[:, 0]
        around = once_s * self.shapes.updates[shapes]
        return around + self.boundary.tied_s[rows] * self.shapes.apart[shapes]

    def _gathered_terms(self, choices: Int[np.ndarray, "used"], rows: Int[np.ndarray, "used"]) -> _Terms:
        """Pipeline terms of rows whose layers gather their weights."""
        costs, sharding = self.costs.take(rows), self.sharding_columns(choices, rows)
        sync = sync_layers(costs, self.columns.take(rows), sharding, self.hardware, self.workload, anything=True)
        forward_s, backward_s = costs.forward_s + sync.forward_s, costs.backward_s + sync.backward_s
        return self._terms(costs, forward_s, backward_s, self.boundary.transfer_s[rows])


def _candidates(found: list[tuple[np.ndarray, ...]]) -> Candidates:
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Candidates(row=none, shape=none, sharding=none, bound_s=np.zeros(0), peak_bytes=np.zeros(0))
    row, shape, sharding, bound_s, peak_bytes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Candidates(row=row, shape=shape, sharding=sharding, bound_s=bound_s, peak_bytes=peak_bytes)
