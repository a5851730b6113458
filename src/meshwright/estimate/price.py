"""One plan in, one estimate out: the same kernels and composition the search uses, on the plan's own strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.hardware import Hardware, at_pace, hardware_of
from meshwright.estimate.items import NONE, Item, ItemCosts, item_costs
from meshwright.estimate.layout import token_flop
from meshwright.estimate.memory import MEMORY_KINDS
from meshwright.estimate.pipeline import (
    Placed,
    boundary_columns,
    data_groups,
    needs_bare,
    pipeline_columns,
    sync_layers,
)
from meshwright.estimate.result import BASIS_ORDER, RANGE_BY_BASIS, StageEstimate, StepEstimate
from meshwright.estimate.stages import (
    pipeline_schedule,
    recompute_problem,
    schedule_problems,
    stage_counts,
    strategies_of,
)
from meshwright.estimate.step import PipelineColumns, StepColumns, fits, step_columns
from meshwright.estimate.sync import LayerSync
from meshwright.estimate.work import require_priceable
from meshwright.library.calibration import calibration
from meshwright.ops.layers import layer_work
from meshwright.ops.op import CoreAttention
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.device import Basis
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.row_of import row_of
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.strategies.base import OVERLAPS, StrategyColumns
from meshwright.strategies.data import ShardingColumns


def strategy_columns(strategies: Sequence[LayerStrategy], micro_batch: float, workload: Workload) -> StrategyColumns:
    """Strategies as columns, one row each.

    Args:
        strategies: of a plan.
        micro_batch: sequences per micro-batch; a fraction for a section of one.
        workload: sequence length and expert load.

    Returns:
        The columns.

    Raises:
        UnsupportedError: for a tensor strategy without a pricing rule.
    """
    for strategy in strategies:
        require_priceable(strategy.tensor.kind)
    tensors = [strategy.tensor for strategy in strategies if isinstance(strategy.tensor, Tensor1D)]

    def level(kind: str) -> list[int]:
        return [int(np.prod([c.degree for c in s.context if c.kind == kind] or [1])) for s in strategies]

    return StrategyColumns(
        tp=np.array([t.degree for t in tensors]),
        sp=np.array([t.sequence_parallel and t.degree > 1 for t in tensors]),
        tp_overlap=np.array([OVERLAPS.index(t.overlap) for t in tensors]),
        cp_a2a=np.array(level("a2a")),
        cp_p2p=np.array(level("p2p")),
        cp_ag=np.array(level("ag")),
        ep=np.array([s.expert.ep for s in strategies]),
        etp=np.array([s.expert.etp for s in strategies]),
        mbs=np.full(len(strategies), micro_batch),
        capacity=np.array(
            [np.nan if s.expert.capacity_factor is None else s.expert.capacity_factor for s in strategies]
        ),
        ep_chunks=np.array([s.expert.overlap_degree for s in strategies]),
        offload_weights=np.array([s.offload.weights for s in strategies]),
        offload_activations=np.array([s.offload.activations for s in strategies]),
        seq_len=workload.seq_len,
        imbalance=workload.expert_imbalance,
        deduplicated=np.array([s.expert.dispatcher == "deduplicated" for s in strategies]),
    )


def sharding_columns(strategies: Sequence[LayerStrategy]) -> ShardingColumns:
    """Data-parallel records as columns of shape strategies x 1."""

    def column(values: list[object]) -> np.ndarray:
        return np.array(values)[:, None]

    shard, replicate, expert_shard, expert_replicate = [], [], [], []
    for strategy in strategies:
        data, ranks = strategy.data, strategy.cp * strategy.dp
        expert_ranks = max(1, strategy.devices // (strategy.expert.ep * strategy.expert.etp))
        if data.zero == 0:
            groups, expert_groups = ranks, expert_ranks
        else:
            groups = data.replicate
            expert_groups = groups if expert_ranks % groups == 0 else 1
        shard.append(ranks // groups)
        replicate.append(groups)
        expert_shard.append(expert_ranks // expert_groups)
        expert_replicate.append(expert_groups)
    return ShardingColumns(
        zero=column([s.data.zero for s in strategies]),
        fsdp=column([s.data.family == "fsdp" for s in strategies]),
        reshard=column([s.data.reshard for s in strategies]),
        shard=column(list(shard)),
        replicate=column(list(replicate)),
        expert_shard=column(list(expert_shard)),
        expert_replicate=column(list(expert_replicate)),
        overlap=column([s.data.overlap for s in strategies]),
        offload_optimizer=column([s.offload.optimizer for s in strategies]),
    )


def estimate_plan(
    plan: ExecutionPlan,
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    hardware: Hardware | None = None,
) -> StepEstimate:
    """Time and memory of one plan.

    Args:
        plan: the plan.
        model: must have as many layers as the plan.
        cluster: one group of equal nodes, with at least the plan's devices.
        workload: must have the plan's global batch.
        hardware: the cluster's group with other numbers than the library's.

    Returns:
        The estimate.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    columns, hardware = plan_columns(plan, model, cluster, workload, hardware)
    step = step_columns(columns, hardware, workload)
    return _result(plan, plan.pipelines[0], step, model, cluster.groups[0], hardware, workload)


