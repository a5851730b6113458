"""Plans one change away from a plan that is no row of degrees: a layer or micro-batch moved, a stage restated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.planning.plan_shape import groups_of
from meshwright.specs.job import Job
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.strategy import LayerStrategy, Recompute


@dataclass(frozen=True, slots=True)
class Variant:
    """A plan one change away."""

    lever: str
    """What is changed: `layers`, `micro-batches`, or the name of a setting of stages, as `tp` or `recompute`."""
    change: str
    """The change in words, with its stages."""
    plan: ExecutionPlan


def variants(job: Job) -> Iterator[Variant]:
    """Every plan one change away, with the change in words; of equal pipelines only the first is changed.

    Args:
        job: stages of consecutive layers are moved; others stay as they are.
    """
    plan, shapes = job.plan, [_shape(job, number) for number in range(len(job.plan.pipelines))]
    firsts = [number for number, shape in enumerate(shapes) if shape not in shapes[:number]]
    for number in firsts:
        pipeline = plan.pipelines[number]
        here = f"pipeline {number} " if len(plan.pipelines) > 1 else ""
        for place in range(len(pipeline.workers) - 1):
            for one, other in ((place, place + 1), (place + 1, place)):
                moved = _layer_moved(pipeline, one, other)
                if moved is not None:
                    change = f"{here}one layer from stage {one} to stage {other}"
                    yield Variant("layers", change, _with(plan, number, moved))
        for place in range(len(pipeline.workers)):
            yield from _restated(plan, number, place, f"{here}stage {place}")
    yield from _shares(plan, firsts)
    yield from _settings(job)


def evenly(plan: ExecutionPlan) -> ExecutionPlan | None:
    """The plan with as many layers on every stage of a pipeline; None where stages are not of consecutive layers."""
    pipelines = []
    for pipeline in plan.pipelines:
        stages = len(pipeline.workers)
        counts = [plan.num_layers // stages + (place < plan.num_layers % stages) for place in range(stages)]
        laid = _laid_out(pipeline, counts)
        if laid is None:
            return None
        pipelines.append(laid)
    return replace(plan, pipelines=tuple(pipelines))


def equal_shares(plan: ExecutionPlan) -> ExecutionPlan | None:
    """The plan with as many micro-batches for every pipeline; None where the batch cannot be shared so."""
    counts = [pipeline.num_micro_batches for pipeline in plan.pipelines]
    each, rest = divmod(sum(counts), len(counts))
    shared = replace(
        plan,
        pipelines=tuple(
            replace(pipeline, num_micro_batches=each + (number < rest))
            for number, pipeline in enumerate(plan.pipelines)
        ),
    )
    if any(pipeline.shapes for pipeline in plan.pipelines) or shared.global_batch != plan.global_batch:
        return None
    return shared


def _shape(job: Job, number: int) -> object:
    """What equal pipelines share: all but which devices of a group they hold."""
    pipeline = job.plan.pipelines[number]
    stages = tuple((worker.num_devices, worker.chunks) for worker in pipeline.workers)
    batch = (pipeline.micro_batch, pipeline.num_micro_batches, pipeline.schedule, pipeline.shapes)
    return (*batch, stages, tuple(groups_of(job, number)))


def _with(plan: ExecutionPlan, number: int, pipeline: Pipeline) -> ExecutionPlan:
    pipelines = (*plan.pipelines[:number], pipeline, *plan.pipelines[number + 1 :])
    return replace(plan, pipelines=pipelines)


def _plain(worker: Worker) -> Chunk | None:
    """The one chunk of a worker that holds one range of layers under one strategy."""
    (chunk, *more) = worker.chunks
    return chunk if not more and len(chunk.layers) == 1 and len(chunk.runs) == 1 else None


def _layer_moved(pipeline: Pipeline, one: int, other: int) -> Pipeline | None:
    counts = [sum(chunk.num_layers for chunk in worker.chunks) for worker in pipeline.workers]
    counts[one] -= 1
    counts[other] += 1
    return _laid_out(pipeline, counts) if min(counts) > 0 else None


def _laid_out(pipeline: Pipeline, counts: list[int]) -> Pipeline | None:
    workers, first = [], 0
    for worker, count in zip(pipeline.workers, counts, strict=True):
        chunk = _plain(worker)
        if chunk is None or count < 1:
            return None
        runs = (StrategyRun(layers=count, strategy=chunk.runs[0].strategy),)
        moved = replace(chunk, layers=((first, first + count - 1),), runs=runs)
        workers.append(replace(worker, chunks=(moved,)))
        first += count
    return replace(pipeline, workers=tuple(workers))


def _restated(plan: ExecutionPlan, number: int, place: int, here: str) -> Iterator[Variant]:
    """One stage with other recompute, or other sharding."""
    pipeline = plan.pipelines[number]
    worker = pipeline.workers[place]
    chunk = _plain(worker)
    if chunk is None:
        return
    strategy = plan.strategies[chunk.runs[0].strategy]
    for lever, words, other in _other_strategies(strategy):
        runs = (replace(chunk.runs[0], strategy=len(plan.strategies)),)
        changed = replace(worker, chunks=(replace(chunk, runs=runs),))
        workers = (*pipeline.workers[:place], changed, *pipeline.workers[place + 1 :])
        pipelines = (*plan.pipelines[:number], replace(pipeline, workers=workers), *plan.pipelines[number + 1 :])
        changed_plan = ExecutionPlan(strategies=(*plan.strategies, other), pipelines=pipelines)
        yield Variant(lever, f"{here} {words}", changed_plan)


def _other_strategies(strategy: LayerStrategy) -> Iterator[tuple[str, str, LayerStrategy]]:
    kind = strategy.recompute.kind
    for other in ("none", "full"):
        if other != kind:
            yield "recompute", f"recompute {kind} -> {other}", replace(strategy, recompute=Recompute(kind=other))
    data = strategy.data
    if strategy.dp > 1 and data.family == "zero" and not data.across:
        for zero in (0, 1, 2, 3):
            if zero == data.zero:
                continue
            replicas = strategy.dp if zero == 0 else 1
            changed = replace(data, zero=zero, replicate=replicas, shard=strategy.dp // replicas)
            yield "sharding", f"z{data.zero} -> z{zero}", replace(strategy, data=changed)


def _shares(plan: ExecutionPlan, firsts: Sequence[int]) -> Iterator[Variant]:
    """One micro-batch from one pipeline to another whose micro-batches are as large; none of those that run in step."""
    if plan.joint_ranks:
        return
    for one in firsts:
        for other in firsts:
            giver, taker = plan.pipelines[one], plan.pipelines[other]
            size = [plan.data_degree(pipeline) * pipeline.micro_batch for pipeline in (giver, taker)]
            if one == other or giver.num_micro_batches == 1 or size[0] != size[1] or giver.shapes or taker.shapes:
                continue
            pipelines = list(plan.pipelines)
            pipelines[one] = replace(giver, num_micro_batches=giver.num_micro_batches - 1)
            pipelines[other] = replace(taker, num_micro_batches=taker.num_micro_batches + 1)
            words = f"one micro-batch from pipeline {one} to pipeline {other}"
            yield Variant("micro-batches", words, replace(plan, pipelines=tuple(pipelines)))


def _settings(job: Job) -> Iterator[Variant]:
    """A setting of the stages on one group, or of all stages, at another legal value.

    Stages of one chunk are restated one by one in `_restated`, which is finer.
    """
    from meshwright.planning.what_if_stages import changed_stages, stage_settings  # only where somebody asks why

    one_by_one = all(_plain(worker) for pipeline in job.plan.pipelines for worker in pipeline.workers)
    left_out = ("schedule", "recompute", "sharding") if one_by_one else ("schedule",)
    for setting in stage_settings(job):
        axis = setting.name.split(": ")[-1]
        for one in setting.values:
            if one.problem is None and one.value != setting.value and axis not in left_out:
                plan = changed_stages(job, {setting.name: one.value}, job.workload.seq_len)
                yield Variant(axis, f"{setting.name} {setting.value} -> {one.value}", plan)
