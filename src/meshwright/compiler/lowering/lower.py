"""A traced step, its stages and a schedule -> instruction lists: what is scheduled is what runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from meshwright.compiler.cuts.stage_programs import StageJaxprs
from meshwright.compiler.instructions import StepProgram, StepResult
from meshwright.compiler.instructions.donation import program_of
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.instructions.operands import Operands
from meshwright.compiler.instructions.paging import paged_lists
from meshwright.compiler.instructions.stage_tasks import StageTasks, in_rounds
from meshwright.compiler.lowering.ahead import longest_waits
from meshwright.compiler.lowering.finish import Finish
from meshwright.compiler.lowering.updating import Updating
from meshwright.compiler.lowering.versions import VersionedUpdates
from meshwright.compiler.ranks.layout import Layout
from meshwright.compiler.shardings import MeshSharding
from meshwright.compiler.slices.stages import SliceStage
from meshwright.compiler.slices.tasks import SliceTasks
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.schedules import schedule_named
from meshwright.schedules.communication import with_communication
from meshwright.schedules.ordered import Updates
from meshwright.schedules.table import Kind, ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TaskOrder:
    """Who runs what when."""

    table: ScheduleTable
    inexact: str = ""
    """How it differs from one update with the gradient of the batch; empty if it does not."""
    paged: bool = False
    """Whether the states of stages wait in host memory while others run."""

    @property
    def micro_batches(self) -> int:
        """Parts of a batch's samples that tasks run: micro-batches, or parts of theirs; segments of sequences aside."""
        return sum(self.table.micro_batches) // self.table.segments

    @property
    def updates(self) -> int:
        """Updates of the weights in one step."""
        table = self.table
        if table.version is None:
            return 1
        return max(1, int((table.kind == Kind.OPT).sum()) // table.placement.stages)


def task_order(name: str, workers: int, micro_batches: int, chunks: int, updates: int | None = None) -> TaskOrder:
    """The order of a named schedule.

    Args:
        name: the name of the schedule, with its settings.
        workers: meshes.
        micro_batches: the number of micro-batches of a step.
        chunks: virtual stages per worker; 0 for the fewest that the schedule allows.
        updates: the number of updates of the weights in a step, of schedules with several versions; the schedule's own
            number without it.

    Raises:
        InputError: the schedule forbids these numbers.
        UnsupportedError: nobody knows the schedule, or it trains replicas apart.
    """
    schedule = schedule_named(name)
    if schedule.averages and schedule.chains > 1:
        raise UnsupportedError(
            what=f"{name} does not run with your own training step",
            field="schedule",
            code="MW411",
            why="your step has one state, and each replica of the model has its own",
            fix=f"{schedule.name}, or `meshwright run` with a model of the library",
        )
    chunks = chunks or schedule.fewest_chunks(max(workers, 2), micro_batches)
    made = schedule.updates(workers, micro_batches, chunks, updates)
    # To a stage, parts of a micro-batch's samples are smaller micro-batches; parts of its sequence are not.
    table = replace(made.table, segments=1) if schedule.parts_samples else made.table
    return TaskOrder(table=table, inexact=_inexact(schedule.name, made))


def _inexact(name: str, made: Updates) -> str:
    if made.count == 1:
        return ""
    size = "micro-batch" if made.each == 1 else f"{made.each} micro-batches"
    lag = f"weights that lack up to {made.lag} of them" if made.lag else "the newest weights"
    return f"{name} makes {made.count} updates in a step, each of {size}; gradients at {lag}"


RUNS = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.X, Kind.OPT})
"""Kinds of tasks that can be compiled."""

_SEGMENTS = Problem(
    what="a schedule with sequence segments",
    why="pipelines of unlike stages run whole sequences",
    fix="another schedule",
    field="schedule",
)


