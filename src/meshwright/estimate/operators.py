"""Every operator of a step by itself: seconds, FLOP and bytes on one device, beside what the device could do at best.

The same pricing as of whole layers, watched operator by operator; compute sums to what the estimate says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.estimate.groups import Groups
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.items import Item, times_repeated, with_tiles, works_of
from meshwright.estimate.price import plan_pricer
from meshwright.estimate.pricer import PlanPricer, micro_batch_of, strategy_of_worker
from meshwright.estimate.rows import strategy_columns
from meshwright.estimate.run import PipelineColumns
from meshwright.estimate.stages import computed, edge_strategy, pieces
from meshwright.estimate.sync import DataNetwork, buckets_of
from meshwright.estimate.work import LayerPricing
from meshwright.estimate.work_seconds import ModuleSeconds, Rows
from meshwright.kernels.algorithms import all_reduce_bus_factor, gather_bus_factor
from meshwright.schedules import Kind
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import CoreAttention, Linear, Scan, Scores, Vector
from meshwright.specs.plan import ExecutionPlan, Pipeline, Worker
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload
from meshwright.strategies.base import Call, LocalAttention, LocalGemm, LocalScan, LocalScores, region_scale

PHASES = ("forward", "input gradient", "weight gradient", "recompute")


@dataclass(slots=True, kw_only=True)
class OperatorCost:
    """One operator in one phase, on one device."""

    name: str
    module: str
    phase: str
    kind: str
    """`product`, `attention`, `scores`, `scan` or `stream`."""
    seconds: float = 0.0
    flop: float = 0.0
    moved_bytes: float = 0.0
    """Each operand once."""
    peak_flop_per_s: float = 0.0
    """Of the device in the format of the operator; 0 where it multiplies nothing."""

    def light_s(self, hardware: Hardware) -> float:
        """Seconds at the peak of the device and the full bandwidth of its memory: max(flop / peak, bytes / bandwidth).

        Args:
            hardware: the device.
        """
        compute_s = self.flop / self.peak_flop_per_s if self.peak_flop_per_s else 0.0
        return max(compute_s, self.moved_bytes / hardware.memory_bytes_per_s)


@dataclass(slots=True, kw_only=True)
class Message:
    """One kind of exchange, on one device."""

    category: str
    """`tp`, `cp`, `ep`, or `dp` of the step."""
    collective: str
    phase: str
    ranks: int
    payload_bytes: float
    """Of one, as nccl-tests counts it."""
    bus_bytes_per_s: float
    """As nccl-tests prints it."""
    domain: int
    """Level of links that holds the whole group, innermost 0."""
    calls: float = 0.0
    seconds: float = 0.0
    """Alone, hidden or not."""


@dataclass(slots=True, kw_only=True)
class StageOperators:
    """What one worker runs in a step, on one of its devices."""

    pipeline: int
    stage: int
    group: str
    hardware: Hardware
    operators: dict[tuple[str, str, str, float], OperatorCost] = field(default_factory=dict)
    """By module, name, phase and peak."""
    messages: dict[tuple[Any, ...], Message] = field(default_factory=dict)


def step_operators(
    plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> list[StageOperators]:
    """Every operator of a step, worker by worker.

    Args:
        plan: the plan.
        model: must have as many layers as the plan.
        cluster: must have the plan's devices.
        workload: must have the plan's global batch.

    Returns:
        One entry per worker of each pipeline; compute without recomputation sums to the worker's `compute`.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    pricer = plan_pricer(plan, model, cluster, workload)
    run = pricer.run(plan)
    watched: dict[object, list[_Priced]] = {}
    found = []
    for number, (pipeline, priced) in enumerate(zip(plan.pipelines, run.pipelines, strict=True)):
        for place, (worker, site) in enumerate(zip(pipeline.workers, run.stages[number], strict=True)):
            own = StageOperators(pipeline=number, stage=place, group=site.group.name, hardware=site.hardware)
            last = Kind.R in schedule_of(pipeline.schedule).kinds and place == len(pipeline.workers) - 1
            for index, item, count in _items(plan, pipeline, worker, priced.columns.runs[place], pricer):
                strategy = plan.strategies[index]
                key = (site.view, strategy, item, pipeline.micro_batch * plan.data_degree(pipeline))
                if key not in watched:
                    watched[key] = _watched(strategy, item, plan, pipeline, site.hardware, pricer)
                for one in watched[key]:
                    _sum(own, one, count, again=not last)
            if len(plan.pipelines) == 1:
                for message in _of_gradients(priced.columns, place, site.hardware, workload):
                    own.messages[message.category, message.collective, message.phase, message.payload_bytes] = message
            found.append(own)
    return found


