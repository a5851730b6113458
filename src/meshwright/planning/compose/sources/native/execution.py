"""A pipeline set of native pipelines as the one plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import spec_of, usual_schedule
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline, Schedule


def native_plan(one_set: PipelineSet[SplitPipeline], cluster: ClusterSpec) -> ExecutionPlan:
    """The plan of a pipeline set with whole micro-batches.

    Devices of each group are handed out by falling size of stage.
    A stage that starts at a multiple of its size has whole nodes and domains; smaller ones behind it do too.

    Args:
        one_set: pipelines and their micro-batches.
        cluster: the cluster whose groups the islands are.
    """
    builder, starts = PlanBuilder(), _starts(one_set.pipelines, cluster)
    return builder.plan(
        _pipeline(pipeline, round(share), own, builder)
        for pipeline, share, own in zip(one_set.pipelines, one_set.shares, starts, strict=True)
    )


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


def _pipeline(pipeline: SplitPipeline, micro_batches: int, free: dict[int, int], builder: PlanBuilder) -> Pipeline:
    firsts, count = list(accumulate(pipeline.layers[:-1], initial=0)), len(pipeline.stages)
    workers = []
    for index, stage in enumerate(pipeline.stages):
        held = []
        for virtual in range(index, len(pipeline.layers), count):
            layers = pipeline.layers[virtual]
            own = stage.options.stage_plan(stage.row, layers)
            runs = own.pipelines[0].workers[0].chunks[0].runs
            held.append(StageLayers(virtual_stage=virtual, first=firsts[virtual], strategies=own.strategies, runs=runs))
        workers.append(builder.worker(free[stage.island], stage.devices, held, len(pipeline.layers)))
        free[stage.island] += stage.devices
    return Pipeline(
        micro_batch=int(pipeline.stages[0].options.grid.mbs[pipeline.stages[0].row]),
        num_micro_batches=micro_batches,
        workers=tuple(workers),
        schedule=_schedule(pipeline, micro_batches),
    )


def _schedule(pipeline: SplitPipeline, micro_batches: int) -> Schedule:
    return spec_of(schedule_named(usual_schedule(len(pipeline.stages), micro_batches, pipeline.chunks)))
