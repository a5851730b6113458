"""`parallelize`: a training step written for one device, compiled for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import jax
import numpy as np

from meshwright.compiler.methods import DataParallel, FollowParallel, Method
from meshwright.errors import InputError, Problem
from meshwright.runtime.backends import TIMEOUT_S
from meshwright.runtime.compile import Backing, compile_step
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.follow import CompiledFunction, compile_following
from meshwright.runtime.remote import RemoteArray, RemoteRuntime
from meshwright.runtime.stacked import StackedArray


class ParallelizedStep:
    """A training step that runs on many devices; compiled anew for arguments of other shapes."""

    def __init__(
        self, fun: Callable[..., Any], method: Method, batch_argnums: Sequence[int], loss: str | None, place: Backing
    ) -> None:
        """Nothing is traced before the first call.

        Args:
            fun: the step.
            method: how to run it.
            batch_argnums: arguments that are split on their first axis.
            loss: "mean" or "sum"; found out without it.
            place: where it runs.
        """
        if loss not in (None, "mean", "sum"):
            raise InputError(Problem(what=f'loss = "{loss}"', why='a loss is a "mean" or a "sum" over the batch',
                                     fix='loss="mean"', field="loss"))  # fmt: skip
        update_wrapper(self, fun)
        self.fun, self.method, self.batch_argnums, self.loss = fun, method, tuple(batch_argnums), loss
        self.place = place
        self._compiled: dict[Any, CompiledStep | CompiledFunction] = {}

    def compiled(self) -> CompiledStep | CompiledFunction | None:
        """As it was compiled last; None before."""
        return next(reversed(self._compiled.values()), None)

    def lower(self, *arguments: Any) -> Any:
        """Compile for arguments, or for their shapes (`jax.ShapeDtypeStruct`), without running.

        Args:
            arguments: as the step takes them.

        Returns:
            `CompiledStep`, or of a function that follows a step `CompiledFunction`.
        """
        arguments = jax.tree.map(_shape_of_remote, tuple(arguments))
        leaves, tree = jax.tree.flatten(arguments)
        key = tree, tuple((np.shape(leaf), str(jax.dtypes.result_type(leaf))) for leaf in leaves)
        if key not in self._compiled:
            self._compiled[key] = self._compile(arguments)
        return self._compiled[key]

    def _compile(self, arguments: Sequence[Any]) -> CompiledStep | CompiledFunction:
        if isinstance(self.method, FollowParallel):
            return compile_following(self.fun, arguments, self.method, self.batch_argnums, self.loss)
        before = self.compiled()
        beside = before.runtime if before is not None else None
        return compile_step(self.fun, arguments, self.method, self.batch_argnums, self.loss, self.place, beside)

    def create(self, init: Callable[..., Any], *arguments: Any, batch: Any) -> Any:
        """The first state, made where the step reads it: `state = train_step.create(init, key, batch=batch)`.

        Args:
            init: makes what the step takes as its first argument.
            arguments: of `init`.
            batch: what else the step takes, or its shapes; several arguments as a tuple in `batch` of their own.

        Raises:
            InputError: `init` makes something that the step does not take.
        """
        return self.lower(jax.eval_shape(init, *arguments), batch).create(init, *arguments)

    def __call__(self, *arguments: Any) -> Any:
        """Run the step on the devices.

        Args:
            arguments: as the step takes them.
        """
        return self.lower(*arguments)(*arguments)

    def close(self) -> None:
        """Let workers in other processes and the state they keep go; the step can be called again."""
        for compiled in self._compiled.values():
            if isinstance(compiled.runtime, RemoteRuntime):
                compiled.runtime.close()


def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    method: Method | None = None,
    batch_argnums: Sequence[int] = (1,),
    loss: str | None = None,
    backend: str = "local",
    ray: str | None = None,
    timeout_s: float = TIMEOUT_S,
    hosts_per_mesh: int = 1,
    donate: bool = False,
) -> Any:
    """Run a training step on many devices.

    Args:
        fun: of a state and a batch; it calls `value_and_grad` or `grad` of this package.
        method: how; data parallel on all devices without it.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        loss: "mean" or "sum" over the batch; found out from the loss without it.
        backend: "local" runs all meshes in this process, "processes" each in its own, "ray" each in a Ray actor.
        ray: address of a Ray cluster; one of this machine is started without it.
        timeout_s: a worker that has not gone on to its next instruction by then ends the step with an error; in the
            first step, which compiles, by ten times as long. One that dies does at once.
        hosts_per_mesh: workers that share the devices of each mesh, as one group of JAX.
        donate: whether each call takes the memory of its first argument, which then cannot be read any more.

    Returns:
        The step, to be called the same way; without `fun`, a decorator.
    """
    place = Backing(backend=backend, ray=ray, timeout_s=timeout_s, hosts_per_mesh=hosts_per_mesh, donate=donate)
    if fun is None:
        return lambda step: ParallelizedStep(step, method or DataParallel(), batch_argnums, loss, place)
    return ParallelizedStep(fun, method or DataParallel(), batch_argnums, loss, place)


def _shape_of_remote(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, RemoteArray | StackedArray) else leaf
