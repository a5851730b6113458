"""`parallelize`: a training step written for one device, compiled for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.creation import creation
from meshwright.compiler.cut import Stage, body_of, cut
from meshwright.compiler.halves import halves_of
from meshwright.compiler.instructions import Program
from meshwright.compiler.layers import layer_ends
from meshwright.compiler.lower import lower
from meshwright.compiler.methods import Auto, DataParallel, FromPlan, LocalPipeline, Method, ShardParallel
from meshwright.compiler.sharding.apply import AXES, Setting, SolvedSharding, shard_stage
from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.compiler.shardings import Sharding
from meshwright.compiler.stages.apply import planned_stages
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import plan_step
from meshwright.compiler.trace import TracedStep, trace_step
from meshwright.compiler.verify import Verified, verify
from meshwright.errors import InputError, Problem
from meshwright.runtime.backends import TIMEOUT_S, check_backend, runtime_of
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.moments import Moments
from meshwright.runtime.remote import RemoteArray, RemoteRuntime
from meshwright.schedules import schedule_named
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CompiledStep:
    """A step compiled for arguments of certain shapes."""

    step: TracedStep
    table: ScheduleTable
    program: Program
    verified: Verified
    shardings: tuple[Sharding, ...]
    """How values lie, by mesh; those that were decided operator by operator say why: `explain()`."""
    runtime: LocalRuntime | RemoteRuntime
    plan: StagesPlan | None = None
    """Of `Auto` and `FromPlan`, every decision in it: `plan.save(path)`, `FromPlan(plan=StagesPlan.load(path))`."""

    @property
    def sharding(self) -> Sharding:
        """How values lie on the first mesh."""
        return self.shardings[0]

    def explain(self) -> str:
        """Why each operator is split so, and what its next best way costs, mesh after mesh.

        Raises:
            InputError: the method does not decide about operators.
        """
        decided = [sharding for sharding in self.shardings if isinstance(sharding, SolvedSharding)]
        if not decided:
            raise InputError(
                Problem(
                    what="nothing was decided about single operators",
                    why="data parallel and ZeRO split samples and weights alike everywhere",
                    fix="method=Auto() or ShardParallel()",
                    field="method",
                )
            )
        return "\n".join(f"mesh {number}\n{sharding.explain()}" for number, sharding in enumerate(decided))

    def __call__(self, *arguments: Any) -> Any:
        """Run the step.

        Args:
            arguments: as the step takes them.
        """
        outputs = self.runtime.step(jax.tree.leaves(tuple(arguments)), self.step.micro_batches)
        return jax.tree.unflatten(self.step.out_tree, outputs)

    def create(self, init: Callable[..., Any], *arguments: Any) -> Any:
        """The state of the step, made where the step reads it: no device holds more than its own part.

        Args:
            init: makes what the step takes as its first argument.
            arguments: of `init`.

        Raises:
            InputError: `init` makes something else.
        """
        state = jax.tree.unflatten(self.step.in_tree, self.step.jaxpr.invars)[0]
        wanted = jax.tree.map(lambda var: jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype), state)
        program = creation(self.program, init, arguments, wanted)
        made = self.runtime.sharing(program).step(jax.tree.leaves(tuple(arguments)), 1)
        return jax.tree.unflatten(jax.tree.structure(wanted), made)

    def recorded(self, *arguments: Any) -> tuple[Any, Moments]:
        """Run the step and say when each instruction ran; each is waited for, so the step takes longer.

        Args:
            arguments: as the step takes them.
        """
        outputs, moments = self.runtime.recorded(jax.tree.leaves(tuple(arguments)), self.step.micro_batches)
        return jax.tree.unflatten(self.step.out_tree, outputs), moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a step runs."""

    backend: str = "local"
    ray: str | None = None
    timeout_s: float = TIMEOUT_S
    hosts_per_mesh: int = 1

    def __post_init__(self) -> None:
        check_backend(self.backend, self.ray, self.timeout_s, self.hosts_per_mesh)


