"""A pipeline set as the one plan: pipelines, workers on numbered devices, chunks of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.planning.compose.sources.profiles.pipeline_set import PipelineShape, ShapeSet, StageShape
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
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
    devices = _placed([shape for shape, _ in pipelines], first_device)
    strategies: dict[LayerStrategy, int] = {}
    made = tuple(
        _pipeline(shape, sizes, held, strategies) for (shape, sizes), held in zip(pipelines, devices, strict=True)
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=made)


def _placed(
    shapes: Sequence[PipelineShape], first_device: Mapping[str, int]
) -> list[list[tuple[tuple[int, int], ...]]]:
    """Device ranges of each stage of each pipeline."""
    free = dict(first_device)
    wanted = [(stage, p, s) for p, shape in enumerate(shapes) for s, stage in enumerate(shape.stages)]
    placed: list[list[tuple[tuple[int, int], ...]]] = [[()] * len(shape.stages) for shape in shapes]
    for stage, p, s in sorted(wanted, key=lambda one: -one[0].tp):
        first = free[stage.device]
        free[stage.device] = first + stage.devices
        placed[p][s] = ((first, first + stage.devices - 1),)
    return placed


def _pipeline(
    shape: PipelineShape,
    sizes: tuple[int, ...],
    devices: Sequence[tuple[tuple[int, int], ...]],
    strategies: dict[LayerStrategy, int],
) -> Pipeline:
    workers = []
    for index, (stage, held) in enumerate(zip(shape.stages, devices, strict=True)):
        strategy = strategies.setdefault(_strategy(stage), len(strategies))
        first, last = block_range(shape, index)
        blocks = last - first + 1
        chunk = Chunk(
            virtual_stage=index,
            layers=((first, last),) if blocks else (),
            runs=(StrategyRun(layers=blocks, strategy=strategy),) if blocks else (),
            embedding=index == 0,
            head=index == len(shape.stages) - 1,
        )
        workers.append(Worker(devices=held, chunks=(chunk,)))
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
