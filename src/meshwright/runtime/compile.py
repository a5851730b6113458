"""What `parallelize` does with a step and a method: trace, cut, decide, lower, check, and place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.cuts.cut import Body, CutStage
from meshwright.compiler.cuts.layers import layer_ends
from meshwright.compiler.cuts.parted_checkpoints import checkpoints_parted
from meshwright.compiler.cuts.stage_programs import stage_programs
from meshwright.compiler.cuts.staging import staged
from meshwright.compiler.idle_devices import IdleDevicesWarning, idle_devices_notice
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.verify import verify_lists
from meshwright.compiler.lowering.lower import lower, task_order
from meshwright.compiler.lowering.whole import WholeStepWarning, lower_whole, trace_whole
from meshwright.compiler.method_plan import MethodPlan
from meshwright.compiler.methods.auto import Auto
from meshwright.compiler.methods.decided import FromPlan
from meshwright.compiler.methods.method import Method
from meshwright.compiler.methods.pipeshard import LocalPipeline, PipeshardParallel
from meshwright.compiler.methods.shard import ShardParallel
from meshwright.compiler.pipeline_set import PipelineSet
from meshwright.compiler.ranks.form import form_of, not_shared, ranks_along
from meshwright.compiler.replaying import check_replayed, decided_plan, replayed_method
from meshwright.compiler.sharding.apply import AXES, StageSetting, shard_stage
from meshwright.compiler.sharding.cost import LogicalMesh
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.slices.stages import sliced_stages
from meshwright.compiler.stages.apply import planned_stages
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import StageSpace, plan_step
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.batch import check_parts
from meshwright.compiler.tracing.trace import results_apart, trace_step
from meshwright.compiler.tracing.unplaced import NotSplit, NotStaged, keeping
from meshwright.errors import InputError, Problem
from meshwright.runtime.backends import TIMEOUT_S, check_backend, runtime_of
from meshwright.runtime.compile_pipelines import compile_pipelines
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.host_runs import check_paged
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.workers.remote import RemoteRuntime
from meshwright.schedules import schedule_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """Where a step runs."""

    backend: str = "local"
    ray: str | None = None
    timeout_s: float = TIMEOUT_S
    hosts_per_mesh: int = 1
    worker_devices: str | Sequence[str] = "cpu"
    """What workers in other processes own, for all or by mesh."""
    donate: bool = False
    """Whether a step takes the memory of the state that it is given."""

    def __post_init__(self) -> None:
        check_backend(self.backend, self.ray, self.timeout_s, self.hosts_per_mesh, self.worker_devices)


def compile_step(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    method: Method,
    batch_argnums: Sequence[int],
    loss: str | None,
    place: Backing,
    beside: LocalRuntime | RemoteRuntime | None = None,
) -> CompiledStep:
    """Trace, cut and lower a step, and place its meshes.

    Args:
        fun: the step.
        arguments: arrays or shapes.
        method: how to run it.
        batch_argnums: arguments that are split on their first axis.
        loss: "mean", "sum" or None.
        place: the place where it runs.
        beside: runtime of the same step for arguments of other shapes, whose workers keep its state.

    Raises:
        InputError: the step or the method cannot be compiled, with every reason.
    """
    if isinstance(method, PipelineSet):
        return compile_pipelines(
            fun,
            arguments,
            method,
            batch_argnums,
            loss,
            runtime=lambda program, meshes: _runtime(program, meshes, place, beside),
            given=lambda step: state_places(step) if place.donate else (),
        )
    replayed: MethodPlan | None = None
    if isinstance(method, FromPlan) and isinstance(method.plan, MethodPlan):
        replayed, method = method.plan, replayed_method(method.plan, _devices(method))
    asked = _Asked(fun=fun, arguments=arguments, batch_argnums=batch_argnums, loss=loss, place=place, beside=beside)
    made = _compiled(asked, method, replayed)
    if replayed is not None:
        check_replayed(replayed, made.plan)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A step to be compiled; arguments as `compile_step`."""

    fun: Callable[..., Any]
    arguments: Sequence[Any]
    batch_argnums: Sequence[int]
    loss: str | None
    place: Backing
    beside: LocalRuntime | RemoteRuntime | None