def _of_gradients(columns: PipelineColumns, place: int, hardware: Hardware, workload: Workload) -> Iterator[Message]:
    """Buckets of gradients and of updated weights, where data ranks keep whole weights."""
    sharding, precision = columns.sharding, workload.precision
    network = DataNetwork(sharding, columns.groups, hardware)

    def own(values: Any) -> float:
        return float(np.broadcast_to(values, (1, columns.p))[0, place])

    zero, sizes = (
        own(sharding.zero),
        (sharding.shard * sharding.replicate, sharding.expert_shard * sharding.expert_replicate),
    )
    if zero > 2 or not workload.training:
        return
    for expert, parameters in ((False, columns.dense_parameters), (True, columns.expert_parameters)):
        ranks, many = int(own(sizes[expert])), own(parameters)
        if ranks < 2 or not many:
            continue
        buckets = own(buckets_of(parameters, sizes[expert]))
        reduced, gathered = (
            np.array([many / buckets * own(size)])
            for size in (sharding.reduced_bytes(precision), sharding.gathered_bytes(precision))
        )
        inside = [own(level) for level in (network.shard if zero else network.replica)[expert]]
        domain = next(level for level, held in enumerate(inside) if held >= inside[-1])
        if zero:
            calls = [
                ("reduce_scatter", "backward", reduced, own(network.scatter_s(reduced, expert=expert))),
                ("all_gather", "next step", gathered, own(network.gather_s(gathered, expert=expert))),
            ]
        else:
            calls = [("all_reduce", "backward", reduced, own(network.replica_sum_s(reduced, expert=expert)))]
        for collective, phase, piece, once_s in calls:
            payload = float(piece[0])
            if once_s > 0:
                yield Message(
                    category="dp",
                    collective=collective,
                    phase=phase,
                    ranks=ranks,
                    payload_bytes=payload,
                    bus_bytes_per_s=_bus_factor(collective, ranks) * payload / once_s,
                    domain=domain,
                    calls=buckets,
                    seconds=buckets * once_s,
                )


def _bus_factor(collective: str, ranks: int) -> float:
    """What nccl-tests multiplies S / seconds by."""
    if collective == "send":
        return 1.0
    return float(all_reduce_bus_factor(ranks) if collective == "all_reduce" else gather_bus_factor(ranks))


def _items(
    plan: ExecutionPlan, pipeline: Pipeline, worker: Worker, runs: np.ndarray, pricer: PlanPricer
) -> Iterator[tuple[int, Item, float]]:
    """Index of a strategy, item, and how often a step runs it; by chunk as `stage_counts` counts them."""
    layout, model = pricer.layout, pricer.model
    usual = strategy_of_worker(plan, pipeline, worker)
    for chunk, times in zip(computed(worker), runs.tolist(), strict=False):
        for index, low, behind in pieces(chunk):
            counts = layout.kinds_before[behind] - layout.kinds_before[low]
            recompute = plan.strategies[index].recompute
            for kind, count in zip(layout.kinds, counts.tolist(), strict=True):
                if count:
                    yield index, Item("layer", kind, recompute), count * times
        edge = edge_strategy(chunk, usual)
        if chunk.embedding:
            yield edge, Item("embedding"), times
        if chunk.head:
            yield edge, Item("head"), times
            if model.mtp_layers:
                module = Item("mtp", model.mtp_kind, plan.strategies[edge].recompute)
                yield edge, module, model.mtp_layers * times


@dataclass(frozen=True, slots=True)
class _Priced:
    """One work of an item, run once."""

    operators: tuple[OperatorCost, ...]
    messages: tuple[Message, ...]
    repeats: dict[str, int]
    """How often its backward repeats each module."""
    trained: bool


