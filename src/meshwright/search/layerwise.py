"""A strategy for every layer: tensor or sequence degree, ZeRO stage and recompute chosen layer by layer.

Outside, pipeline degrees and numbers of micro-batches are tried; inside, each stage of equal layers is a knapsack: a
dynamic program over its layers, its memory in coarse units, and the strategy of the last layer, with the cost of moving
activations where neighbouring layers lie differently. Units are rounded up, so what is found fits; the best of each
outer choice is then priced as any other plan is.

Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism" (VLDB
2022), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import InfeasibleError, Problem
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.items import FULL, NONE, SELECTIVE, Item, item_costs
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import COMMUNICATOR_BYTES, TIGHT_SHARE
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rows import sharding_columns, strategy_columns
from meshwright.estimate.sync import DataGroups, DataNetwork, layer_sync
from meshwright.search.layer_programs import LayerOptions, StagePrograms
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import ExecutionPlan, StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.strategies.data import Z1, Z3, state_bytes

RECOMPUTES: tuple[Recompute, ...] = (NONE, SELECTIVE, FULL)
PRICED = 4
"""Outer choices, the quickest by the dynamic program, that are priced as whole plans."""


@dataclass(frozen=True, kw_only=True)
class LayerwisePlan:
    """The quickest plan with a strategy for every layer."""

    plan: ExecutionPlan
    estimate: StepEstimate
    program_s: float
    """Seconds of a step by the dynamic program, which adds up layers and hides no synchronisation behind others."""


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
    hardware = hardware_of(group, workload)
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
    buffers = COMMUNICATOR_BYTES * np.array([(one.tp > 1) + (one.dp > 1) for one in strategies], dtype=float)
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
        transient_bytes=costs.transient_bytes[rows, mode] + sharded * gathered_bytes * parameters + buffers,
        edge_bytes=state[:, None] * costs.dense_parameters[:, edges] + costs.kept_bytes[:, edges],
        group=np.searchsorted(np.unique(split), split),
        # There and back: what a device holds of the activations goes to others.
        move_s=2.0 * activation / devices / float(np.min(hardware.rates[0].bandwidth_bytes_per_s)),
    )


def _strategies(model: ModelSpec, kind: LayerSpec, devices: int, samples: int) -> tuple[LayerStrategy, ...]:
    """Tensor degrees that divide heads and devices, ZeRO stages 1 and 3 (0 on one replica), and recompute."""
    found = []
    heads = getattr(kind.attention, "kv_heads", 0) or math.gcd(*(units for _, units in kind.attention.divided))
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