def _compiled(asked: _Asked, method: Method, replayed: MethodPlan | None) -> CompiledStep:
    """A step in stages, or whole where it cannot be cut."""
    try:
        with keeping(method.own_meshes):
            return _staged_step(asked, method, replayed)
    except NotStaged as why:
        if isinstance(method, FromPlan) or _pages(method):
            raise
        return _whole_step(asked, method, why)
    except NotSplit as why:
        return _undivided_step(asked, method, replayed, why)
    except InputError:
        if not isinstance(method, Auto) or method.num_micro_batches:
            raise
        # Micro-batches are left open, and the step may have none: it cannot be shared out, or traced for a part.
        return _compiled(asked, replace(method, num_micro_batches=1), replayed)


def _undivided_step(asked: _Asked, method: Method, replayed: MethodPlan | None, why: NotSplit) -> CompiledStep:
    """A step with its batch in one piece, where micro-batches would compute something else, and what is said of it."""
    stated = method.num_micro_batches > 1
    schedule = schedule_named(method.pipeline[0])
    # Weights that change between micro-batches are another training than one update of the whole batch.
    one_update = schedule.flushes and not schedule.averages
    if isinstance(method, FromPlan) or not one_update or not (stated or isinstance(method, Auto)):
        raise why
    try:
        made = _compiled(asked, replace(method, num_micro_batches=1), replayed)
    except InputError:
        raise why from None
    if not stated:
        return made
    said = f"runs without its {method.num_micro_batches} micro-batches: {why.problems[0].what}; {why.problems[0].fix}"
    warnings.warn(said, WholeStepWarning, stacklevel=7)
    return replace(made, idle=(said, *made.idle))


