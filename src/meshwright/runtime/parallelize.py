"""`parallelize`: a training step written for one device, compiled for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.cut import body_of, cut
from meshwright.compiler.halves import halves_of
from meshwright.compiler.instructions import Program
from meshwright.compiler.layers import layer_ends
from meshwright.compiler.lower import lower
from meshwright.compiler.methods import DataParallel, LocalPipeline, Method
from meshwright.compiler.trace import TracedStep, trace_step
from meshwright.compiler.verify import Verified, verify
from meshwright.errors import InputError, Problem
from meshwright.runtime.local import LocalRuntime
from meshwright.schedules import schedule_named
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CompiledStep:
    """A step compiled for arguments of certain shapes."""

    step: TracedStep
    table: ScheduleTable
    program: Program
    verified: Verified
    runtime: LocalRuntime

    def __call__(self, *arguments: Any) -> Any:
        """Run the step.

        Args:
            arguments: as the step takes them.
        """
        outputs = self.runtime.step(jax.tree.leaves(tuple(arguments)), self.step.micro_batches)
        return jax.tree.unflatten(self.step.out_tree, outputs)


class ParallelizedStep:
    """A training step that runs on many devices; compiled anew for arguments of other shapes."""

    def __init__(self, fun: Callable[..., Any], method: Method, batch_argnums: Sequence[int], loss: str | None) -> None:
        """Nothing is traced before the first call.

        Args:
            fun: the step.
            method: how to run it.
            batch_argnums: arguments that are split on their first axis.
            loss: "mean" or "sum"; found out without it.
        """
        if loss not in (None, "mean", "sum"):
            raise InputError(Problem(what=f'loss = "{loss}"', why='a loss is a "mean" or a "sum" over the batch',
                                     fix='loss="mean"', field="loss"))  # fmt: skip
        update_wrapper(self, fun)
        self.fun, self.method, self.batch_argnums, self.loss = fun, method, tuple(batch_argnums), loss
        self._compiled: dict[Any, CompiledStep] = {}

    def lower(self, *arguments: Any) -> CompiledStep:
        """Compile for arguments, or for their shapes (`jax.ShapeDtypeStruct`), without running.

        Args:
            arguments: as the step takes them.
        """
        leaves, tree = jax.tree.flatten(tuple(arguments))
        key = tree, tuple((np.shape(leaf), str(jax.dtypes.result_type(leaf))) for leaf in leaves)
        if key not in self._compiled:
            self._compiled[key] = compile_step(self.fun, arguments, self.method, self.batch_argnums, self.loss)
        return self._compiled[key]

    def __call__(self, *arguments: Any) -> Any:
        """Run the step on the devices.

        Args:
            arguments: as the step takes them.
        """
        return self.lower(*arguments)(*arguments)


def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    method: Method | None = None,
    batch_argnums: Sequence[int] = (1,),
    loss: str | None = None,
) -> Any:
    """Run a training step on many devices.

    Args:
        fun: of a state and a batch; it calls `value_and_grad` or `grad` of this package.
        method: how; data parallel on all devices without it.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        loss: "mean" or "sum" over the batch; found out from the loss without it.

    Returns:
        The step, to be called the same way; without `fun`, a decorator.
    """
    if fun is None:
        return lambda step: ParallelizedStep(step, method or DataParallel(), batch_argnums, loss)
    return ParallelizedStep(fun, method or DataParallel(), batch_argnums, loss)


def compile_step(
    fun: Callable[..., Any], arguments: Sequence[Any], method: Method, batch_argnums: Sequence[int], loss: str | None
) -> CompiledStep:
    """Trace, cut and lower a step, and place its meshes.

    Args:
        fun: the step.
        arguments: arrays or shapes.
        method: how to run it.
        batch_argnums: arguments that are split on their first axis.
        loss: "mean", "sum" or None.

    Raises:
        InputError: the step or the method cannot be compiled, with every reason.
    """
    name, workers, chunks = method.pipeline
    meshes = _meshes(method, workers)
    step = trace_step(
        fun,
        arguments,
        batch_argnums=batch_argnums,
        micro_batches=method.num_micro_batches,
        mean=None if loss is None else loss == "mean",
    )
    table = _table(name, workers, method.num_micro_batches, chunks)
    depth = table.placement.stages // table.placement.chains
    body = body_of(step.loss, step.wrt)
    stages = cut(body, step.wrt, layer_ends(body, depth))
    halves = [halves_of(stage, last=stage is stages[-1]) for stage in stages]
    program = lower(step, halves, table, method.sharding, [mesh.size for mesh in meshes])
    return CompiledStep(
        step=step, table=table, program=program, verified=verify(program), runtime=LocalRuntime(program, meshes)
    )


def _table(name: str, workers: int, micro_batches: int, chunks: int) -> ScheduleTable:
    schedule = schedule_named(name)
    if not chunks:
        chunks = (
            2 if any(problem.field == "v" for problem in schedule.problems(max(workers, 2), micro_batches, 1)) else 1
        )
    problems = list(schedule.problems(workers, micro_batches, chunks))
    if problems:
        raise InputError(problems)
    return schedule.table(workers, micro_batches, chunks)


def _meshes(method: Method, workers: int) -> list[Mesh]:
    """A row of devices for every worker."""
    devices = list(method.devices) if method.devices is not None else jax.devices()
    axis = method.sharding.axis
    if isinstance(method, LocalPipeline):
        return [Mesh(np.array(devices[:1]), (axis,))] * workers
    if len(devices) % workers:
        raise InputError(
            Problem(
                what=f"{workers} stages on {len(devices)} devices",
                why="every stage takes as many devices",
                fix=f"num_stages={max(n for n in range(1, workers + 1) if len(devices) % n == 0)}, or other devices",
                field="num_stages",
            )
        )
    return [Mesh(row, (axis,)) for row in np.array(devices).reshape(workers, -1)]
