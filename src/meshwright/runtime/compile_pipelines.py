"""What `parallelize` does with a set of pipelines: trace, cut and lower each, as one program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.idle_devices import IdleDevicesWarning, idle_devices_notice
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.verify import verify_lists
from meshwright.compiler.lowering.lower import task_order
from meshwright.compiler.lowering.pipelines import PipelinePart, cut_part, lower_pipelines, traced_part
from meshwright.compiler.pipeline_set import PipelineSet, StagedPipeline
from meshwright.compiler.tracing.batch import batch_places
from meshwright.compiler.tracing.calls import CallForm
from meshwright.errors import InputError, Problem
from meshwright.runtime.compiled import CompiledStep
from meshwright.schedules.beside import side_by_side

_REDUCTIONS = (
    "gradients are reduced inside a stage with every micro-batch, by XLA's partitioner, and between pipelines once, on"
    " the stages of"
)


def compile_pipelines(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    method: PipelineSet,
    batch_argnums: Sequence[int],
    loss: str | None,
    runtime: Callable[[StepProgram, Sequence[Mesh]], Any],
    given: Callable[[Any], Collection[int]],
) -> CompiledStep:
    """Trace, cut and lower a step for several pipelines, and place their meshes.

    Args:
        fun: the step.
        arguments: arrays or shapes.
        method: the pipelines.
        batch_argnums: arguments that are split on their first axis.
        loss: "mean" or "sum".
        runtime: makes what runs the program on the meshes.
        given: inputs of a traced step that the caller gives away.

    Raises:
        InputError: the step or the pipelines cannot be compiled, with every reason.
    """
    _check(arguments, method, batch_argnums, loss)
    devices = list(method.devices) if method.devices is not None else jax.devices()
    parts: list[PipelinePart] = []
    for pipeline in method.pipelines:
        first = sum(len(part.stages) for part in parts)
        parts.append(_part(fun, arguments, pipeline, devices, batch_argnums, mean=loss == "mean", first=first))
    meshes = [mesh for part in parts for mesh in part.meshes]
    step = replace(parts[0].step, micro_batches=sum(part.micro_batches for part in parts))
    program = lower_pipelines(parts, sorted(given(step)), joint_states=method.joint_states)
    idle = [said for part in parts for said in idle_devices_notice(part.step, part.stages, part.shardings, part.meshes)]
    for said in idle:
        warnings.warn(said, IdleDevicesWarning, stacklevel=7)
    placed = runtime(program, meshes)
    if method.paces is not None:
        placed.slow_down(method.paces(program))
    return CompiledStep(
        step=step,
        table=side_by_side([part.table for part in parts]),
        program=program,
        verified=verify_lists(program),
        shardings=tuple(one for part in parts for one in part.shardings),
        reductions=f"{_REDUCTIONS} {'the one that holds their states' if method.joint_states else 'the first'}",
        idle=tuple(idle),
        runtime=placed,
    )


def _part(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    pipeline: StagedPipeline,
    devices: Sequence[Any],
    batch_argnums: Sequence[int],
    *,
    mean: bool,
    first: int,
) -> PipelinePart:
    """One pipeline, its stages numbered from `first`."""
    own = fun if pipeline.step is None else CallForm(fun=pipeline.step).call(arguments, {}).fun
    workers, chunks = len(pipeline.workers), pipeline.chunks
    table = task_order(pipeline.schedule, workers, pipeline.micro_batches, chunks).table
    if table.placement.chains > 1 or table.version is not None:
        raise InputError(
            Problem(
                what=f"schedule {pipeline.schedule} in a set of pipelines",
                field="schedule",
                why="a pipeline of a set holds every stage once and updates once a step",
                fix="1f1b or interleaved",
            )
        )
    step = traced_part(own, arguments, batch_argnums, pipeline.samples, pipeline.micro_batches, mean)
    step, stages = cut_part(step, table.placement.stages, first)
    return PipelinePart(
        step=step,
        stages=stages,
        table=table,
        meshes=tuple(worker.mesh(devices) for worker in pipeline.workers),
        shardings=tuple(worker.sharding(step) for worker in pipeline.workers),
        samples=pipeline.samples,
    )


def _check(arguments: Sequence[Any], method: PipelineSet, batch_argnums: Sequence[int], loss: str | None) -> None:
    if loss is None:
        raise InputError(
            Problem(
                what="loss is not given for pipelines of unlike micro-batches",
                field="loss",
                why="a mean weights micro-batches by their samples, a sum weights them equally",
                fix='loss="mean"',
            )
        )
    leaves = jax.tree.leaves(tuple(arguments))
    batch = {np.shape(leaves[place])[0] for place in batch_places(arguments, batch_argnums)}
    if batch != {method.batch}:
        raise InputError(
            Problem(
                what=f"a batch of {' and '.join(map(str, sorted(batch)))} samples"
                f" for pipelines that share {method.batch}",
                why="every pipeline has its micro-batches of the batch",
                field="batch",
                fix=f"a batch of {method.batch} samples",
            )
        )