class ParallelizedStep:
    """A training step that runs on many devices; compiled anew for arguments of other shapes."""

    def __init__(
        self, fun: Callable[..., Any], method: Method, batch_argnums: Sequence[int], loss: str | None, place: Place
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
        self._compiled: dict[Any, CompiledStep] = {}

    def lower(self, *arguments: Any) -> CompiledStep:
        """Compile for arguments, or for their shapes (`jax.ShapeDtypeStruct`), without running.

        Args:
            arguments: as the step takes them.
        """
        arguments = jax.tree.map(_shape_of_remote, tuple(arguments))
        leaves, tree = jax.tree.flatten(arguments)
        key = tree, tuple((np.shape(leaf), str(jax.dtypes.result_type(leaf))) for leaf in leaves)
        if key not in self._compiled:
            self._compiled[key] = compile_step(
                self.fun, arguments, self.method, self.batch_argnums, self.loss, self.place
            )
        return self._compiled[key]

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

    Returns:
        The step, to be called the same way; without `fun`, a decorator.
    """
    place = Place(backend=backend, ray=ray, timeout_s=timeout_s, hosts_per_mesh=hosts_per_mesh)
    if fun is None:
        return lambda step: ParallelizedStep(step, method or DataParallel(), batch_argnums, loss, place)
    return ParallelizedStep(fun, method or DataParallel(), batch_argnums, loss, place)


def compile_step(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    method: Method,
    batch_argnums: Sequence[int],
    loss: str | None,
    place: Place,
) -> CompiledStep:
    """Trace, cut and lower a step, and place its meshes.

    Args:
        fun: the step.
        arguments: arrays or shapes.
        method: how to run it.
        batch_argnums: arguments that are split on their first axis.
        loss: "mean", "sum" or None.
        place: where it runs.

    Raises:
        InputError: the step or the method cannot be compiled, with every reason.
    """
    plan = _plan(fun, arguments, method, batch_argnums)
    name, workers, chunks = method.pipeline if plan is None else (plan.schedule, len(plan.stages), 1)
    micro_batches = method.num_micro_batches if plan is None else plan.micro_batches
    step = trace_step(
        fun,
        arguments,
        batch_argnums=batch_argnums,
        micro_batches=micro_batches,
        mean=None if loss is None else loss == "mean",
    )
    table = _table(name, workers, micro_batches, chunks)
    stages: Sequence[Stage]
    meshes: Sequence[Mesh]
    shardings: Sequence[Sharding]
    if plan is not None:
        planned = planned_stages(step, plan, _devices(method))
        stages, meshes, shardings, plan = planned.stages, planned.meshes, planned.shardings, planned.plan
    else:
        meshes = _meshes(method, workers)
        body = body_of(step.loss, step.wrt)
        stages = cut(body, step.wrt, layer_ends(body, table.placement.stages // table.placement.chains))
        shardings = [method.sharding_of(step)] * workers
    if isinstance(method, ShardParallel):
        setting = Setting(memory_bytes=method.memory_bytes)
        stage, solved = shard_stage(step, stages[0], _logical_meshes(method, meshes[0]), setting)
        stages, meshes, shardings = (stage,), [solved.mesh], [solved]
    halves = [halves_of(stage, last=stage is stages[-1]) for stage in stages]
    program = lower(step, halves, table, shardings, [mesh.size for mesh in meshes])
    return CompiledStep(
        step=step,
        table=table,
        program=program,
        verified=verify(program),
        shardings=tuple(shardings),
        runtime=runtime_of(program, meshes, place.backend, place.ray, place.timeout_s, place.hosts_per_mesh),
        plan=plan,
    )


def _plan(
    fun: Callable[..., Any], arguments: Sequence[Any], method: Method, batch_argnums: Sequence[int]
) -> StagesPlan | None:
    """What a method plans or replays; None for those that are plans themselves."""
    if isinstance(method, FromPlan):
        return method.plan
    if isinstance(method, Auto):
        hosts = method.on(len(_devices(method)))
        return plan_step(fun, arguments, hosts, batch_argnums=batch_argnums, space=method.space)
    return None


def _devices(method: Method) -> list[Any]:
    return list(method.devices) if method.devices is not None else jax.devices()


def _shape_of_remote(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, RemoteArray) else leaf


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
    devices = _devices(method)
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
    axes = method.axes(len(devices) // workers)
    return [Mesh(row, tuple(axes)) for row in np.array(devices).reshape(workers, *axes.values())]


def _logical_meshes(method: ShardParallel, mesh: Mesh) -> list[tuple[LogicalMesh, Mesh]]:
    """Views of a row of devices as rows and grids, with the price of their links."""
    found = []
    for shape in method.shapes(mesh.size):
        axes = tuple(
            MeshAxis(size=size, latency_s=method.link_latency_s, bytes_per_s=method.link_bytes_per_s) for size in shape
        )
        view = LogicalMesh(axes=axes, flop_per_s=method.flop_per_s)
        found.append((view, Mesh(mesh.devices.reshape(shape), AXES[: len(shape)])))
    return found