def _watched(
    strategy: LayerStrategy, item: Item, plan: ExecutionPlan, pipeline: Pipeline, hardware: Hardware, pricer: PlanPricer
) -> list[_Priced]:
    workload = pricer.workload
    sequences = micro_batch_of(plan, pipeline, strategy) / schedule_of(pipeline.schedule).sections()
    columns = strategy_columns([strategy], np.array([sequences]), workload)
    found = []
    for work, quantised, recompute in works_of(item, pricer.model, workload):
        watch = _Watch(columns, hardware, workload, quantised=quantised and not work.wide)
        watch.layer(work)
        tiled = workload.mlp_tiles > 1
        again = with_tiles(recompute) if tiled else recompute
        trained = workload.training and work.reached
        names = {cost.module for cost in watch.costs.values()}
        repeats = {name: times_repeated(name, again, tiled=tiled) if trained else 0 for name in names}
        found.append(_Priced(tuple(watch.costs.values()), tuple(watch.messages), repeats, trained))
    return found


def _sum(stage: StageOperators, one: _Priced, count: float, *, again: bool) -> None:
    """Add what a work does as often as the stage runs it."""
    for cost in one.operators:
        if cost.phase != "forward" and not one.trained:
            continue
        _count(stage, cost, cost.phase, count)
        if cost.phase == "forward" and again and one.repeats[cost.module]:
            _count(stage, cost, "recompute", count * one.repeats[cost.module])
    for message in one.messages:
        if message.phase == "forward" or one.trained:
            key = (message.category, message.collective, message.phase, message.ranks, message.payload_bytes)
            own = stage.messages.setdefault(
                key,
                Message(**{name: getattr(message, name) for name in Message.__slots__} | {"calls": 0, "seconds": 0}),
            )
            own.calls += count * message.calls
            own.seconds += count * message.seconds


def _count(stage: StageOperators, cost: OperatorCost, phase: str, count: float) -> None:
    # Layers of several formats have an operator of one name at several peaks.
    own = stage.operators.setdefault(
        (cost.module, cost.name, phase, cost.peak_flop_per_s),
        OperatorCost(
            name=cost.name, module=cost.module, phase=phase, kind=cost.kind, peak_flop_per_s=cost.peak_flop_per_s
        ),
    )
    own.seconds += count * cost.seconds
    own.flop += count * cost.flop
    own.moved_bytes += count * cost.moved_bytes


