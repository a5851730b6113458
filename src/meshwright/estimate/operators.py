"""Every operator of a step by itself: seconds, FLOP and bytes on one device, beside what the device could do at best.

The same pricing as of whole layers, watched operator by operator; compute sums to what the estimate says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.estimate.data.network import DataNetwork
from meshwright.estimate.data.sync import buckets_of
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.items import Item, times_repeated, with_tiles, works_of
from meshwright.estimate.layers.operator_costs import Message, OperatorCost, WatchedPricing, bus_factor
from meshwright.estimate.price import plan_pricer
from meshwright.estimate.pricer import PlanPricer, micro_batch_of, strategy_of_worker
from meshwright.estimate.rows import strategy_columns
from meshwright.estimate.run import PipelineColumns
from meshwright.estimate.stages import computed, edge_strategy, strategy_runs
from meshwright.schedules import Kind
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline, Worker
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload


@dataclass(slots=True, kw_only=True)
class StageOperators:
    """What one worker runs in a step, on one of its devices."""

    pipeline: int
    stage: int
    group: str
    hardware: Hardware
    operators: dict[tuple[str, str, str, float], OperatorCost] = field(default_factory=dict)
    """The operators by module, name, phase and peak."""
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
                    bus_bytes_per_s=bus_factor(collective, ranks) * payload / once_s,
                    domain=domain,
                    calls=buckets,
                    seconds=buckets * once_s,
                )


def _items(
    plan: ExecutionPlan, pipeline: Pipeline, worker: Worker, runs: np.ndarray, pricer: PlanPricer
) -> Iterator[tuple[int, Item, float]]:
    """Index of a strategy, item, and how often a step runs it; by chunk as `stage_counts` counts them."""
    layout, model = pricer.layout, pricer.model
    usual = strategy_of_worker(plan, pipeline, worker)
    for chunk, times in zip(computed(worker), runs.tolist(), strict=False):
        for index, low, behind in strategy_runs(chunk):
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
    for work, quantised, recompute in works_of(item, pricer.model, workload, hardware.software):
        watch = WatchedPricing(columns, hardware, workload, quantised=quantised and not work.wide)
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
