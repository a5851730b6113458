"""A strategy for every layer: tensor or sequence degree, ZeRO stage and recompute chosen layer by layer.

Outside, pipeline degrees and numbers of micro-batches are tried; inside, each stage of equal layers is a knapsack: a
dynamic program over its layers, its memory in coarse units, and the strategy of the last layer, with the cost of moving
activations where neighbouring layers lie differently. Units are rounded up, so what is found fits; the best of each
outer choice is then priced as any other plan is.

Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism" (VLDB
2022), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from meshwright.errors import InfeasibleError, Problem
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.items import FULL, NONE, SELECTIVE, Item, item_costs
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.sync import DataGroups, DataNetwork, layer_sync
from meshwright.estimate.unpack import sharding_columns, strategy_columns
from meshwright.shapes import Float, Int
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import ExecutionPlan, StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.strategies.data import Z1, Z3, state_bytes
from meshwright.units import MIB

UNIT_BYTES = 64 * MIB
"""Of memory in the dynamic program."""
RECOMPUTES: tuple[Recompute, ...] = (NONE, SELECTIVE, FULL)
ROUNDING = 1e-12
"""Share of a time by which sums of equal terms differ."""
PRICED = 4
"""Outer choices, the quickest by the dynamic program, that are priced as whole plans."""


@dataclass(frozen=True, kw_only=True)
class LayerwisePlan:
    """The quickest plan with a strategy for every layer."""

    plan: ExecutionPlan
    estimate: StepEstimate
    program_s: float
    """Seconds of a step by the dynamic program, which adds up layers and hides no synchronisation behind others."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LayerOptions:
    """Strategies of a layer on the devices of one stage, one a row."""

    strategies: tuple[LayerStrategy, ...]
    time_s: Float[np.ndarray, " options"]
    """Of one micro-batch, synchronisation shared among them."""
    forward_s: Float[np.ndarray, " options"]
    """Part of it."""
    sync_s: Float[np.ndarray, " options"]
    """Once a step, of which each micro-batch has its share of the time."""
    edge_s: Float[np.ndarray, "options edges"]
    """More in the first layer (embedding) and the last (head)."""
    edge_forward_s: Float[np.ndarray, "options edges"]
    """Part of it."""
    state_bytes: Float[np.ndarray, " options"]
    kept_bytes: Float[np.ndarray, " options"]
    transient_bytes: Float[np.ndarray, " options"]
    edge_bytes: Float[np.ndarray, "options edges"]
    micro_batches: int
    """That share what happens once a step."""
    group: Int[np.ndarray, " options"]
    """Equal for options between which activations need not move."""
    move_s: float