class _Watch(LayerPricing):
    """Prices a layer and writes down what each operator adds; one row."""

    def __init__(self, *arguments: Any, quantised: bool) -> None:
        super().__init__(*arguments, quantised=quantised)
        self.costs: dict[tuple[str, str, str], OperatorCost] = {}
        self.messages: list[Message] = []
        self._op: Any = None
        self._kind = ""
        self._phases: Iterator[str] = iter(())
        self._times = 1

    def gemm(self, op: Linear, local: LocalGemm, module: ModuleSeconds, tiles: int = 1) -> None:
        """A product and its gradients."""
        self._op, self._kind, self._times = op, "product", tiles
        self._phases = iter(PHASES)
        super().gemm(op, local, module, tiles)

    def product(self, m: object, n: object, k: object, groups: object, output_bytes: float, *, quantised: bool) -> Rows:
        """Seconds of so many products of [m, k] and [k, n] in one launch."""
        phase = next(self._phases)
        rows, width, depth, many = (float(np.ravel(np.asarray(size, dtype=float))[0]) for size in (m, n, k, groups))
        element = self.precision.bytes_of("compute") if quantised else self.activation_bytes
        cost = self._cost(phase)
        cost.peak_flop_per_s = self.hardware.gemm_flop_per_s if quantised else self.hardware.head_flop_per_s
        cost.flop += self._times * many * 2.0 * rows * width * depth
        moved = (rows * depth + depth * width) * element + rows * width * output_bytes
        cost.moved_bytes += self._times * many * moved
        return super().product(m, n, k, groups, output_bytes, quantised=quantised)

    def attention(self, op: CoreAttention, module: ModuleSeconds) -> None:
        """Attention between queries and keys."""
        self._op, self._kind = op, "attention"
        super().attention(op, module)

    def scores(self, op: Scores, module: ModuleSeconds) -> None:
        """Scores that pick keys."""
        self._op, self._kind = op, "scores"
        super().scores(op, module)

    def scan(self, op: Scan, module: ModuleSeconds) -> None:
        """A recurrence."""
        self._op, self._kind = op, "scan"
        super().scan(op, module)

    def vector(self, op: Vector, top_k: float, module: ModuleSeconds) -> None:
        """An operator that streams."""
        self._op, self._kind = op, "stream"
        size = 4.0 if op.fp32 else self.activation_bytes
        scale = float(np.ravel(region_scale(op.region, self.columns, top_k))[0]) * size
        self._cost("forward").moved_bytes += scale * op.forward_elements
        self._cost("input gradient").moved_bytes += scale * op.backward_elements
        super().vector(op, top_k, module)

    def watch(self, op: CoreAttention | Scores | Scan, local: LocalAttention | LocalScores | LocalScan) -> None:
        """FLOP and bytes of what mixes tokens, as its kernel counts them."""
        for back in (False, True):
            flop, moved, peak = self._mixed(op, local, back)
            cost = self._cost("input gradient" if back else "forward")
            cost.flop, cost.moved_bytes, cost.peak_flop_per_s = cost.flop + flop, cost.moved_bytes + moved, peak

    def _mixed(self, op: Any, local: Any, back: bool) -> tuple[float, float, float]:
        def one(value: Any) -> float:
            return float(np.ravel(np.asarray(value, dtype=float))[0])

        hardware = self.hardware
        if isinstance(op, CoreAttention):
            width = op.head_dim + op.value_dim
            multiply_adds = 3 * op.head_dim + 2 * op.value_dim if back else width
            flop = 2.0 * one(local.batch) * one(local.heads) * one(local.pairs) * multiply_adds
            rows = one(local.heads) * one(local.query_len) + one(local.kv_heads) * one(local.key_len)
            moved = one(local.batch) * width * rows * self.activation_bytes * (2.5 if back else 1.0)
            return flop, moved, hardware.attention_flop_per_s
        if isinstance(op, Scores):
            pairs = 2.0 * one(local.picked_pairs) if back else one(local.pairs)
            return 2.0 * op.heads * op.dim * pairs, 8.0 * pairs / op.block, hardware.gemm_flop_per_s
        amount = one(local.tokens) * one(local.heads)
        elements, flop = (op.backward_elements, op.backward_flop) if back else (op.forward_elements, op.forward_flop)
        return amount * flop, amount * elements * self.activation_bytes, hardware.head_flop_per_s

    def add(
        self,
        module: ModuleSeconds,
        forward: Rows,
        input_gradient: Rows,
        weight_gradient: Rows,
        issued: tuple[Rows | float, Rows | float] | None = None,
    ) -> None:
        """Count an operator's compute, by phase."""
        for phase, seconds in zip(PHASES, (forward, input_gradient, weight_gradient), strict=False):
            if seconds is not self.zero:
                self._cost(phase).seconds += float(np.ravel(seconds)[0])
        super().add(module, forward, input_gradient, weight_gradient, issued)

    def call_s(self, call: Call, phases: dict[str, Rows], groups: Groups | None = None) -> Rows | None:
        """Exposed seconds of a call; what it takes alone is written down."""
        groups = groups or self.groups
        alone = groups.seconds(call)
        if alone is not None and float(np.ravel(alone)[0]) > 0:
            self._write(call, float(np.ravel(alone)[0]), *groups.members(call))
        return super().call_s(call, phases, groups)

    def _write(self, call: Call, alone_s: float, ranks: int, domain: int) -> None:
        payload, repeats = (
            float(np.ravel(np.asarray(value, dtype=float))[0]) for value in (call.payload_bytes, call.repeats)
        )
        self.messages.append(
            Message(
                category=call.category,
                collective=call.kind,
                phase=call.phase,
                ranks=ranks,
                payload_bytes=payload,
                bus_bytes_per_s=_bus_factor(call.kind, ranks) * payload * repeats / alone_s,
                domain=domain,
                calls=repeats,
                seconds=alone_s,
            )
        )

    def _cost(self, phase: str) -> OperatorCost:
        op = self._op
        key = (op.module, op.name, phase)
        if key not in self.costs:
            self.costs[key] = OperatorCost(name=op.name, module=op.module, phase=phase, kind=self._kind)
        return self.costs[key]
