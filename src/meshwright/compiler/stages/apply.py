"""A plan written into the programs of its stages, on real devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.cuts.staging import staged
from meshwright.compiler.sharding.apply import AXES, SolvedSharding, StageSetting, shard_stage
from meshwright.compiler.stages.plan import StagePlan, StagesPlan
from meshwright.compiler.stages.search import Layers
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InfeasibleError, InputError, Problem


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PlannedStages:
    """Stages with their shardings, and the meshes they run on."""

    step: TracedStep
    """The step with stacked layers in the parts of their stages."""
    stages: tuple[CutStage, ...]
    shardings: tuple[SolvedSharding, ...]
    meshes: tuple[Mesh, ...]
    plan: StagesPlan
    """The plan with the decision about every operand and operator."""


def planned_stages(step: TracedStep, plan: StagesPlan, devices: Sequence[Any]) -> PlannedStages:
    """Cut a step where its plan says, and decide every stage on its mesh.

    Args:
        step: traced with the micro-batches of the plan.
        plan: the plan of this step.
        devices: JAX devices, in the order of the plan's.

    Raises:
        InputError: the plan is of another step, or for more devices.
        InfeasibleError: a stage does not fit into memory.
    """
    layers = Layers.of(step.loss, step.wrt)
    _check(layers, plan, devices)
    stages, shardings, meshes, decided = [], [], [], []
    cut = staged(step, lambda body: plan.stage_ends(), plan.layer_ends)
    for stage, parts, own in zip(cut.stages, cut.layers, plan.stages, strict=True):
        row = np.array(devices[own.first_device : own.first_device + own.devices], dtype=object)
        mesh = Mesh(row.reshape(own.mesh_shape), AXES[: len(own.mesh_shape)])
        view = plan.group_of(own).mesh(own.mesh_shape)
        try:
            held, sharding = shard_stage(cut.step, stage, [(view, mesh)], _setting(plan, own), parts)
        except InfeasibleError as error:
            where = f"stage {stage.index} (layers {own.layers[0]}-{own.layers[1]})"
            raise InfeasibleError([replace(one, what=f"{where}: {one.what}") for one in error.problems]) from None
        stages.append(held)
        shardings.append(sharding)
        meshes.append(mesh)
        decided.append(replace(own, choice=sharding.solution.choice))
    return PlannedStages(
        step=cut.step,
        stages=tuple(stages),
        shardings=tuple(shardings),
        meshes=tuple(meshes),
        plan=replace(plan, stages=tuple(decided)),
    )


def _setting(plan: StagesPlan, stage: StagePlan) -> StageSetting:
    """Where layers are recomputed only their inputs is kept, which the plan has counted."""
    memory_bytes, in_flight = plan.group_of(stage).memory_bytes, float(stage.in_flight)
    if plan.recompute:
        in_flight = 0.0
        if memory_bytes is not None:
            memory_bytes -= stage.in_flight * stage.kept_bytes + stage.transient_bytes
    return StageSetting(
        memory_bytes=memory_bytes,
        in_flight=in_flight,
        recompute=plan.recompute,
        split_state=plan.split_state,
        choice=stage.choice,
    )


def _check(layers: Layers, plan: StagesPlan, devices: Sequence[Any]) -> None:
    problems = []
    if layers.fingerprint() != plan.loss:
        problems.append(
            Problem(
                what=f"the plan is of another step: its loss is {plan.loss}, this one {layers.fingerprint()}",
                why="a plan holds for one model, on batches of one shape",
                fix="plan this step",
                field="plan",
            )
        )
    needed = max(stage.first_device + stage.devices for stage in plan.stages)
    if needed > len(devices):
        problems.append(
            Problem(
                what=f"the plan is for {needed} devices, {len(devices)} are here",
                why="every stage runs on devices of its own",
                fix=f"{needed} devices, or plan for {len(devices)}",
                field="devices",
            )
        )
    if problems:
        raise InputError(problems)