def plan_columns(
    plan: ExecutionPlan,
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    hardware: Hardware | None = None,
) -> tuple[PipelineColumns, Hardware]:
    """The one row of columns that a plan's step is composed from, and what it runs on; arguments as `estimate_plan`.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    _check_together(plan, model, cluster, workload)
    if hardware is None:
        hardware = hardware_of(cluster.groups[0], workload.precision, workload.software)
        if calibration().run is not None:
            hardware = _as_measured(hardware, plan, model, cluster, workload)
    return _pipeline_row(plan, plan.pipelines[0], model, hardware, workload), hardware


def _as_measured(
    hardware: Hardware, plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> Hardware:
    """The hardware at the pace of the very plan whose step was measured, where this is that plan."""
    run, row = calibration().run, row_of(plan, model)
    if run is None or row is None:
        return hardware
    device, dtype = cluster.groups[0].device.name, workload.precision.name
    asked = (model.name, row.format(), device, plan.devices, workload.seq_len, dtype, workload.software)
    if asked != (run.model, run.plan, run.device, run.devices, run.seq_len, run.dtype, run.framework):
        return hardware
    own = hardware.pace / run.own
    return at_pace(hardware, 1.0 / run.own, (own / run.high, own / run.low))


def _check_together(plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> None:
    problems = []
    if plan.num_layers != model.num_layers:
        problems.append(
            Problem(
                what=f"the plan holds {plan.num_layers} layers, {model.name} has {model.num_layers}",
                why="every layer stands in exactly one stage",
                fix="give the model the plan was made for",
                field="layers",
            )
        )
    if plan.devices > cluster.devices:
        problems.append(
            Problem(
                what=f"the plan uses {plan.devices} devices, the cluster has {cluster.devices}",
                fix=f"give a cluster of {plan.devices} devices, or another plan",
                field="devices",
            )
        )
    if plan.global_batch != workload.global_batch:
        problems.append(
            Problem(
                what=f"the plan runs {plan.global_batch} sequences per step, the workload has {workload.global_batch}",
                fix=f"use --gbs {plan.global_batch}",
                field="gbs",
            )
        )
    if problems:
        raise InputError(problems, code="MW230")
    if len(plan.pipelines) > 1 or not cluster.homogeneous:
        raise UnsupportedError(
            Problem(
                what=f"{len(plan.pipelines)} pipelines on {len(cluster.groups)} groups of nodes",
                why="this version prices one pipeline on one kind of node",
                fix="plan one group at a time",
                field="cluster",
            ),
            code="MW407",
        )
    refused = tuple(schedule_problems(plan.pipelines[0]))
    if refused:
        raise UnsupportedError(refused, code="MW407")
    used = strategies_of(plan.pipelines[0])
    schedule = pipeline_schedule(plan.pipelines[0])
    recomputes: set[str] = {plan.strategies[index].recompute.kind for index in used}
    wrong = recompute_problem(schedule, recomputes) if used and len(plan.pipelines[0].workers) > 1 else None
    if wrong:
        raise InputError(wrong, code="MW230")
    kinds = {_of_all_layers(plan.strategies[index]) for index in used}
    if len(kinds) > 1:
        raise UnsupportedError(
            Problem(
                what=f"layers of one pipeline with {len(kinds)} sets of degrees and shards",
                why="this version prices plans whose layers share tp, cp, ep, etp, data parallelism and what of their "
                "states is offloaded; recompute may differ by layer",
                fix="give all layers the same degrees, sharding and offload",
                field="strategies",
            ),
            code="MW407",
        )


def _of_all_layers(strategy: LayerStrategy) -> tuple[object, ...]:
    """What is priced once for a worker or the whole pipeline."""
    expert, offload = strategy.expert, strategy.offload
    return (strategy.tp, strategy.cp, expert.ep, expert.etp, strategy.data, offload.weights, offload.optimizer)


def _pipeline_row(
    plan: ExecutionPlan, pipeline: Pipeline, model: ModelSpec, hardware: Hardware, workload: Workload
) -> PipelineColumns:
    """Cost table of strategies x items, flattened to one row, and the counts of its cells in every chunk."""
    used = strategies_of(pipeline)
    strategies = [plan.strategies[index] for index in used]
    schedule = pipeline_schedule(pipeline)
    columns = strategy_columns(strategies, pipeline.micro_batch / schedule.sections(), workload)
    sharding = sharding_columns(strategies)
    modes = tuple(dict.fromkeys(strategy.recompute for strategy in strategies))
    if needs_bare(schedule):
        modes = tuple(dict.fromkeys((*modes, NONE)))
    kinds = model.kinds()
    items = (
        *(Item("layer", kind, mode) for mode in modes for kind in kinds),
        *(Item(part) for part in ("embedding", "head", "tie", "copy")),
        *(Item("mtp", model.last_layer(), mode) for mode in modes if model.mtp_layers),
    )
    number = {item: index for index, item in enumerate(items)}
    costs = item_costs(items, columns, model, hardware, workload)
    sync = sync_layers(costs, columns, sharding, hardware, workload, anything=bool((sharding.zero == 3).any()))

    counts = stage_counts(plan, pipeline, schedule, model, number)
    row_of_worker = [used.index(plan.strategy_index(pipeline, worker)) for worker in pipeline.workers]

    def one_row(table: np.ndarray) -> np.ndarray:
        return table.reshape(1, -1)

    flat = ItemCosts(**{f.name: one_row(getattr(costs, f.name)) for f in fields(ItemCosts)})
    first = columns.take(np.array([0]))
    degrees = Placed(pp=np.array([len(pipeline.workers)]), dp=np.array([strategies[0].dp]))
    per_worker = ShardingColumns(
        **{f.name: getattr(sharding, f.name)[row_of_worker, 0][None, :] for f in fields(ShardingColumns)}
    )
    return pipeline_columns(
        schedule=schedule,
        micro_batches=pipeline.num_micro_batches,
        counts=counts,
        costs=flat,
        layer_sync=LayerSync(forward_s=one_row(sync.forward_s), backward_s=one_row(sync.backward_s)),
        whole=np.tile(np.array([item.part not in ("tie", "copy") for item in items]), len(used)),
        boundary=boundary_columns(first, degrees, model, hardware, workload),
        sharding=per_worker,
        groups=data_groups(first),
        offload_weights=np.array([strategies[0].offload.weights]),
    )


def attention_flop_per_token(model: ModelSpec, seq_len: int) -> float:
    """Forward FLOP per token of scores and weighted values, causal pairs counted once, windows as they are."""
    total = 0.0
    for kind, count in model.kind_counts().items():
        work = layer_work(kind, model.hidden, "flash")
        only_core = type(work)(
            ops=tuple(op for op in work.ops if isinstance(op, CoreAttention)), kept=(), input_width=work.input_width
        )
        total += count * token_flop(only_core, seq_len)
    return total


def model_flop_per_token(model: ModelSpec, seq_len: int, *, training: bool) -> float:
    """6 N per token for the active parameters plus three times the causal attention; a third of it forward only."""
    forward = 2.0 * model.active_parameters + attention_flop_per_token(model, seq_len)
    return forward * (3.0 if training else 1.0)


def weakest_basis(group: NodeGroup) -> Basis:
    """The weakest basis among the numbers of a group that an estimate rests on."""
    bases = {group.device.efficiency.basis, *(domain.basis for domain in group.domains)}
    bases |= {
        group.device.basis_of(name).basis
        for name in ("peak_flop_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s")
    }
    return max(bases, key=BASIS_ORDER.index)


def _result(
    plan: ExecutionPlan,
    pipeline: Pipeline,
    step: StepColumns,
    model: ModelSpec,
    group: NodeGroup,
    hardware: Hardware,
    workload: Workload,
) -> StepEstimate:
    time_s = float(step.step_time_s[0])
    basis = weakest_basis(group)
    low, high = RANGE_BY_BASIS[basis]
    if hardware.pace_range is not None:
        slowest, quickest = hardware.pace_range
        low, high = 1.0 - hardware.pace / quickest, hardware.pace / slowest - 1.0
    useful = model_flop_per_token(model, workload.seq_len, training=workload.training) * workload.tokens_per_step
    again = float(step.recompute_flop[0]) * plan.devices
    possible = time_s * plan.devices * hardware.gemm_flop_per_s / hardware.pace
    stages = tuple(_stage(plan, pipeline, step, place, group, hardware) for place in range(len(pipeline.workers)))
    verdicts = [fits(stage.peak_memory_bytes, stage.capacity_bytes) for stage in stages]
    price = hardware.price_per_hour
    return StepEstimate(
        step_time_s=time_s,
        step_time_low_s=time_s * (1.0 - low),
        step_time_high_s=time_s * (1.0 + high),
        tokens_per_s_per_device=workload.tokens_per_step / time_s / plan.devices,
        mfu=useful / possible,
        hfu=(useful + again) / possible,
        breakdown_s=tuple((name, float(values[0])) for name, values in step.breakdown_s.items()),
        stages=stages,
        fits="no" if "no" in verdicts else "tight" if "tight" in verdicts else "yes",
        basis=basis,
        price_per_step=None if price is None else price * plan.devices * time_s / 3600.0,
    )


def _stage(
    plan: ExecutionPlan, pipeline: Pipeline, step: StepColumns, place: int, group: NodeGroup, hardware: Hardware
) -> StageEstimate:
    worker = pipeline.workers[place]
    strategy = plan.strategies[plan.strategy_index(pipeline, worker)]
    memory = tuple((kind, float(getattr(step.memory, kind)[0, place])) for kind in MEMORY_KINDS)
    alive = int(step.in_flight[0, place])
    one, many = (
        ("chunk activation", "chunk activations") if len(worker.chunks) > 1 else ("micro-batch", "micro-batches")
    )
    unit = one if alive == 1 else many
    head = any(chunk.head for chunk in worker.chunks)
    moment = f"backward with {alive} {unit} in flight" + (", logits and their gradient included" if head else "")
    return StageEstimate(
        pipeline=plan.pipelines.index(pipeline),
        stage=place,
        layers=tuple(pair for chunk in worker.chunks for pair in chunk.layers),
        group=group.name,
        devices=worker.num_devices,
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.expert.ep,
        dp=strategy.dp,
        mbs=pipeline.micro_batch,
        memory_bytes=memory,
        peak_memory_bytes=float(step.peak_bytes[0, place]),
        capacity_bytes=hardware.memory_bytes,
        peak_moment=moment,
        busy_s=float(step.busy_s[0, place]),
    )
