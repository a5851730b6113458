"""Several pipelines of unlike stages that train one batch together, written as one program.

Every pipeline runs its own micro-batches, of its own size, on its own stages. Gradients meet on the stages of the first
pipeline, which update; the others read the new weights at the start of the next step. Pipelines that hold one copy of
the states together update some tensors each. A micro-batch of s of the N samples of a batch counts s / N of a mean, so
that what is added up is the gradient of the batch whatever the shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import jax
from jax.extend import core
from jax.sharding import Mesh

from meshwright.compiler.cost import size_of
from meshwright.compiler.cuts.cut import CutStage, marked_ends
from meshwright.compiler.cuts.stacks import layer_loops
from meshwright.compiler.cuts.stage_programs import StageJaxprs, stage_programs
from meshwright.compiler.cuts.staging import staged
from meshwright.compiler.grid import GridSharding
from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.donation import program_of
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.instructions.operands import Operands
from meshwright.compiler.instructions.stage_tasks import StageTasks, in_rounds
from meshwright.compiler.joins import How, Join
from meshwright.compiler.lowering.finish import Finish
from meshwright.compiler.lowering.lower import check_stages, owners_of
from meshwright.compiler.lowering.updating import Updating
from meshwright.compiler.ranks.layout import PartitionedLayout
from meshwright.compiler.shardings import MeshSharding
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.trace import step_of_samples
from meshwright.errors import InputError, Problem
from meshwright.schedules.communication import with_communication
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PipelinePart:
    """One pipeline of a step, traced and cut."""

    step: TracedStep
    """The step, traced on one of the pipeline's micro-batches."""
    stages: tuple[CutStage, ...]
    """Virtual stages in order, numbered through all pipelines."""
    table: ScheduleTable
    meshes: tuple[Mesh, ...]
    """Meshes of the workers."""
    shardings: tuple[MeshSharding, ...]
    samples: int
    """Samples of one micro-batch."""

    @property
    def micro_batches(self) -> int:
        """Number of its micro-batches in a step."""
        return self.step.micro_batches


def traced_part(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    batch_argnums: Sequence[int],
    samples: int,
    micro_batches: int,
    mean: bool,
) -> TracedStep:
    """The step on a micro-batch of so many samples, its losses weighted so that those of all pipelines add up.

    Args:
        fun: the function of a state and a batch.
        arguments: arrays, or shapes of arrays, of the whole batch.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        samples: the number of samples of the micro-batch.
        micro_batches: the number of micro-batches of this pipeline.
        mean: whether the loss is a mean over samples, else a sum.
    """
    step, batch = step_of_samples(fun, arguments, batch_argnums=batch_argnums, samples=samples, mean=mean)
    joined = [place for place, join in enumerate(step.joins) if join.how is How.JOINED]
    if joined:
        raise InputError(
            Problem(
                what=f"the loss returns an array per sample (result {joined[0]})"
                " under pipelines of unlike micro-batches",
                why="results of micro-batches of several sizes are added, not joined",
                field="loss",
                fix="return a sum or a count, or method=PipeshardParallel(...)",
            )
        )
    if layer_loops(step.loss, step.wrt):
        raise InputError(
            Problem(
                what="a loss that loops over stacked layers under a plan of unlike stages",
                why="each pipeline cuts the stack at other rows, and the state has one form",
                fix="write the layers one by one, or method=PipeshardParallel(...)",
                field="loss",
            )
        )
    if mean:
        step = _weighted(step, samples / batch)
    return _in_order(replace(step, micro_batches=micro_batches))


def _in_order(step: TracedStep) -> TracedStep:
    """The step with what is differentiated first among the operands of its loss, in the order of the step's inputs.

    Traces of pipelines may find other constants, so that operands stand at other positions; weights are then known by
    the same position in all of them.
    """
    place_of = {var: place for place, var in enumerate(step.jaxpr.invars)}
    atoms = [step.mark.invars[operand] for operand in step.wrt]
    if not all(isinstance(atom, core.Var) and atom in place_of for atom in atoms):
        raise InputError(
            Problem(
                what="gradients of values that are made of the state, under a plan of unlike stages",
                field="step",
                why="pipelines know weights by their place in the state",
                fix="take the gradient of parts of the state",
            )
        )
    chosen = sorted(range(len(step.wrt)), key=lambda number: place_of[atoms[number]])
    order = [
        *(step.wrt[number] for number in chosen),
        *(place for place in range(len(step.mark.invars)) if place not in step.wrt),
    ]
    results = len(step.loss.outvars)
    mark = step.mark.replace(
        invars=[step.mark.invars[place] for place in order],
        outvars=[*step.mark.outvars[:results], *(step.mark.outvars[results + number] for number in chosen)],
    )
    loss = step.loss.replace(
        invars=[step.loss.invars[place] for place in order], debug_info=step.loss.debug_info.with_unknown_names()
    )
    return replace(step, mark=mark, loss=loss, wrt=tuple(range(len(chosen))))


