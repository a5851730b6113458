"""A pipeline set of pipelines of partial plans as the one plan, on numbered devices."""

from __future__ import annotations

from itertools import accumulate

from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.parallelizers.slice_pipelines import SlicePipeline
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.strategy import LayerStrategy


def sliced_plan(one_set: PipelineSet[SlicePipeline], cluster: ClusterSpec) -> ExecutionPlan:
    """The plan of a pipeline set with whole micro-batches.

    Devices of each group are handed out from its last on, in the order in which stages were put in front of each other,
    so that no stage breaks a node.

    Args:
        one_set: pipelines and their micro-batches.
        cluster: whose groups the islands are.
    """
    free = dict(enumerate(accumulate(group.devices for group in cluster.groups)))
    strategies: dict[LayerStrategy, int] = {}
    pipelines = tuple(
        _pipeline(pipeline, round(share), free, strategies)
        for pipeline, share in zip(one_set.pipelines, one_set.shares, strict=True)
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=pipelines)


def _pipeline(
    pipeline: SlicePipeline, micro_batches: int, free: dict[int, int], strategies: dict[LayerStrategy, int]
) -> Pipeline:
    workers: list[Worker] = []
    stages = pipeline.stages
    for place, stage in reversed(list(enumerate(stages))):
        free[stage.group] -= stage.devices
        first = free[stage.group]
        number = [strategies.setdefault(strategy, len(strategies)) for strategy in stage.plan.strategies]
        chunk = Chunk(
            virtual_stage=place,
            layers=((stage.first, stage.last),),
            runs=tuple(StrategyRun(layers=run.layers, strategy=number[run.strategy]) for run in stage.plan.runs),
            embedding=place == 0,
            head=place == len(stages) - 1,
        )
        workers.insert(0, Worker(devices=((first, first + stage.plan.devices - 1),), chunks=(chunk,)))
    leading = stages[0].plan
    ranks = leading.strategies[leading.runs[0].strategy].dp
    return Pipeline(micro_batch=pipeline.wave // ranks, num_micro_batches=micro_batches, workers=tuple(workers))
