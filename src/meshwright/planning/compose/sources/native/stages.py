"""Ways to run a stage on some devices of an island, priced by `estimate`: one row per strategy, per layer and not per
slice.

    seconds of a stage   sum over its parts p (layer kinds, embedding, head) of  w_p n_p
    bytes of a device    fixed + largest transient + sum over parts of (state_p + in flight x kept_p) n_p

so that one row prices every slice of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from meshwright.estimate.data.network import DataNetwork, data_groups
from meshwright.estimate.data.sync import StepCompute, step_sync, sync_layers
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import ItemCosts, item_costs
from meshwright.estimate.layers.items import FULL, NONE, Item
from meshwright.estimate.layers.states import EXTRA_BYTES, shared_update_s, tensor_updates_s
from meshwright.estimate.memory import WorkerLoad, worker_bytes
from meshwright.estimate.pipeline import Placed, boundary_columns
from meshwright.planning.compose.sources.native.stage_grid import quickest_rows, shardings_tried, stage_grid
from meshwright.schedules.plan_rows import plan_of
from meshwright.search.axes import recompute_words
from meshwright.search.grid import COLUMNS, Grid
from meshwright.search.shardings import Sharding, ShardingTable, keeps_order
from meshwright.search.space import Space
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow, recompute_fields, recompute_of
from meshwright.specs.workload import Workload

RECOMPUTES: tuple[tuple[str, float], ...] = (
    ("none", 0.0),
    ("sel", 0.0),
    ("block", 0.25),
    ("block", 0.5),
    ("block", 0.75),
    ("full", 1.0),
)
"""Name and share of the layers that are recomputed in full; `sel` stands for the selective way of the space."""
MOST_MICRO_BATCH = 16
"""Sequences of a rank's micro-batch; larger ones keep more alive and leave fewer of them to fill a pipeline."""
ANY_PASSES = 1e6
"""Backwards of a micro-batch beside which all gradients leave that can leave beside any."""
NO_PASSES = 1e-6
"""Share of passes so small that no gradients leave beside them."""