def _weighted(step: TracedStep, weight: float) -> TracedStep:
    """The step whose loss, and what is averaged beside it, counts this share of the batch's."""
    program = core.jaxpr_as_fun(core.ClosedJaxpr(step.loss, ()))
    averaged = [join.how is How.AVERAGED for join in step.joins]

    def loss(*given: Any) -> list[Any]:
        return [one * weight if of_mean else one for one, of_mean in zip(program(*given), averaged, strict=True)]

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in step.loss.invars]
    joins = tuple(Join(How.ADDED) if of_mean else join for join, of_mean in zip(step.joins, averaged, strict=True))
    return replace(step, loss=flat_jaxpr(loss, shapes).jaxpr, joins=joins, mean=False)


def cut_part(step: TracedStep, depth: int, first: int) -> tuple[TracedStep, tuple[CutStage, ...]]:
    """The virtual stages of a pipeline, cut where `layer_boundary` stands.

    Args:
        step: the step of the pipeline.
        depth: virtual stages.
        first: number of the first among those of all pipelines.

    Raises:
        InputError: the loss marks another number of stages.
    """

    def ends(body: Any) -> Sequence[int]:
        marked = marked_ends(body) or (len(body.spine),)
        if len(marked) != depth:
            raise InputError(
                Problem(
                    what=f"a loss of {len(marked)} marked stages for a pipeline of {depth}",
                    why="stages of a planned pipeline end at layer_boundary",
                    field="plan",
                    fix="mark the end of every stage but the last",
                )
            )
        return marked

    cut = staged(step, ends)
    return cut.step, tuple(replace(stage, index=first + stage.index) for stage in cut.stages)


def lower_pipelines(
    parts: Sequence[PipelinePart], given: Sequence[int] = (), *, joint_states: bool = False
) -> StepProgram:
    """Write the lists of all pipelines.

    Args:
        parts: the parts of the step.
        given: inputs that the caller gives away.
        joint_states: whether every part updates some tensors; else the first one updates all.

    Raises:
        InputError: a schedule has other numbers than its pipeline, or tasks that cannot be compiled.
    """
    programs = [_programs(part) for part in parts]
    for part, own in zip(parts, programs, strict=True):
        check_stages(part.step, own, part.table)
    out = ListBuilder(sum(len(part.meshes) for part in parts))
    shardings = [one for part in parts for one in part.shardings]
    devices = [mesh.size for part in parts for mesh in part.meshes]
    layouts = [
        PartitionedLayout(step=part.step, sharding=sharding, devices=mesh.size)
        for part in parts
        for sharding, mesh in zip(part.shardings, part.meshes, strict=True)
    ]
    operands = _operands(parts, out, shardings, devices)
    meshes = list(accumulate((len(part.meshes) for part in parts), initial=0))
    units = list(accumulate((part.micro_batches for part in parts), initial=0))
    tasks = [
        StageTasks(part.step, own, with_communication(part.table), out, held, layouts, mesh, unit)
        for part, own, held, mesh, unit in zip(parts, programs, operands, meshes[:-1], units[:-1], strict=True)
    ]
    for one in tasks:
        for task in in_rounds(one.table):
            one.add(task)
    whole = replace(parts[0].step, micro_batches=units[-1])
    owner = _joint_owners(whole, tasks, parts) if joint_states else owners_of(whole, tasks[0])
    finish = Finish(whole, [one for own in programs for one in own], out, layouts, owner)
    finish.gradients([ran for one in tasks for ran in one.counted])
    makers: dict[int, list[tuple[int, range]]] = defaultdict(list)
    for one in tasks:
        for place, made in one.makers.items():
            makers[place] += made
    finish.results(makers)
    # The update is that of the first trace, whatever the mesh.
    traced = [one.of_trace(parts[0].step) if isinstance(one, GridSharding) else one for one in shardings]
    updating = Updating(whole, programs[0], out, operands[0], traced, devices, layouts)
    outcomes = updating.outcomes(finish.owner, tasks[0].copies)
    return program_of(out, [feed for one in operands for feed in one.feeds], outcomes, given)


def _joint_owners(step: TracedStep, tasks: Sequence[StageTasks], parts: Sequence[PipelinePart]) -> dict[int, int]:
    """Mesh of each differentiated operand: in the pipeline that has least so far for its devices, the largest first."""
    owners = [owners_of(step, one) for one in tasks]
    devices = [sum(mesh.size for mesh in part.meshes) for part in parts]
    held = [0] * len(tasks)
    owner = {}
    for operand in sorted(step.wrt, key=lambda operand: (-size_of(step.loss.invars[operand]), operand)):
        size = size_of(step.loss.invars[operand])
        chosen = min(range(len(tasks)), key=lambda number: ((held[number] + size) / devices[number], number))
        held[chosen] += size
        owner[operand] = owners[chosen][operand]
    return owner


def _programs(part: PipelinePart) -> list[StageJaxprs]:
    return [stage_programs(stage, last=stage is part.stages[-1]) for stage in part.stages]


def _operands(
    parts: Sequence[PipelinePart], out: ListBuilder, shardings: Sequence[MeshSharding], devices: Sequence[int]
) -> list[Operands]:
    """Operands of every pipeline, each with its own samples of the batch."""
    found, unit, sample = [], 0, 0
    total = sum(part.micro_batches for part in parts)
    for number, part in enumerate(parts):
        samples = {}
        for _ in range(part.micro_batches):
            samples[unit] = (sample, part.samples)
            unit, sample = unit + 1, sample + part.samples
        prefix = f"p{number}." if number else ""
        found.append(Operands(replace(part.step, micro_batches=total), out, shardings, devices, samples, prefix))
    return found
