"""A pipeline set of native pipelines as the one plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.split import SplitPipeline, group_of
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, Worker
from meshwright.specs.strategy import LayerStrategy


def native_plan(one_set: PipelineSet[SplitPipeline], cluster: ClusterSpec) -> ExecutionPlan:
    """The plan of a pipeline set with whole micro-batches.

    Devices of each group are handed out by falling size of stage.
    A stage that starts at a multiple of its size has whole nodes and domains; smaller ones behind it do too.

    Args:
        one_set: pipelines and their micro-batches.
        cluster: whose groups the islands are.
    """
    starts = _starts(one_set.pipelines, cluster)
    strategies: dict[LayerStrategy, int] = {}
    pipelines = tuple(
        _pipeline(pipeline, round(share), own, strategies)
        for pipeline, share, own in zip(one_set.pipelines, one_set.shares, starts, strict=True)
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=pipelines)


def _starts(pipelines: Sequence[SplitPipeline], cluster: ClusterSpec) -> list[dict[int, int]]:
    """First device of each pipeline on each of its islands."""
    free = dict(enumerate(accumulate((group.devices for group in cluster.groups[:-1]), initial=0)))
    starts: list[dict[int, int]] = [{} for _ in pipelines]
    sizes = sorted(
        {(-stage.devices, number, stage.island) for number, one in enumerate(pipelines) for stage in one.stages}
    )
    for _, number, island in sizes:
        if island not in starts[number]:
            starts[number][island] = free[island]
            free[island] += pipelines[number].devices_on(island)
    return starts


def _pipeline(
    pipeline: SplitPipeline, micro_batches: int, free: dict[int, int], strategies: dict[LayerStrategy, int]
) -> Pipeline:
    firsts, count = _firsts(pipeline.layers), len(pipeline.stages)
    workers = []
    for index, stage in enumerate(pipeline.stages):
        chunks = []
        for virtual in range(index, len(pipeline.layers), count):
            layers, first = pipeline.layers[virtual], firsts[virtual]
            own = plan_of(stage.options.plan_row(stage.row, layers), (layers,))
            number = [strategies.setdefault(strategy, len(strategies)) for strategy in own.strategies]
            runs = own.pipelines[0].workers[0].chunks[0].runs
            chunks.append(
                Chunk(
                    virtual_stage=virtual,
                    layers=((first, first + layers - 1),),
                    runs=tuple(replace(run, strategy=number[run.strategy]) for run in runs),
                    embedding=virtual == 0,
                    head=virtual == len(pipeline.layers) - 1,
                )
            )
        start = free[stage.island]
        free[stage.island] = start + stage.devices
        workers.append(Worker(devices=((start, start + stage.devices - 1),), chunks=tuple(chunks)))
    return Pipeline(
        micro_batch=int(pipeline.stages[0].options.grid.mbs[pipeline.stages[0].row]),
        num_micro_batches=micro_batches,
        workers=tuple(workers),
        schedule=_schedule(pipeline, micro_batches),
    )


def _schedule(pipeline: SplitPipeline, micro_batches: int) -> Schedule:
    """1F1B, or interleaved 1F1B in the smallest groups that leave no short one over."""
    if pipeline.chunks == 1:
        return Schedule()
    group = group_of(len(pipeline.stages), micro_batches)
    return Schedule(name="interleaved", parameters=() if group == len(pipeline.stages) else (("group", group),))


def _firsts(layers: Sequence[int]) -> list[int]:
    return list(accumulate(layers[:-1], initial=0))
