"""A pipeline set of pipelines of partial plans as the one plan, on numbered devices."""

from __future__ import annotations

from itertools import accumulate

from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import SlicePipeline
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline, Worker


def sliced_plan(one_set: PipelineSet[SlicePipeline], cluster: ClusterSpec) -> ExecutionPlan:
    """The plan of a pipeline set with whole micro-batches.

    Devices of each group are handed out from its last on, in the order in which stages were put in front of each other,
    so that no stage breaks a node.

    Args:
        one_set: pipelines and their micro-batches.
        cluster: the cluster whose groups the islands are.
    """
    free = dict(enumerate(accumulate(group.devices for group in cluster.groups)))
    builder = PlanBuilder()
    return builder.plan(
        _pipeline(pipeline, round(share), free, builder)
        for pipeline, share in zip(one_set.pipelines, one_set.shares, strict=True)
    )


def _pipeline(pipeline: SlicePipeline, micro_batches: int, free: dict[int, int], builder: PlanBuilder) -> Pipeline:
    workers: list[Worker] = []
    stages = pipeline.stages
    for place, stage in reversed(list(enumerate(stages))):
        free[stage.group] -= stage.devices
        plan = stage.plan
        held = StageLayers(virtual_stage=place, first=stage.first, strategies=plan.strategies, runs=plan.runs)
        workers.insert(0, builder.worker(free[stage.group], plan.devices, [held], len(stages)))
    leading = stages[0].plan
    ranks = leading.strategies[leading.runs[0].strategy].dp
    return Pipeline(
        micro_batch=pipeline.global_micro_batch // ranks, num_micro_batches=micro_batches, workers=tuple(workers)
    )
