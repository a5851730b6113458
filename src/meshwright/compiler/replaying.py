"""From a method to its plan and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from jax.sharding import Mesh

from meshwright.compiler.method_plan import MethodPlan, fingerprint_of
from meshwright.compiler.methods.auto import Auto
from meshwright.compiler.methods.data import DataParallel, Zero2Parallel, Zero3Parallel
from meshwright.compiler.methods.decided import FromPlan
from meshwright.compiler.methods.method import Method
from meshwright.compiler.methods.pipeshard import LocalPipeline, PipeshardParallel
from meshwright.compiler.methods.shard import ShardParallel
from meshwright.compiler.sharding.apply import SolvedSharding
from meshwright.compiler.shardings import MeshSharding
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem

METHODS: dict[str, type[Method]] = {
    one.__name__: one
    for one in (DataParallel, Zero2Parallel, Zero3Parallel, ShardParallel, PipeshardParallel, LocalPipeline)
}
"""Methods whose plans are their settings and decisions; `Auto` has plans of its own."""
APART = ("devices", "hosts", "flop_per_s", "link_bytes_per_s", "link_latency_s", "mesh_shape", "grid")
"""Fields that are no settings of a plan: devices are those of the run that replays, the others stand in the plan."""


def decided_plan(
    method: Method,
    step: TracedStep,
    devices: Sequence[Any],
    meshes: Sequence[Mesh],
    *,
    stage_ends: Sequence[int] = (),
    shardings: Sequence[MeshSharding] = (),
    whole: bool = False,
) -> MethodPlan | None:
    """What a method decided; None of one that is no data (a grid, whose plan is the planner's).

    Args:
        method: the method as it was given.
        step: the step as it was traced, before it was cut.
        devices: the devices of the method.
        meshes: the meshes of these, that it runs on.
        stage_ends: the stage ends where the loss is cut.
        shardings: the shardings on each mesh.
        whole: whether the step runs whole.
    """
    if whole and isinstance(method, Auto | FromPlan):
        method = DataParallel()
    if type(method).__name__ not in METHODS or getattr(method, "grid", None) is not None:
        return None
    settings = {one.name: getattr(method, one.name) for one in fields(method) if one.name not in APART}
    hosts = None
    solved = next((one for one in shardings if isinstance(one, SolvedSharding)), None)
    if solved is not None and isinstance(method, ShardParallel):
        hosts = method.on(list(solved.mesh.devices.flat))
    # A pipeline on one device has that one for every mesh.
    apart = meshes[:1] if isinstance(method, LocalPipeline) else meshes
    place = {device: number for number, device in enumerate(devices)}
    return MethodPlan(
        method=type(method).__name__,
        settings=settings,
        step=fingerprint_of(step.jaxpr if whole else step.loss),
        whole=whole,
        mesh_sizes=tuple(mesh.size for mesh in apart),
        first_devices=tuple(place[mesh.devices.flat[0]] for mesh in apart),
        stage_ends=tuple(int(one) for one in stage_ends),
        mesh_shape=() if solved is None else tuple(solved.mesh.devices.shape),
        choice=() if solved is None else solved.solution.choice,
        parts=() if solved is None else solved.parts,
        rank_axes=0 if solved is None else len(solved.rank_axes),
        hosts=hosts,
    )


def replayed_method(plan: MethodPlan, devices: Sequence[Any]) -> Method:
    """The method of a plan on the first of these devices.

    Args:
        plan: saved before.
        devices: the devices of JAX.

    Raises:
        InputError: the devices are too few, or the plan names what is not there.
    """
    if plan.devices > len(devices):
        raise InputError(
            Problem(
                what=f"the plan is for {plan.devices} devices, {len(devices)} are here",
                why="every mesh has devices of its own",
                field="devices",
                fix=f"{plan.devices} devices, or the method itself for {len(devices)}",
            )
        )
    if plan.method not in METHODS:
        raise InputError(
            Problem(
                what=f'a plan of the method "{plan.method}"',
                why=f"known are {', '.join(METHODS)}",
                fix="save the plan of a compiled step again",
                field="plan",
            )
        )
    settings = dict(plan.settings)
    if settings.get("num_stages") == "auto":
        settings["num_stages"] = max(1, len(plan.stage_ends))
    if plan.mesh_shape:
        settings["mesh_shape"] = plan.mesh_shape
    if plan.hosts is not None:
        settings["hosts"] = plan.hosts
    try:
        return METHODS[plan.method](devices=tuple(devices[: plan.devices]), **settings)
    except TypeError as wrong:
        raise InputError(
            Problem(
                what=f"settings of the plan cannot be used: {wrong}",
                why=f"{plan.method} takes others",
                field="plan",
                fix="save the plan of a compiled step again",
            )
        ) from None


def check_replayed(plan: MethodPlan, made: MethodPlan | StagesPlan | None) -> None:
    """Whether a step that was compiled under a plan is the step that it was made for.

    Args:
        plan: saved before.
        made: the plan of the step as it was compiled now.

    Raises:
        InputError: it is another one.
    """
    if not isinstance(made, MethodPlan) or (made.step, made.whole) != (plan.step, plan.whole):
        now = made.step if isinstance(made, MethodPlan) else "compiled in another form"
        raise InputError(
            Problem(
                what=f"the plan is of another step: {plan.step}, this one is {now}",
                field="plan",
                why="a plan holds for one model, on batches of one shape",
                fix="compile this step under the method",
            )
        )