NO_COLUMNS = ("grid", "shardings", "selective", "always_s", "made")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageOptions:
    """Strategies of a stage, one row each; parts are the model's layer kinds, then embedding, then head."""

    grid: Grid
    devices: Int[np.ndarray, "rows"]
    """Devices of the stage: tp x cp x dp."""
    global_micro_batch: Int[np.ndarray, "rows"]
    """Sequences of one micro-batch over all data ranks, which every stage of a pipeline shares."""
    choice: Int[np.ndarray, "rows"]
    shardings: tuple[Sharding, ...]
    recompute: Int[np.ndarray, "rows"]
    """Index into RECOMPUTES."""
    selective: str
    """What selective recompute repeats, as a word of the axis."""
    forward_s: Float[np.ndarray, "rows parts"]
    backward_s: Float[np.ndarray, "rows parts"]
    state_bytes: Float[np.ndarray, "rows parts"]
    kept_bytes: Float[np.ndarray, "rows parts"]
    """Bytes kept per micro-batch in flight."""
    transient_bytes: Float[np.ndarray, "rows parts"]
    """The largest of a stage's parts counts once."""
    fixed_bytes: Float[np.ndarray, "rows"]
    between_bytes: Float[np.ndarray, "rows"]
    """What of it only stages of one pipeline take, to pass on what they do."""
    sync_s: Float[np.ndarray, "rows parts"]
    """Gradient sums, optimizer and gathers of a step that compute does not hide."""
    least_sync_s: Float[np.ndarray, "rows parts"]
    """The part of `sync_s` that no compute hides, however much there is."""
    beside_s: Float[np.ndarray, "rows parts"]
    """Gradients and weights of a step that compute can hide."""
    meets: Float[np.ndarray, "rows"]
    """1 where these take links that transfers to the next stage take as well."""
    always_s: float
    """What follows every step whatever its layers; the same for all strategies, and left out of `sync_s`."""
    made: dict[tuple[int, int], ExecutionPlan] = field(default_factory=dict, init=False)
    """Plans of a single stage by row and layers: many pipelines hold the same ones."""

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def once_s(self) -> Float[np.ndarray, "rows parts"]:
        """Forward and backward of one micro-batch."""
        return self.forward_s + self.backward_s

    def take(self, index: Int[np.ndarray, "picked"] | Bool[np.ndarray, "rows"]) -> StageOptions:
        """The rows of this index or mask."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NO_COLUMNS}
        return StageOptions(
            grid=self.grid.take(index),
            shardings=self.shardings,
            selective=self.selective,
            always_s=self.always_s,
            **{name: values[index] for name, values in columns.items()},
        )

    def plan_row(self, row: int, layers: int) -> PlanRow:
        """One row as a plan of a single stage of so many layers."""
        grid, choice = self.grid, self.shardings[int(self.choice[row])]
        name, share = RECOMPUTES[int(self.recompute[row])]
        again = int(np.ceil(share * layers)) if name == "block" else 0
        word = ("full" if again >= layers else "block") if again else "none" if name == "block" else name
        return grid.plan_row(
            row,
            sharding=choice.name,
            shard_group=choice.shard * int(grid.cp[row]),
            gbs=int(self.global_micro_batch[row]),
            **recompute_fields(self.selective if word == "sel" else word),
            recompute_layers=again if again < layers else 0,
        )

    def stage_plan(self, row: int, layers: int) -> ExecutionPlan:
        """The plan of `plan_row`: one worker with so many layers."""
        if (row, layers) not in self.made:
            self.made[row, layers] = plan_of(self.plan_row(row, layers), (layers,))
        return self.made[row, layers]


def stage_options(
    model: ModelSpec,
    workload: Workload,
    hardware: Sequence[Hardware],
    *,
    sizes: Sequence[int],
    global_micro_batches: Sequence[int],
    most_tensor: int,
    space: Space,
    layers_per_device: float,
    most_micro_batch: int = MOST_MICRO_BATCH,
) -> list[StageOptions]:
    """The same strategies of stages of these sizes on each of some islands, row by row.

    Args:
        model: the model.
        workload: the step.
        hardware: the hardware of each island.
        sizes: devices of a stage.
        global_micro_batches: sequences of a micro-batch over all data ranks.
        most_tensor: devices that tensor parallelism may span: one node's.
        space: pinned axes.
        layers_per_device: the layers per device of a usual stage, for what a step waits for around its pipeline.
        most_micro_batch: sequences of a rank's micro-batch at most.

    Returns:
        The rows on each island, dominated ones left in, without strategies that are slow on all islands together;
        nothing where no degrees are legal.
    """
    grid, devices, global_micro_batch = stage_grid(
        model, workload, sizes, global_micro_batches, most_tensor, space, most_micro_batch
    )
    if not grid.rows:
        return []
    selective = _selective(model, workload, space)
    items, mix = _items(model, selective), _mix(model)
    columns = grid.strategies(workload)
    every = [item_costs(items, columns, model, one, workload) for one in hardware]
    kinds = len(mix)
    layer_s = [costs.forward_s[:, :kinds] @ mix + costs.backward_s[:, :kinds] @ mix for costs in every]
    kept = quickest_rows(grid, devices, global_micro_batch, np.sum(layer_s, axis=0))
    grid, devices, global_micro_batch = grid.take(kept), devices[kept], global_micro_batch[kept]
    choices = shardings_tried(grid, space)
    found = []
    for one, costs in zip(hardware, (costs.take(kept) for costs in every), strict=True):
        pieces = [
            _sharded(
                model,
                workload,
                one,
                grid,
                devices,
                global_micro_batch,
                costs,
                items,
                choice,
                number,
                layers_per_device,
                selective,
            )
            for number, choice in enumerate(choices)
        ]
        priced = [piece for piece in pieces if piece is not None]
        if not priced:
            return []
        found.append(_with_recompute(_joined(priced, tuple(choices)), space))
    return found


def _with_recompute(options: StageOptions, space: Space) -> StageOptions:
    """The rows of the kinds of recompute that are pinned."""
    wanted = space.pinned("recompute")
    if wanted is None:
        return options
    kinds = {str(word).partition("-")[0] for word in wanted}
    return options.take(np.isin(options.recompute, [i for i, (name, _) in enumerate(RECOMPUTES) if name in kinds]))


def _selective(model: ModelSpec, workload: Workload, space: Space) -> str:
    """The selective way to recompute that a space has; the usual one where it has none."""
    words = (*map(str, space.pinned("recompute") or ()), *recompute_words(model, workload))
    return next(word for word in words if word.startswith("sel"))


def _items(model: ModelSpec, selective: str) -> tuple[Item, ...]:
    modes = (NONE, recompute_of(selective), FULL)
    layers = tuple(Item("layer", kind, mode) for mode in modes for kind in model.kinds())
    edges = (Item("embedding"), Item("head"))
    modules = tuple(Item("mtp", model.mtp_kind, mode) for mode in modes) if model.mtp_layers else ()
    return (*layers, *edges, *modules)


def _mix(model: ModelSpec) -> Float[np.ndarray, "kinds"]:
    """Share of each kind in the model's layers."""
    counts = model.kind_counts()
    return np.array([counts[kind] for kind in model.kinds()], dtype=float) / model.num_layers