def lower(
    step: TracedStep,
    programs: Sequence[StageJaxprs],
    order: TaskOrder,
    shardings: Sequence[MeshSharding],
    devices: Sequence[int],
    layouts: Sequence[Layout],
    given: Collection[int] = (),
    slices: Sequence[Sequence[SliceStage]] = (),
) -> StepProgram:
    """Write the lists.

    Args:
        step: what is run.
        programs: forward and backward programs of its stages, in order.
        order: who runs which of them when; computation, and updates where there are several in a step.
        shardings: the shardings of values, by mesh.
        devices: the devices of each mesh.
        layouts: the layouts of values of the loss, by mesh.
        given: inputs that the caller gives away.
        slices: the slices of each stage, where the table runs micro-batches slice by slice.

    Raises:
        InputError: the table has another number of stages or micro-batches than the step, or tasks that cannot be
            compiled.
    """
    table = order.table
    check_stages(step, programs, table, sliced=bool(slices))
    out = ListBuilder(table.p)
    operands = Operands(step, out, shardings, devices)
    communicating = with_communication(table)
    if slices:
        tasks: StageTasks = SliceTasks(step, slices, communicating, out, operands, layouts)
    else:
        tasks = StageTasks(step, programs, communicating, out, operands, layouts)
    of_stages = set(out.executables)
    finish = Finish(step, programs, out, layouts, owners_of(step, tasks))
    if table.version is None:
        updating = Updating(step, programs, out, operands, shardings, devices, layouts)
        waits = longest_waits(communicating) if updating.find_ahead(finish.owner, tasks.copies) else {}
        for task in in_rounds(communicating):
            if task in waits:
                updating.write_ahead(waits[task])
            tasks.add(task)
        finish.gradients(list(tasks.counted))
        finish.results(tasks.makers)
        outcomes = updating.outcomes(finish.owner, tasks.copies)
    else:
        outcomes = _with_versions(communicating, tasks, finish, shardings, devices, layouts)
    if order.paged:
        out.lists = paged_lists(out.lists, out.buffers, operands.feeds, of_stages)
    return replace(program_of(out, operands.feeds, outcomes, given), inexact=order.inexact)


def _with_versions(
    table: ScheduleTable,
    tasks: StageTasks,
    finish: Finish,
    shardings: Sequence[MeshSharding],
    devices: Sequence[int],
    layouts: Sequence[Layout],
) -> list[StepResult]:
    """Tasks in which micro-batches run on weights of several versions, and updates where the table has them."""
    step = tasks.step
    versioned = VersionedUpdates(
        step,
        tasks.programs,
        tasks.copies[0].tolist(),
        tasks.out,
        tasks.operands,
        shardings,
        devices,
        layouts,
        step.micro_batches // step.updates,
    )
    for task in in_rounds(table):
        if table.kind[task] == Kind.OPT:
            stage = int(table.stage[task])
            versioned.add(stage)
            tasks.counted[int(table.worker[task]), stage] = 0
        else:
            tasks.add(task)
    tasks.operands.version = 0
    finish.results(tasks.makers)
    return versioned.outcomes()


def owners_of(step: TracedStep, tasks: StageTasks) -> dict[int, int]:
    """Mesh of each differentiated operand: that of the first stage that uses it, in the first chain.

    Args:
        step: the step with these operands.
        tasks: the tasks of its stages.
    """
    owner: dict[int, int] = {}
    for mesh, programs in zip(tasks.copies[0].tolist(), tasks.programs, strict=True):
        for operand in programs.stage.parameters:
            owner.setdefault(operand, mesh)
    for operand in step.wrt:
        owner.setdefault(operand, tasks.first_mesh)
    return owner


def check_stages(
    step: TracedStep, programs: Sequence[StageJaxprs], table: ScheduleTable, *, sliced: bool = False
) -> None:
    """Whether a schedule can run the stages of a step.

    Args:
        step: what is run.
        programs: the programs of its stages, in order.
        table: who runs which of them when.
        sliced: whether there are programs for slices of micro-batches.

    Raises:
        InputError: it has other numbers of stages or micro-batches, or tasks that cannot be compiled.
    """
    problems = []
    depth = table.placement.stages // table.placement.chains
    if depth != len(programs):
        problems.append(
            Problem(
                what=f"a schedule of {depth} stages for a loss cut into {len(programs)}",
                why="every stage of the schedule runs one part of the loss",
                field="schedule",
            )
        )
    if table.segments > 1 and not sliced:
        problems.append(_SEGMENTS)
    elif sum(table.micro_batches) != step.micro_batches * table.segments:
        problems.append(
            Problem(
                what=f"a schedule of {sum(table.micro_batches) // table.segments} micro-batches"
                f" for {step.micro_batches}",
                why="every micro-batch enters the pipeline once",
                field="schedule",
            )
        )
    for kind in sorted(table.kinds - RUNS):
        problems.append(
            Problem(
                what=f"a schedule with {Kind(kind).name} tasks",
                why="forward, backward (whole or in two parts), recomputation, redundant forwards and updates compile",
                fix="another schedule",
                field="schedule",
            )
        )
    if problems:
        raise InputError(problems)
