"""Schedules in plans: which stages their workers hold, and plans of one row both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.schedules import Schedule, schedule_named
from meshwright.schedules.kinds import Placement
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.plan import Schedule as ScheduleSpec
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.specs.strategy import LayerStrategy

Held = tuple[tuple[tuple[int, str], ...], ...]
"""Virtual stages that each worker holds, chunk by chunk, each with the kind of copy."""


def schedule_of(spec: ScheduleSpec) -> Schedule:
    """The schedule that a plan names, with its parameters; those that `parameter_problems` refuses are left out.

    Args:
        spec: the spec of a plan's pipeline.

    Raises:
        UnsupportedError: nobody knows its name.
    """
    schedule = schedule_named(spec.name)
    if not spec.parameters:
        return schedule
    own = {item.name for item in fields(schedule)}
    return replace(schedule, **{name: value for name, value in spec.parameters if name in own})


def parameter_problems(spec: ScheduleSpec) -> list[Problem]:
    """Parameters that a plan gives to a schedule that has none of that name.

    Args:
        spec: the spec of a plan's pipeline.
    """
    schedule = schedule_named(spec.name)
    own = {item.name for item in fields(schedule)}
    return [
        Problem(
            what=f"schedule parameter {name} = {value!r}",
            why=f"{schedule.name} has no such parameter",
            fix="leave it out",
            field="schedule",
        )
        for name, value in spec.parameters
        # Files of other frameworks name the usual warm-up of 1F1B for every schedule.
        if name not in own and (name, value) != ("warmup", "pa")
    ]


def spec_of(schedule: Schedule) -> ScheduleSpec:
    """A schedule as plans say it: its name, and the settings that differ from their defaults.

    Args:
        schedule: the schedule of the catalogue.
    """
    said = ((one.name, getattr(schedule, one.name), one.default) for one in schedule.parameters())
    return ScheduleSpec(
        name=schedule.name, parameters=tuple((name, value) for name, value, default in said if value != default)
    )


def usual_schedule(pp: int, micro_batches: int, vpp: int) -> str:
    """The schedule of a plan where none is named: 1F1B, or interleaved 1F1B in groups that its micro-batches fill.

    Args:
        pp: workers.
        micro_batches: micro-batches of a step.
        vpp: chunks per worker.
    """
    return schedule_named(default_schedule(vpp)).settled(pp, micro_batches).token


@lru_cache(maxsize=256)
def stages_held(schedule: Schedule, pp: int, vpp: int) -> Held:
    """The virtual stages of each worker: its own, of further chains as replicas, and of the next worker if it shadows.

    Chunks that the schedule forbids stand in a loop: what is wrong with them is for `Schedule.problems` to say.

    Args:
        schedule: places them.
        pp: workers.
        vpp: chunks per worker and chain.
    """
    placement = schedule.placement(pp, vpp)
    per_chain = placement.stages // placement.chains if placement.stages else 0
    if per_chain != schedule.stages(pp, vpp) or placement.p != pp:
        placement, per_chain = Placement.loop(pp, vpp), pp * vpp
    stages = [np.flatnonzero(placement.worker == worker).tolist() for worker in range(pp)]
    held = [[(n % per_chain, "primary" if n < per_chain else "replica") for n in own] for own in stages]
    if schedule.shadows and pp > 1:
        next_one = [[(stage, "redundant") for stage, copy in own if copy == "primary"] for own in held]
        held = [own + next_one[(worker + 1) % pp] for worker, own in enumerate(held)]
    return tuple(map(tuple, held))


def stages_of(row: PlanRow) -> int:
    """Virtual stages of a row's pipeline: pp x vpp, unless its schedule places fewer on some workers.

    Args:
        row: the plan.
    """
    return schedule_named(row.schedule).stages(row.pp, row.vpp)


def plan_of(row: PlanRow, layers: Sequence[int]) -> ExecutionPlan:
    """The execution plan of a row whose virtual stages hold these layers.

    Args:
        row: degrees and settings.
        layers: layers of each virtual stage, in order.

    Returns:
        One pipeline of pp workers; ranks are numbered tensor first, pipeline last.

    Raises:
        InputError: if the counts do not fit the row, or its batch is no whole number of micro-batches.
    """
    problems = []
    stages = stages_of(row)
    if len(layers) != stages:
        product = f"pp {row.pp} x vpp {row.vpp} = " if stages == row.pp * row.vpp else f"{row.schedule}: "
        problems.append(
            Problem(
                what=f"layers: {len(layers)} counts are given",
                why=f"there are {product}{stages} virtual stages",
                fix="give one count for each virtual stage",
                field="layers",
            )
        )
    if row.micro_batches * row.dp * row.mbs != row.gbs or row.gbs < 1:
        problems.append(
            Problem(
                what=f"gbs is {row.gbs}",
                why=f"it must be a multiple of dp {row.dp} x mbs {row.mbs} = {row.dp * row.mbs}",
                field="gbs",
            )
        )
    if problems:
        raise InputError(problems, code="MW211")
    return _plan_of(row, tuple(layers))


@lru_cache(maxsize=256)
def _plan_of(row: PlanRow, layers: tuple[int, ...]) -> ExecutionPlan:
    """The plan of a row whose counts fit it; one object for all sequence lengths that split layers alike."""
    schedule = schedule_named(row.schedule)
    if schedule.pairs_passes and row.ep > 1 and row.ep_overlap == "none":
        row = replace(row, ep_overlap="paired-wgrad")
    strategies: list[LayerStrategy] = []
    numbers: dict[bool, int] = {}

    def index(recomputed: bool) -> int:
        # Layers differ by the side of a `block` boundary alone, so that no two of these strategies are equal.
        if recomputed not in numbers:
            numbers[recomputed] = len(strategies)
            strategies.append(row.strategy(recomputed=recomputed))
        return numbers[recomputed]

    starts = [sum(layers[:stage]) for stage in range(len(layers))]

    def chunk(stage: int, copy: Any = "primary") -> Chunk:
        held = layers[stage]
        head = min(row.recompute_layers, held) if row.recompute == "block" else 0
        parts = [(head, True), (held - head, False)]
        return Chunk(
            virtual_stage=stage,
            layers=((starts[stage], starts[stage] + held - 1),) if held else (),
            runs=tuple(StrategyRun(layers=part, strategy=index(recomputed)) for part, recomputed in parts if part),
            embedding=stage == 0,
            head=stage == len(layers) - 1,
            copy=copy,
        )

    placed = stages_held(schedule, row.pp, row.vpp)
    per_worker = row.tp * row.cp_degree * row.dp
    workers = []
    for number in range(row.pp):
        devices = ((number * per_worker, (number + 1) * per_worker - 1),)
        own = tuple(chunk(stage, copy) for stage, copy in placed[number])
        workers.append(Worker(devices=devices, chunks=own))
    pipeline = Pipeline(
        micro_batch=row.mbs,
        num_micro_batches=row.micro_batches,
        workers=tuple(workers),
        schedule=spec_of(schedule),
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=(pipeline,))


def row_of(plan: ExecutionPlan, model: ModelSpec) -> PlanRow | None:
    """The homogeneous row a plan equals, however its layers are split; None where no row says all of it."""
    return _row_of(plan, model.num_layers)


@lru_cache(maxsize=256)
def _row_of(plan: ExecutionPlan, layers: int) -> PlanRow | None:
    from meshwright.specs.row_of import homogeneous, row_from  # a search makes plans of rows, not rows of plans

    found, _ = homogeneous(plan, unevenly=True)
    if found is None or sum(found.layers) != layers:
        return None
    spec = found.pipeline.schedule
    row = row_from(found, gbs=plan.global_batch)
    if row is None or parameter_problems(spec):
        return None
    schedule = schedule_of(spec)
    if found.held != stages_held(schedule, found.pp, found.vpp):
        return None
    return replace(row, schedule=schedule.token)