def _sharded(
    model: ModelSpec,
    workload: Workload,
    hardware: Hardware,
    grid: Grid,
    devices: Int[np.ndarray, "rows"],
    global_micro_batch: Int[np.ndarray, "rows"],
    costs: ItemCosts,
    items: tuple[Item, ...],
    choice: Sharding,
    number: int,
    layers_per_device: float,
    selective: str,
) -> StageOptions | None:
    """All recompute modes of the rows that one data-parallel choice applies to."""
    shared = grid.dp * grid.cp > 1
    legal = shared if choice.kind.zero else np.ones(grid.rows, dtype=bool)
    if choice.kind.grouped:
        legal = (grid.dp % choice.shard == 0) & (grid.dp > choice.shard)
    if not keeps_order(choice.name):
        legal = legal & ~grid.first
    rows = np.flatnonzero(legal)
    if not len(rows):
        return None
    grid, devices, global_micro_batch, costs = (
        grid.take(rows),
        devices[rows],
        global_micro_batch[rows],
        costs.take(rows),
    )
    columns = grid.strategies(workload)
    every = np.arange(grid.rows)
    sharding = ShardingTable.of(grid, (choice,), hardware.software.whole_gradients).take(np.zeros_like(every), every)
    sync = sync_layers(costs, columns, sharding, hardware, workload, anything=bool((sharding.zero == 3).any()))
    forward_s, backward_s = costs.forward_s + sync.forward_s, costs.backward_s + sync.backward_s
    dense, experts = np.maximum(costs.dense_parameters, 0.0), costs.expert_parameters
    zero = np.zeros((grid.rows, 1))
    alone, communicators = (
        boundary_columns(
            columns, Placed(pp=np.full(grid.rows, stages), dp=grid.dp), model, hardware, workload
        ).communicators[:, None]
        for stages in (1, 2)
    )

    def peak(**given: Float[np.ndarray, "rows items"]) -> Float[np.ndarray, "rows items"]:
        nothing = dict.fromkeys(
            ("dense_parameters", "expert_parameters", "largest_dense", "largest_expert", "activations", "transient"),
            np.zeros_like(dense),
        )
        load = WorkerLoad(**(nothing | {"communicators": communicators} | given), offload_weights=zero)
        return worker_bytes(load, sharding, hardware, workload).peak

    # The one formula of memory is linear in all of these: what each part adds is the difference to an empty device.
    empty = peak()
    between = empty - peak(communicators=alone)
    frozen = {"frozen_dense_bytes": costs.frozen_dense_bytes, "frozen_expert_bytes": costs.frozen_expert_bytes}
    more = {name: getattr(costs, name) for name in EXTRA_BYTES}
    state = peak(dense_parameters=dense, expert_parameters=experts, **frozen, **more) - empty
    kept = peak(activations=costs.kept_bytes) - empty
    # Each of these is as large as the largest part makes it, and they are there at the same time.
    passing = [
        peak(transient=costs.transient_bytes) - empty,
        peak(largest_dense=dense, largest_frozen_bytes=costs.gathered_bytes) - empty,
        peak(largest_expert=experts) - empty,
    ]

    usual = layers_per_device * devices[:, None]
    network = DataNetwork(sharding, data_groups(columns), hardware)
    micro_batches = np.maximum(grid.m, 1.0)[:, None]
    always_s = hardware.software.step_s * workload.training
    tensors_s = tensor_updates_s(costs.dense_tensors, costs.expert_tensors, sharding, hardware, workload)
    update_s = shared_update_s(costs.dense_update_s, costs.expert_update_s, sharding) + tensors_s

    def waited_s(passes: float) -> Float[np.ndarray, "rows items"]:
        compute = StepCompute(
            forward_s=forward_s * usual, backward_s=backward_s * usual, micro_batches=micro_batches, passes=passes
        )
        around = step_sync(dense * usual, experts * usual, compute, sharding, network, workload)
        waited = around.gradients_s + around.gather_s + around.optimizer_s + around.offload_s - always_s
        return np.asarray(waited / usual + update_s)

    sync_s, least_sync_s = waited_s(1.0), waited_s(ANY_PASSES)
    beside_s = waited_s(NO_PASSES) - least_sync_s
    meets = np.broadcast_to(network.meets_hops, (grid.rows, 1))[:, 0]
    kinds, edge = len(model.kinds()), 3 * len(model.kinds())

    def parts(values: Float[np.ndarray, "rows items"], mode: int, *, largest: bool = False) -> np.ndarray:
        head = values[:, edge + 1]
        if model.mtp_layers:
            module = values[:, edge + 2 + mode]
            head = np.maximum(head, module) if largest else head + model.mtp_layers * module
        return np.column_stack([values[:, mode * kinds : (mode + 1) * kinds], values[:, edge], head])

    def transient(mode: int) -> np.ndarray:
        """What passes with each kind of layer, and with embedding and head beside any layer."""
        total = np.zeros((grid.rows, kinds + 2))
        for values in passing:
            own = parts(values, mode, largest=True)
            own[:, kinds:] = np.maximum(own[:, kinds:], own[:, :kinds].max(axis=1, keepdims=True))
            total += own
        return total

    pieces = []
    for index, (name, share) in enumerate(RECOMPUTES):
        mode = {"none": 0, "sel": 1, "full": 2, "block": 0}[name]

        def mixed(values: np.ndarray, mode: int = mode, name: str = name, share: float = share) -> np.ndarray:
            own = parts(values, mode)
            return (1.0 - share) * own + share * parts(values, 2) if name == "block" else own

        pieces.append(
            StageOptions(
                grid=grid,
                devices=devices,
                global_micro_batch=global_micro_batch,
                choice=np.full(grid.rows, number),
                shardings=(),
                selective=selective,
                recompute=np.full(grid.rows, index),
                forward_s=mixed(forward_s),
                backward_s=mixed(backward_s),
                state_bytes=parts(state, 0),
                kept_bytes=mixed(kept),
                transient_bytes=transient(2 if share else mode),
                fixed_bytes=empty[:, 0],
                between_bytes=between[:, 0],
                sync_s=parts(sync_s, 0),
                least_sync_s=parts(least_sync_s, 0),
                beside_s=parts(beside_s, 0),
                meets=meets,
                always_s=always_s,
            )
        )
    return _joined(pieces, ())


def _joined(pieces: Sequence[StageOptions], shardings: tuple[Sharding, ...]) -> StageOptions:
    columns = {name: np.concatenate([getattr(p.grid, name) for p in pieces]) for name in COLUMNS}
    grid = Grid(**columns, tensor="1d", offload="", stopped="")
    names = [f.name for f in fields(StageOptions) if f.name not in NO_COLUMNS]
    return StageOptions(
        grid=grid,
        shardings=shardings,
        selective=pieces[0].selective,
        always_s=pieces[0].always_s,
        **{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names},
    )
