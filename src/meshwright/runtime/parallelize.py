"""`parallelize`: a training step written for one device, compiled for many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from types import MethodType
from typing import Any

import jax
import numpy as np
from jax._src.core import trace_state_clean

from meshwright.compiler.methods.data import DataParallel
from meshwright.compiler.methods.decided import FollowParallel
from meshwright.compiler.methods.method import Method
from meshwright.compiler.python_effects.lost_state import warn_of_lost_state
from meshwright.compiler.python_effects.refusals import reading_problem
from meshwright.compiler.python_effects.shapes import StateShapes
from meshwright.compiler.python_effects.state import PythonState
from meshwright.compiler.source_line import start_of
from meshwright.compiler.tracing.batch_arguments import batch_argument
from meshwright.compiler.tracing.beside_arrays import BesideArrays
from meshwright.compiler.tracing.calls import CallForm, StepCall
from meshwright.compiler.tracing.garbage import garbage_left
from meshwright.compiler.tracing.users_mesh import mesh_aside
from meshwright.compiler.tracing.weak_types import is_weak
from meshwright.errors import InputError, Problem
from meshwright.runtime.backends import TIMEOUT_S
from meshwright.runtime.compile import Backing, compile_step
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.follow import CompiledFunction, compile_following
from meshwright.runtime.moments import Moments
from meshwright.runtime.stacked import StackedArray
from meshwright.runtime.workers.remote import RemoteRuntime
from meshwright.runtime.workers.remote_arrays import DistributedArray, RemoteArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDone:
    """One call of a step that ended."""

    number: int
    """Number of the call, from 0."""
    result: Any
    """What the step returned; loss and metrics are read from here."""
    seconds: float
    """Seconds until all results were there; those of a call with new shapes hold its compilation."""


OnStep = Callable[[CallDone], None]


class ParallelizedStep:
    """A training step that runs on many devices; compiled anew for arguments of other shapes."""

    def __init__(
        self,
        form: CallForm,
        method: Method,
        batch_argnums: Sequence[int] | None,
        loss: str | None,
        place: Backing,
        on_step: OnStep | None = None,
    ) -> None:
        """Nothing is traced before the first call.

        Args:
            form: the step, and what of its arguments is static.
            method: how to run it.
            batch_argnums: arguments that are split on their first axis; found without it (`batch_argument`).
            loss: "mean" or "sum"; found out without it.
            place: the place where it runs.
            on_step: called after each call, which then waits for its results.
        """
        if on_step is not None and not callable(on_step):
            raise InputError(
                Problem(
                    what=f"on_step is {on_step!r:.40}",
                    why="it is called with each step that is done",
                    fix="on_step=print, for one",
                    field="on_step",
                )
            )
        if loss not in (None, "mean", "sum"):
            raise InputError(
                Problem(
                    what=f'loss = "{loss}"',
                    why='a loss is a "mean" or a "sum" over the batch',
                    fix='loss="mean"',
                    field="loss",
                )
            )
        update_wrapper(self, form.fun)
        self.form, self.method, self.loss = form, method, loss
        self.batch_argnums = None if batch_argnums is None else tuple(batch_argnums)
        self.place, self.on_step = place, on_step
        self._calls = 0
        self._compiled: dict[Any, CompiledStep | CompiledFunction] = {}
        self._shapes, self._beside = StateShapes(), BesideArrays()
        self._python: dict[Any, PythonState] = {}
        """What each program has read of Python's numbers."""
        self._last: tuple[Any, list[Any], CompiledStep | CompiledFunction, PythonState] | None = None
        """What part of the last call is no array, the marks of its arrays, its program and what that has read."""

    def compiled(self) -> CompiledStep | CompiledFunction | None:
        """The step as it was compiled last; None before."""
        return next(reversed(self._compiled.values()), None)

    def lower(self, *arguments: Any, **keywords: Any) -> Any:
        """Compile for arguments, or for their shapes (`jax.ShapeDtypeStruct`), without running.

        Args:
            arguments: the arguments as the step takes them.
            keywords: the keyword arguments as the step takes them.

        Returns:
            `CompiledStep`, or of a function that follows a step `CompiledFunction`.
        """
        with mesh_aside():
            return self._lower(self.form.call(arguments, keywords))

    def _lower(self, call: StepCall) -> Any:
        leaves, tree = jax.tree.flatten(call.arguments)
        marks = list(map(_mark, leaves))
        # Marks of a step's results are the same objects each time: a list of hundreds is compared in a microsecond.
        fixed = call.key, tree, jax.config.jax_enable_x64
        if self._last is None or self._last[:2] != (fixed, marks):
            key = call.key, tree, tuple(map(_form, leaves))
            if key not in self._compiled:
                before = self.compiled()
                self._beside.compiling(self.form.fun, call.arguments)
                self._shapes.compiling(
                    self.form.fun, call.arguments, before.step.jaxpr if isinstance(before, CompiledStep) else None
                )
                self._compiled[key] = self._compile(call.fun, jax.tree.map(_shape_of_remote, call.arguments))
                self._python[key] = PythonState(self.form.fun, self._compiled[key].step.consts)
                warn_of_lost_state(self.form.fun, call.arguments, self._compiled[key].step)
            self._last = fixed, marks, self._compiled[key], self._python[key]
        if changed := self._last[3].changed():
            raise reading_problem(self.form.fun, changed)
        return self._last[2]

    def _compile(self, fun: Callable[..., Any], arguments: Sequence[Any]) -> CompiledStep | CompiledFunction:
        batch = batch_argument(fun, arguments) if self.batch_argnums is None else self.batch_argnums
        if isinstance(self.method, FollowParallel):
            return compile_following(fun, arguments, self.method, batch, self.loss)
        before = self.compiled()
        beside = before.runtime if before is not None else None
        with garbage_left():
            return compile_step(fun, arguments, self.method, batch, self.loss, self.place, beside)

    def create(self, init: Callable[..., Any], *arguments: Any, batch: Any) -> Any:
        """The first state, made where the step reads it: `state = train_step.create(init, key, batch=batch)`.

        Args:
            init: makes what the step takes as its first argument.
            arguments: the arguments of `init`.
            batch: what else the step takes, or its shapes; several arguments as a tuple in `batch` of their own.

        Raises:
            InputError: `init` makes something that the step does not take.
        """
        return self.lower(jax.eval_shape(init, *arguments), batch).create(init, *arguments)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the step on the devices.

        Args:
            arguments: the arguments as the step takes them.
            keywords: the keyword arguments as the step takes them.
        """
        if not trace_state_clean():
            raise InputError(_inside_of_a_trace(self.form.fun))
        call = self.form.call(arguments, keywords)
        if self.on_step is None:
            with mesh_aside():
                return call.returned(self._lower(call)(*call.arguments))
        begin = time.perf_counter()
        with mesh_aside():
            made = jax.block_until_ready(self._lower(call)(*call.arguments))
            seconds = time.perf_counter() - begin
            result = call.returned(made)
        number, self._calls = self._calls, self._calls + 1
        self.on_step(CallDone(number=number, result=result, seconds=seconds))
        return result

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """The step of an object whose class declares it, as of any function: the object is its first argument.

        Args:
            owner: the object; None of the class itself.
            kind: the class.
        """
        return self if owner is None else MethodType(self, owner)

    def recorded(self, *arguments: Any, **keywords: Any) -> tuple[Any, Moments]:
        """Run the step once and say when each instruction ran; each is waited for, so the step takes longer.

        Args:
            arguments: the arguments as the step takes them.
            keywords: the keyword arguments as the step takes them.
        """
        call = self.form.call(arguments, keywords)
        with mesh_aside():
            outputs, moments = self._lower(call).recorded(*call.arguments)
            return call.returned(outputs), moments

    def close(self) -> None:
        """Let workers in other processes and the state they keep go; the step can be called again."""
        for compiled in self._compiled.values():
            if isinstance(compiled.runtime, RemoteRuntime):
                compiled.runtime.close()


def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    method: Method | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    loss: str | None = None,
    backend: str = "local",
    ray: str | None = None,
    timeout_s: float = TIMEOUT_S,
    hosts_per_mesh: int = 1,
    worker_devices: str | Sequence[str] = "cpu",
    donate: bool = False,
    on_step: OnStep | None = None,
) -> Any:
    """Run a training step on many devices.

    Args:
        fun: the function of a state and a batch, as `jax.jit` would take it; it takes its gradients as JAX and its
            libraries do.
        method: how; data parallel on all devices without it.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis. Without it, the second, or
            the first behind it that can be a batch where the second cannot: its arrays have several first axes, or it
            comes back among the results, as moments do. Numbers and keys in them belong to all samples; arrays may hold
            a multiple of the samples of others, and belong to all if their first axis is no multiple of most.
        static_argnums: arguments that are part of the program, as `jax.jit` takes them; strings, functions and other
            values that are no arrays are so in any case.
        static_argnames: the same by name.
        loss: "mean" or "sum" over the batch; found out from the loss without it.
        backend: "local" runs all meshes in this process, "processes" each in its own, "ray" each in a Ray actor.
        ray: address of a Ray cluster; one of this machine is started without it.
        timeout_s: a worker that has not gone on to its next instruction by then ends the step with an error; in the
            first step, which compiles, by ten times as long. One that dies does at once.
        hosts_per_mesh: workers that share the devices of each mesh, as one group of JAX.
        worker_devices: what workers in other processes own: "cpu", "gpu" (NVIDIA), "rocm", "tpu" or a device such as
            "H100", for all or one for each mesh. This process then runs with JAX_PLATFORMS=cpu and as many virtual
            devices, which stand for theirs.
        donate: whether each call takes the memory of its first argument, which then cannot be read any more.
        on_step: called after each call with its number, result and seconds (`CallDone`), such as to log them; the call
            then waits for its results.

    Returns:
        The step, to be called the same way; without `fun`, a decorator.

    Raises:
        InputError: the method is none.
    """
    _check_method(method)
    place = Backing(
        backend=backend,
        ray=ray,
        timeout_s=timeout_s,
        hosts_per_mesh=hosts_per_mesh,
        worker_devices=worker_devices,
        donate=donate,
    )
    numbers = (batch_argnums,) if isinstance(batch_argnums, int) else batch_argnums
    static = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def parallel(step: Callable[..., Any]) -> ParallelizedStep:
        if not callable(step):
            raise InputError(
                Problem(
                    what=f"parallelize is given {step!r:.60}",
                    why="it takes the function of a step",
                    fix="parallelize(train_step, method=DataParallel())",
                    field="fun",
                )
            )
        form = CallForm(fun=step, static_argnums=static, static_argnames=names)
        return ParallelizedStep(form, method or DataParallel(), numbers, loss, place, on_step)

    return parallel if fun is None else parallel(fun)


def _inside_of_a_trace(fun: Callable[..., Any]) -> Problem:
    return Problem(
        what=f"{start_of(fun)} is called inside of a function that JAX traces, such as one under jax.jit, grad or vmap",
        why="a parallel step compiles and places a program of its own, for arrays that there are",
        fix="call it outside: parallelize goes above jax.jit, and loops over steps are Python's",
        field=getattr(fun, "__name__", "step"),
    )


def _check_method(method: object) -> None:
    """Refuse what is no method, such as the class of one or its name.

    Raises:
        InputError: with what to write instead.
    """
    if method is None or isinstance(method, Method):
        return
    what, fix = f"method is {method!r:.60}", "for example DataParallel(), or FromPlan.load(path) for a plan"
    if isinstance(method, type) and issubclass(method, Method):
        what, fix = f"method is the class {method.__name__}", f"write method={method.__name__}()"
    why = "it takes an object of one of meshwright's methods, with its settings"
    raise InputError(Problem(what=what, why=why, fix=fix, field="method"), code="MW200")


def _shape_of_remote(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, RemoteArray | StackedArray) else leaf


def _mark(leaf: Any) -> Any:
    """What is equal for arrays of one shape and type, and at hand where a step has hundreds of them."""
    kind = type(leaf)
    if kind is RemoteArray:
        return leaf.buffer
    if kind is np.ndarray:
        return leaf.shape, leaf.dtype
    return leaf.aval if isinstance(leaf, jax.Array) else _form(leaf)


def _form(leaf: Any) -> tuple[tuple[int, ...], Any, bool]:
    """Shape and type; of arrays, of which a step has hundreds, in a tenth of the time that asking JAX takes."""
    if isinstance(leaf, jax.Array | DistributedArray):
        return leaf.shape, leaf.dtype, is_weak(leaf)
    return np.shape(leaf), jax.dtypes.result_type(leaf), is_weak(leaf)