def layerwise_plan(model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> LayerwisePlan:
    """Choose pipeline degree and micro-batches for all, and a strategy for every layer.

    Args:
        model: of layers of one kind.
        cluster: one group of equal nodes.
        workload: the step.

    Raises:
        InfeasibleError: nothing fits.
    """
    group = cluster.groups[0]
    hardware = hardware_of(group, workload.precision, workload.software)
    room = room_bytes(hardware)
    found: list[tuple[float, PlanRow, list[list[LayerStrategy]]]] = []
    for pp in (degree for degree in _powers(cluster.devices) if model.num_layers % degree == 0):
        for micro_batches in (count for count in _powers(workload.global_batch) if count >= pp):
            samples = workload.global_batch // micro_batches
            options = layer_options(model, hardware, workload, cluster.devices // pp, samples, micro_batches)
            if options is not None and (solved := _pipeline(options, model.num_layers, pp, micro_batches, room)):
                step_s, stages = solved
                found.append((step_s, _row(stages[0][0], pp, micro_batches, workload), stages))
    if not found:
        raise InfeasibleError(
            Problem(
                what=f"{model.name} fits on {cluster.name} with no strategy of its layers",
                why=f"devices hold {group.device.memory_bytes / 1e9:.4g} GB",
                fix="more devices, or a smaller batch",
                field="gpus",
            )
        )
    best: LayerwisePlan | None = None
    for step_s, row, stages in sorted(found, key=lambda one: one[0])[:PRICED]:
        plan = _plan(row, stages, model, workload)
        estimate = estimate_plan(plan, model, cluster, workload)
        if best is None or _rank(estimate) < _rank(best.estimate):
            best = LayerwisePlan(plan=plan, estimate=estimate, program_s=step_s)
    assert best is not None
    return best


def room_bytes(hardware: Hardware) -> float:
    """What a device has for states, activations and working memory, fragments taken off.

    Args:
        hardware: of the device.
    """
    limit = hardware.memory_bytes * (1.0 - TIGHT_SHARE)
    software = hardware.software
    return (limit - hardware.efficiency.context_bytes - software.engine_bytes) / (1.0 + software.fragmentation)


def _rank(estimate: StepEstimate) -> tuple[bool, float]:
    return estimate.fits == "no", estimate.step_time_s


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if most % (1 << power) == 0]


def layer_options(
    model: ModelSpec, hardware: Hardware, workload: Workload, devices: int, samples: int, micro_batches: int
) -> LayerOptions | None:
    """Price every strategy of a layer of one stage; None where no data degree divides the samples.

    Args:
        model: of layers of one dense kind.
        hardware: of one device and its links.
        workload: the step.
        devices: of the stage.
        samples: of a micro-batch, over all data ranks.
        micro_batches: of a step.
    """
    kind = model.last_layer()
    strategies = _strategies(model, kind, devices, samples)
    if not strategies:
        return None
    columns = strategy_columns(strategies, np.array([samples / one.dp for one in strategies]), workload)
    items = (*(Item("layer", kind, mode) for mode in RECOMPUTES), Item("embedding"), Item("head"))
    costs = item_costs(items, columns, model, hardware, workload)
    rows = np.arange(len(strategies))
    mode = np.array([RECOMPUTES.index(one.recompute) for one in strategies])
    edges = np.array([len(RECOMPUTES), len(RECOMPUTES) + 1])
    forward_s, backward_s = costs.forward_s[rows, mode], costs.backward_s[rows, mode]
    parameters, nothing = costs.dense_parameters[rows, mode], np.zeros(len(strategies))
    sharding = sharding_columns(strategies)
    network = DataNetwork(sharding, DataGroups(
        dense_stride=np.array([[one.tp] for one in strategies]), expert_stride=np.ones((len(strategies), 1), int),
    ), hardware)  # fmt: skip
    gathered = layer_sync(
        parameters[:, None], nothing[:, None], forward_s[:, None], backward_s[:, None], sharding, network, workload
    )
    reduced = parameters[:, None] * workload.precision.bytes_of("reduce")
    whole = sharding.zero < Z1
    once_s = np.where(whole, network.replica_sum_s(reduced, expert=False), network.scatter_s(reduced, expert=False))
    returned = network.gather_s(parameters[:, None] * workload.precision.gathered_bytes, expert=False)
    once_s = np.where(sharding.zero >= Z3, 0.0, once_s + np.where(whole, 0.0, returned))[:, 0]
    state = state_bytes(sharding, sharding.shard, workload.precision, workload.optimizer, training=True).total[:, 0]
    sharded = (sharding.zero >= Z3)[:, 0]
    gathered_bytes = 2 * workload.precision.bytes_of("weights") + workload.precision.bytes_of("reduce")
    split = np.array([one.tp * one.cp for one in strategies])
    activation = samples * workload.seq_len * model.hidden * workload.precision.bytes_of("weights")
    return LayerOptions(
        strategies=strategies,
        time_s=forward_s + backward_s + (gathered.forward_s + gathered.backward_s)[:, 0] + once_s / micro_batches,
        forward_s=forward_s + gathered.forward_s[:, 0],
        sync_s=once_s,
        micro_batches=micro_batches,
        edge_s=costs.forward_s[:, edges] + costs.backward_s[:, edges],
        edge_forward_s=costs.forward_s[:, edges],
        state_bytes=state * parameters,
        kept_bytes=costs.kept_bytes[rows, mode],
        transient_bytes=costs.transient_bytes[rows, mode] + sharded * gathered_bytes * parameters,
        edge_bytes=state[:, None] * costs.dense_parameters[:, edges] + costs.kept_bytes[:, edges],
        group=np.searchsorted(np.unique(split), split),
        # There and back: what a device holds of the activations goes to others.
        move_s=2.0 * activation / devices / float(np.min(hardware.rates[0].bandwidth_bytes_per_s)),
    )


def _strategies(model: ModelSpec, kind: LayerSpec, devices: int, samples: int) -> tuple[LayerStrategy, ...]:
    """Tensor degrees that divide heads and devices, ZeRO stages 1 and 3 (0 on one replica), and recompute."""
    found = []
    heads = getattr(kind.attention, "kv_heads", 1)
    for tp in _powers(devices):
        dp = devices // tp
        if heads % tp or samples % dp:
            continue
        for zero in (1, 3) if dp > 1 else (0,):
            data = DataParallel(shard=dp, zero=zero) if zero else DataParallel(replicate=dp)
            for recompute in RECOMPUTES:
                tensor = Tensor1D(degree=tp, sequence_parallel=tp > 1)
                found.append(LayerStrategy(tensor=tensor, data=data, recompute=recompute))
    return tuple(found)


def _pipeline(
    options: LayerOptions, layers: int, pp: int, micro_batches: int, room_bytes: float
) -> tuple[float, list[list[LayerStrategy]]] | None:
    """Seconds of a step and the strategies of every stage; stages of equal layers and unequal numbers in flight."""
    times, stages, programs = [], [], StagePrograms(options, room_bytes)
    for stage in range(pp):
        solved = programs.best(layers // pp, min(pp - stage, micro_batches), stage == 0, stage == pp - 1)
        if solved is None:
            return None
        times.append(solved[0])
        stages.append([options.strategies[number] for number in solved[1]])
    return sum(times) + (micro_batches - 1) * max(times), stages


class StagePrograms:
    """The quickest strategies of a stage's layers; what is found for a few layers is kept for more of them."""

    def __init__(self, options: LayerOptions, room_bytes: float) -> None:
        """Solve nothing yet.

        Args:
            options: strategies of a layer.
            room_bytes: of a device, for states, activations and working memory.
        """
        self.options, self.room_bytes = options, room_bytes
        self._free: dict[bool, _Knapsack] = {}
        self._transients: dict[int, list[float]] = {}
        self._programs: dict[tuple[float, int, bool], _Knapsack] = {}

    def best(self, layers: int, in_flight: int, embedding: bool, head: bool) -> tuple[float, list[int]] | None:
        """Seconds of a micro-batch and the option of each layer, for every size the working memory may have.

        Args:
            layers: of the stage.
            in_flight: micro-batches that it keeps.
            embedding: whether its first layer holds the embedding.
            head: whether its last layer holds the head.
        """
        free = self._unlimited(layers, embedding, head)
        if self._fits(free[1], in_flight, embedding, head):
            return free
        best: tuple[float, list[int]] | None = None
        options = self.options
        for transient in self._working_memories(in_flight):
            key = transient, in_flight, embedding
            if key not in self._programs:
                allowed = np.flatnonzero(options.transient_bytes <= transient)
                held = options.state_bytes + in_flight * options.kept_bytes
                room = self.room_bytes - transient
                self._programs[key] = _Knapsack(options, allowed, held, options.edge_bytes, embedding, room)
            solved = self._programs[key].solve(layers, head)
            if solved is not None and (best is None or solved[0] < best[0]):
                best = solved
            if best is not None and best[0] <= self.least_s(layers, embedding, head):
                break
        return best

    def least_s(self, layers: int, embedding: bool, head: bool) -> float:
        """Seconds that no program of so many layers is below, whatever the memory; arguments as `best`."""
        return self._unlimited(layers, embedding, head)[0] * (1 + ROUNDING)

    def _unlimited(self, layers: int, embedding: bool, head: bool) -> tuple[float, list[int]]:
        """The quickest strategies of layers that take no memory."""
        if embedding not in self._free:
            every = np.arange(len(self.options.strategies))
            nothing = np.zeros((len(every), 2))
            self._free[embedding] = _Knapsack(self.options, every, nothing[:, 0], nothing, embedding, 0.0)
        solved = self._free[embedding].solve(layers, head)
        assert solved is not None, "nothing limits it"
        return solved

    def _fits(self, numbers: list[int], in_flight: int, embedding: bool, head: bool) -> bool:
        options, own = self.options, np.array(numbers)
        held = (options.state_bytes + in_flight * options.kept_bytes)[own].sum() + options.transient_bytes[own].max()
        ends = embedding * options.edge_bytes[own[0], 0] + head * options.edge_bytes[own[-1], 1]
        return bool(held + ends <= self.room_bytes)

    def _working_memories(self, in_flight: int) -> list[float]:
        """Working memory of every option that may be of use: none of its group beats it in time and memory."""
        if in_flight not in self._transients:
            options = self.options
            held = options.state_bytes + in_flight * options.kept_bytes
            useful = _undominated(options, np.arange(len(held)), held, options.transient_bytes)
            self._transients[in_flight] = np.unique(options.transient_bytes[useful]).tolist()
        return self._transients[in_flight]


class _Knapsack:
    """Layers one behind the other, each by one of some options, within the memory that is left beside their work."""

    def __init__(
        self,
        options: LayerOptions,
        allowed: Int[np.ndarray, " allowed"],
        held: Float[np.ndarray, " options"],
        edge_bytes: Float[np.ndarray, "options edges"],
        embedding: bool,
        room_bytes: float,
    ) -> None:
        self.options, self.edge_bytes, self.embedding = options, edge_bytes, embedding
        self.units = int(room_bytes // UNIT_BYTES)
        self.allowed = _undominated(options, allowed, held)
        self.held = held[self.allowed]
        self.group, self.groups = options.group[self.allowed], int(options.group.max()) + 1
        # reached[k][g, v]: least seconds of k layers within v units, for a next layer of group g; picks[k]: by which
        # option of the last of them.
        self.reached = [np.zeros((self.groups, max(self.units, 0) + 1))]
        self.picks: list[Int[np.ndarray, "groups units_plus_1"]] = []
        self.sizes: list[Int[np.ndarray, " allowed"]] = []

    def solve(self, layers: int, head: bool) -> tuple[float, list[int]] | None:
        """Seconds and the options of so many layers; None where they do not fit.

        Args:
            layers: at least one.
            head: whether the last of them holds the head.
        """
        if self.units < 0:
            return None
        while len(self.picks) < layers - 1:
            self._extend()
        cost_s, size = self._taken(layers - 1, head)
        left = self.units - size
        before = self.reached[layers - 1][self.group, np.maximum(left, 0)]
        values = np.where(left >= 0, cost_s + before, np.inf)
        number, room = int(values.argmin()), self.units
        least_s = float(values[number])
        if not np.isfinite(least_s):
            return None
        numbers = [number]
        for layer in range(layers - 1, 0, -1):
            room -= int((size if layer == layers - 1 else self.sizes[layer])[number])
            number = int(self.picks[layer - 1][self.group[number], room])
            numbers.append(number)
        return least_s, _in_runs([int(self.allowed[one]) for one in reversed(numbers)], self.options.group)

    def _taken(self, layer: int, head: bool) -> tuple[Float[np.ndarray, " allowed"], Int[np.ndarray, " allowed"]]:
        """Seconds and units of a layer by each option."""
        ends = np.array([layer == 0 and self.embedding, head])
        cost_s = self.options.time_s[self.allowed] + self.options.edge_s[self.allowed] @ ends
        size = np.ceil((self.held + self.edge_bytes[self.allowed] @ ends) / UNIT_BYTES).astype(int)
        return cost_s, size

    def _extend(self) -> None:
        """One more layer, behind which others follow."""
        cost_s, size = self._taken(len(self.picks), False)
        before = self.reached[-1]
        of_group = np.full_like(before, np.inf)
        chosen = np.zeros(before.shape, int)
        for number, (group, taken) in enumerate(zip(self.group.tolist(), size.tolist(), strict=True)):
            if taken > self.units:
                continue
            least, behind = of_group[group, taken:], cost_s[number] + before[group, : self.units + 1 - taken]
            chosen[group, taken:][behind < least] = number
            np.minimum(least, behind, out=least)
        quickest = of_group.argmin(axis=0)
        moved = of_group.min(axis=0) + self.options.move_s
        stays = of_group <= moved
        self.picks.append(np.where(stays, chosen, np.take_along_axis(chosen, quickest[None], axis=0)))
        self.reached.append(np.minimum(of_group, moved))
        self.sizes.append(size)


def _in_runs(numbers: list[int], group: Int[np.ndarray, " options"]) -> list[int]:
    """Equal strategies side by side where their order costs nothing: inside, between layers of one group."""
    inner = [list(same) for _, same in groupby(numbers[1:-1], key=lambda number: int(group[number]))]
    return [*numbers[:1], *(number for same in inner for number in sorted(same)), *numbers[1:][-1:]]


def _undominated(
    options: LayerOptions,
    allowed: Int[np.ndarray, " allowed"],
    held: Float[np.ndarray, " options"],
    *more: Float[np.ndarray, " options"],
) -> Int[np.ndarray, " kept"]:
    """Options no other one of the same group beats in time and memory, at the edges of the pipeline or between."""
    costs = np.column_stack([options.time_s, held, options.edge_s, options.edge_bytes, *more])[allowed]
    alike = options.group[allowed][:, None] == options.group[allowed]
    no_worse = (costs[:, None] <= costs).all(axis=2)
    better = (costs[:, None] < costs).any(axis=2) | (np.arange(len(allowed))[:, None] < np.arange(len(allowed)))
    beaten = (alike & no_worse & better).any(axis=0)
    return allowed[~beaten]


def _row(first: LayerStrategy, pp: int, micro_batches: int, workload: Workload) -> PlanRow:
    """The plan in which every layer is as the first."""
    return PlanRow(
        tp=first.tp, sp=first.tp > 1, pp=pp, dp=first.dp, sharding=f"z{first.data.zero}",
        mbs=workload.global_batch // micro_batches // first.dp, gbs=workload.global_batch,
    )  # fmt: skip


def _plan(
    row: PlanRow, stages: Sequence[Sequence[LayerStrategy]], model: ModelSpec, workload: Workload
) -> ExecutionPlan:
    plan = expand(row, model, workload.seq_len)
    strategies = list(dict.fromkeys(one for stage in stages for one in stage))
    pipeline, count = plan.pipelines[0], model.num_layers // row.pp
    workers = []
    for number, (worker, stage) in enumerate(zip(pipeline.workers, stages, strict=True)):
        runs: list[StrategyRun] = []
        for one in stage:
            index = strategies.index(one)
            if runs and runs[-1].strategy == index:
                runs[-1] = StrategyRun(layers=runs[-1].layers + 1, strategy=index)
            else:
                runs.append(StrategyRun(layers=1, strategy=index))
        layers = ((number * count, (number + 1) * count - 1),)
        workers.append(replace(worker, chunks=(replace(worker.chunks[0], layers=layers, runs=tuple(runs)),)))
    return ExecutionPlan(strategies=tuple(strategies), pipelines=(replace(pipeline, workers=tuple(workers)),))
