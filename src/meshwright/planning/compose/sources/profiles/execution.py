"""A pipeline set as the one plan: pipelines, workers on numbered devices, chunks of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.compose.sources.profiles.pipeline_set import PipelineShape, ShapeSet, StageShape
from meshwright.specs.plan import ExecutionPlan, Pipeline, StrategyRun
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D

PROFILED = 0
"""Stands for the length of sequences in a plan: the profiled one, which profiles do not tell."""


def execution_plan(
    one_set: ShapeSet, shares: Sequence[Sequence[tuple[int, ...]]], first_device: Mapping[str, int]
) -> ExecutionPlan:
    """The plan of a pipeline set.

    Args:
        one_set: pipelines over profiled layers, whose first is the embedding and whose last is the head.
        shares: sequences of each micro-batch of each pipeline of each part; a pipeline without any is left out.
        first_device: number of the first device of each kind in the cluster's order.

    Returns:
        the plan; stages of large tensor degree get their devices first, so that none straddles a node.
    """
    pipelines = [
        (part.shape, sizes) for part, each in zip(one_set.parts, shares, strict=True) for sizes in each if sizes
    ]
    builder, firsts = PlanBuilder(), _placed([shape for shape, _ in pipelines], first_device)
    return builder.plan(
        _pipeline(shape, sizes, first, builder) for (shape, sizes), first in zip(pipelines, firsts, strict=True)
    )


def _placed(shapes: Sequence[PipelineShape], first_device: Mapping[str, int]) -> list[list[int]]:
    """First device of each stage of each pipeline."""
    free = dict(first_device)
    wanted = [(stage, p, s) for p, shape in enumerate(shapes) for s, stage in enumerate(shape.stages)]
    placed = [[0] * len(shape.stages) for shape in shapes]
    for stage, p, s in sorted(wanted, key=lambda one: -one[0].tp):
        placed[p][s] = free[stage.device]
        free[stage.device] += stage.devices
    return placed


def _pipeline(
    shape: PipelineShape, sizes: tuple[int, ...], first_devices: Sequence[int], builder: PlanBuilder
) -> Pipeline:
    workers = []
    for index, (stage, first_device) in enumerate(zip(shape.stages, first_devices, strict=True)):
        first, last = block_range(shape, index)
        runs = (StrategyRun(layers=last - first + 1, strategy=0),) if last >= first else ()
        held = StageLayers(virtual_stage=index, first=first, strategies=(_strategy(stage),), runs=runs)
        workers.append(builder.worker(first_device, stage.devices, [held], len(shape.stages)))
    ranks = shape.stages[0].replicas
    return Pipeline(
        micro_batch=shape.micro_batch // ranks,
        num_micro_batches=len(sizes),
        workers=tuple(workers),
        shapes=() if set(sizes) == {shape.micro_batch} else tuple((-(-size // ranks), PROFILED) for size in sizes),
    )


def block_range(shape: PipelineShape, stage: int) -> tuple[int, int]:
    """First and last transformer layer of a stage, embedding and head not counted; last < first where it has none."""
    cuts = shape.cuts
    return max(0, cuts[stage] - 1), min(cuts[stage + 1] - 2, cuts[-1] - 3)


def _strategy(stage: StageShape) -> LayerStrategy:
    return LayerStrategy(
        tensor=Tensor1D(degree=stage.tp, sequence_parallel=False),
        data=DataParallel(replicate=stage.replicas, overlap=False),
    )
