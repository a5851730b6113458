"""A composition as the one plan: pipelines, workers on numbered devices, chunks of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.hetero.composition import Composition, PipelineShape, StageShape
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D


def execution_plan(
    composition: Composition, shares: Sequence[Sequence[int]], first_device: Mapping[str, int]
) -> ExecutionPlan:
    """The plan of a composition.

    Args:
        composition: pipelines over profiled layers, whose first is the embedding and whose last is the head.
        shares: micro-batches of each pipeline of each part; a pipeline without any is left out.
        first_device: number of the first device of each kind in the cluster's order.

    Returns:
        the plan; stages of large tensor degree get their devices first, so that none straddles a node.
    """
    pipelines = [
        (part.shape, count) for part, counts in zip(composition.parts, shares, strict=True) for count in counts if count
    ]
    devices = _placed([shape for shape, _ in pipelines], first_device)
    strategies: dict[LayerStrategy, int] = {}
    made = tuple(
        _pipeline(shape, count, held, strategies) for (shape, count), held in zip(pipelines, devices, strict=True)
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
    micro_batches: int,
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
    return Pipeline(
        micro_batch=shape.micro_batch // shape.stages[0].replicas,
        num_micro_batches=micro_batches,
        workers=tuple(workers),
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