def _staged_step(asked: _Asked, method: Method, replayed: MethodPlan | None) -> CompiledStep:
    """A step cut at its gradient: micro-batches, stages, one update."""
    if isinstance(method, Auto) and not asked.batch_argnums:
        raise NotStaged(
            Problem(
                what="no argument holds samples",
                why="stages are planned for the samples of a batch",
                fix="name the batch arguments (batch_argnums)",
                field="batch_argnums",
            )
        )
    plan = _plan(asked.fun, asked.arguments, method, asked.batch_argnums)
    found = _stages_found(asked.fun, asked.arguments, method, asked.batch_argnums)
    name, workers, chunks = method.pipeline if plan is None else (plan.schedule, len(plan.stages), 1)
    workers = workers if found is None else len(found.stages)
    updates = method.updates if isinstance(method, PipeshardParallel) else None
    micro_batches = method.num_micro_batches if plan is None else plan.micro_batches
    order = replace(task_order(name, workers, micro_batches, chunks, updates), paged=_pages(method))
    if (parts := order.micro_batches // micro_batches) > 1:
        check_parts(asked.arguments, asked.batch_argnums, micro_batches, parts)
    step = trace_step(
        asked.fun,
        asked.arguments,
        batch_argnums=asked.batch_argnums,
        micro_batches=order.micro_batches,
        mean=None if asked.loss is None else asked.loss == "mean",
        updates=order.updates,
    )
    if isinstance(method, PipeshardParallel) and method.results_apart:
        step = results_apart(step)
    table = order.table
    own_plan: MethodPlan | None = None
    stages: Sequence[CutStage]
    meshes: Sequence[Mesh]
    shardings: Sequence[MeshSharding]
    if plan is not None:
        planned = planned_stages(step, plan, _devices(method))
        step, stages, meshes, shardings, plan = (
            planned.step,
            planned.stages,
            planned.meshes,
            planned.shardings,
            planned.plan,
        )
    else:
        if replayed is not None:
            check_replayed(replayed, decided_plan(method, step, (), ()))
        meshes = _meshes_of(method, workers, found, replayed)
        depth = table.placement.stages // table.placement.chains
        ends: list[int] = []

        def stage_ends(body: Body) -> Sequence[int]:
            ends[:] = (
                replayed.stage_ends
                if replayed is not None
                else layer_ends(body, depth)
                if found is None
                else found.stage_ends()
            )
            return ends

        cut, traced = staged(checkpoints_parted(step, depth), stage_ends), step
        step, stages = cut.step, cut.stages
        shardings = [method.sharding_of(step)] * workers
        if isinstance(method, ShardParallel):
            choice = None if replayed is None else replayed.choice
            views = _logical_meshes(method, meshes[0])
            on_ranks = [] if replayed is not None and not replayed.rank_axes else ranks_along(step, stages[0], views)
            if method.data_ranks is not None and not on_ranks:
                raise not_shared(step, stages[0], method.data_ranks)
            rest = [] if on_ranks and (replayed is not None or method.data_ranks is not None) else views
            setting = StageSetting(memory_bytes=method.memory_bytes, choice=choice)
            stage, solved = shard_stage(step, stages[0], rest, setting, on_ranks=on_ranks)
            stages, meshes, shardings = (stage,), [solved.mesh], [solved]
        own_plan = decided_plan(method, traced, _devices(method), meshes, stage_ends=ends, shardings=shardings)
    if order.paged:
        check_paged(meshes, order.updates)
    idle = idle_devices_notice(step, stages, shardings, meshes)
    for said in idle:
        warnings.warn(said, IdleDevicesWarning, stacklevel=7)
    form = form_of(step, stages, shardings, meshes, versions=table.version is not None)
    step, stages = form.step, form.stages
    slices = sliced_stages(step, stages, table.segments, form.axes) if table.segments > 1 else ()
    programs = [own[0].programs for own in slices] or [
        stage_programs(stage, last=stage is stages[-1], axes=form.axes) for stage in stages
    ]
    sizes = [mesh.size for mesh in meshes]
    program = lower(
        step,
        programs,
        order,
        shardings,
        sizes,
        form.layouts,
        state_places(step) if asked.place.donate else (),
        slices,
    )
    return CompiledStep(
        step=step,
        table=table,
        program=program,
        verified=verify_lists(program),
        shardings=tuple(shardings),
        reductions=form.reductions,
        idle=idle,
        runtime=_runtime(program, meshes, asked.place, asked.beside),
        plan=own_plan if plan is None else plan,
    )


def _whole_step(asked: _Asked, method: Method, why: InputError) -> CompiledStep:
    """A step in one piece, on one mesh or spread over those of a pipeline."""
    if isinstance(method, ShardParallel) and method.data_ranks is not None:
        raise InputError(
            Problem(
                what=f"data_ranks = {method.data_ranks}: {why.problems[0].what}",
                field="data_ranks",
                why="each rank computes the loss of its own samples, and the step runs whole",
                fix="leave data_ranks out",
            )
        )
    if method.num_micro_batches > 1:
        said = f"runs whole, without its {method.num_micro_batches} micro-batches: {why.problems[0].what}"
        warnings.warn(said, WholeStepWarning, stacklevel=7)
    step = trace_whole(asked.fun, asked.arguments, asked.batch_argnums)
    workers = max(1, method.pipeline[1]) if isinstance(method, PipeshardParallel) else 1
    meshes = _meshes(method, workers)
    shardings = [method.sharding if isinstance(method.sharding, DataSharding) else DataSharding()] * workers
    sizes = [mesh.size for mesh in meshes]
    program = lower_whole(step, shardings, sizes, state_places(step) if asked.place.donate else ())
    return CompiledStep(
        step=step,
        table=task_order("gpipe", 1, 1, 1).table,
        program=program,
        verified=verify_lists(program),
        shardings=tuple(shardings),
        reductions=f"runs whole, without micro-batches: {why.problems[0].what}",
        runtime=_runtime(program, meshes, asked.place, asked.beside),
        plan=decided_plan(method, step, _devices(method), meshes, whole=True),
    )


def _pages(method: Method) -> bool:
    """Whether a method pages stages from host memory."""
    return isinstance(method, PipeshardParallel) and method.paged


def _runtime(
    program: StepProgram, meshes: Sequence[Mesh], place: Backing, beside: LocalRuntime | RemoteRuntime | None
) -> LocalRuntime | RemoteRuntime:
    if beside is not None and beside.meshes == tuple(meshes):
        return beside.sharing(program)
    return runtime_of(
        program, meshes, place.backend, place.ray, place.timeout_s, place.hosts_per_mesh, place.worker_devices
    )


def state_places(step: TracedStep) -> list[int]:
    """Inputs of a step that are its state: the leaves of its first argument.

    Args:
        step: any.
    """
    return jax.tree.leaves(jax.tree.unflatten(step.in_tree, range(len(step.jaxpr.invars)))[0])


def _plan(
    fun: Callable[..., Any], arguments: Sequence[Any], method: Method, batch_argnums: Sequence[int]
) -> StagesPlan | None:
    """What a method plans or replays; None for those that are plans themselves."""
    if isinstance(method, FromPlan):
        assert isinstance(method.plan, StagesPlan)
        return method.plan
    if isinstance(method, Auto):
        hosts = method.on(_devices(method))
        return plan_step(fun, arguments, hosts, batch_argnums=batch_argnums, space=method.space)
    return None


def _stages_found(
    fun: Callable[..., Any], arguments: Sequence[Any], method: Method, batch_argnums: Sequence[int]
) -> StagesPlan | None:
    """Stages and their devices, where a method leaves these and nothing else open."""
    if not isinstance(method, PipeshardParallel) or method.num_stages != "auto":
        return None
    hosts = method.on(_devices(method))
    space = StageSpace(
        micro_batches=(method.num_micro_batches,),
        recompute=(False,),
        reductions="micro-batch",
        split_state=method.zero > 0,
    )
    return plan_step(fun, arguments, hosts, batch_argnums=batch_argnums, space=space)


def _meshes_of(method: Method, workers: int, found: StagesPlan | None, replayed: MethodPlan | None) -> list[Mesh]:
    """A row of devices for every worker: as it was found or saved, or equal parts."""
    if isinstance(method, LocalPipeline) or (found is None and replayed is None):
        return _meshes(method, workers)
    if found is not None:
        return _meshes_found(method, found)
    assert replayed is not None
    devices = _devices(method)
    rows = [
        devices[first : first + size] for first, size in zip(replayed.first_devices, replayed.mesh_sizes, strict=True)
    ]
    return [Mesh(np.array(row, dtype=object), tuple(method.axes(len(row)))) for row in rows]


def _meshes_found(method: Method, found: StagesPlan) -> list[Mesh]:
    """The devices of each stage as the method lays them out."""
    devices = _devices(method)
    if isinstance(method, LocalPipeline):
        return _meshes(method, len(found.stages))
    meshes = []
    for stage in found.stages:
        axes = method.axes(stage.devices)
        row = np.array(devices[stage.first_device : stage.first_device + stage.devices], dtype=object)
        meshes.append(Mesh(row.reshape(tuple(axes.values())), tuple(axes)))
    return meshes


def _devices(method: Method) -> list[Any]:
    return list(method.devices) if method.devices is not None else jax.devices()


def _meshes(method: Method, workers: int) -> list[Mesh]:
    """A row of devices for every worker."""
    devices = _devices(method)
    if isinstance(method, LocalPipeline):
        return [Mesh(np.array(devices[:1]), ("data",))] * workers
    if len(devices) % workers:
        raise InputError(
            what=f"{workers} stages on {len(devices)} devices",
            why="all stages take the same number of devices",
            fix=f"num_stages={max(n for n in range(1, workers + 1) if len(devices) % n == 0)}, or other devices",
            field="num_stages",
        )
    axes = method.axes(len(devices) // workers)
    return [Mesh(row, tuple(axes)) for row in np.array(devices).reshape(workers, *axes.values())]


def _logical_meshes(method: ShardParallel, mesh: Mesh) -> list[tuple[LogicalMesh, Mesh]]:
    """Views of a row of devices as rows and grids, with the price of their links."""
    hosts = method.on(mesh.devices.flatten().tolist())
    return [
        (hosts.mesh(shape), Mesh(mesh.devices.reshape(shape), AXES[: len(shape)])) for shape in method.shapes(mesh.size)
    ]
