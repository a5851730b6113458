"""A blend of native pipelines as the one plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from meshwright.hetero.blends import Blend
from meshwright.hetero.pipelines import SplitPipeline
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Worker
from meshwright.specs.row_of import plan_of
from meshwright.specs.strategy import LayerStrategy


def native_plan(blend: Blend, cluster: ClusterSpec) -> ExecutionPlan:
    """The plan of a blend with whole micro-batches; devices of each group are handed out in order.

    Args:
        blend: pipelines and their micro-batches.
        cluster: whose groups the islands are.
    """
    free = dict(enumerate(accumulate((group.devices for group in cluster.groups[:-1]), initial=0)))
    strategies: dict[LayerStrategy, int] = {}
    pipelines = tuple(
        _pipeline(pipeline, round(share), free, strategies)
        for pipeline, share in zip(blend.pipelines, blend.shares, strict=True)
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=pipelines)


def _pipeline(
    pipeline: SplitPipeline, micro_batches: int, free: dict[int, int], strategies: dict[LayerStrategy, int]
) -> Pipeline:
    firsts = _firsts(pipeline.layers)
    last = len(pipeline.stages) - 1
    workers = []
    for index, (stage, layers, first) in enumerate(zip(pipeline.stages, pipeline.layers, firsts, strict=True)):
        own = plan_of(stage.options.plan_row(stage.row, layers), (layers,))
        number = [strategies.setdefault(strategy, len(strategies)) for strategy in own.strategies]
        chunk = Chunk(
            virtual_stage=index,
            layers=((first, first + layers - 1),),
            runs=tuple(
                replace(run, strategy=number[run.strategy]) for run in own.pipelines[0].workers[0].chunks[0].runs
            ),
            embedding=index == 0,
            head=index == last,
        )
        start = free[stage.island]
        free[stage.island] = start + stage.devices
        workers.append(Worker(devices=((start, start + stage.devices - 1),), chunks=(chunk,)))
    return Pipeline(
        micro_batch=int(pipeline.stages[0].options.grid.mbs[pipeline.stages[0].row]),
        num_micro_batches=micro_batches,
        workers=tuple(workers),
    )


def _firsts(layers: Sequence[int]) -> list[int]:
    return list(accumulate(layers[:-1], initial=0))
