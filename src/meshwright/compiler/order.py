"""The table that a method runs, and whether it computes what one device computes."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import InputError, Problem
from meshwright.schedules import schedule_named
from meshwright.schedules.base import Schedule
from meshwright.schedules.ftpipe import FTPipe
from meshwright.schedules.pipedream import PipeDream
from meshwright.schedules.pipedream_2bw import PipeDream2BW
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Order:
    """Who runs what when."""

    table: ScheduleTable
    inexact: str = ""
    """How it differs from one update with the gradient of the batch; empty if it does not."""


def order_of(name: str, workers: int, micro_batches: int, chunks: int, updates: int | None = None) -> Order:
    """The order of a named schedule.

    Args:
        name: of the schedule.
        workers: meshes.
        micro_batches: of a step.
        chunks: virtual stages per worker; 0 for the fewest that the schedule allows.
        updates: of the weights in a step, of schedules with several versions; the schedule's own number without it.

    Raises:
        InputError: the schedule forbids these numbers.
        UnsupportedError: nobody knows the schedule.
    """
    schedule = schedule_named(name)
    if not chunks:
        chunked = any(problem.field == "v" for problem in schedule.problems(max(workers, 2), micro_batches, 1))
        chunks = 2 if chunked else 1
    if isinstance(schedule, PipeDream2BW):
        if updates is None:
            updates = max(n for n in range(1, micro_batches + 1)
                          if not micro_batches % n and (n == 1 or micro_batches // n >= workers))  # fmt: skip
        return _double_buffered(schedule, workers, micro_batches // updates, updates, chunks)
    _check(schedule, workers, micro_batches, chunks)
    if isinstance(schedule, PipeDream):
        _check_updates(name, updates, micro_batches)
        return Order(
            table=schedule.versioned_table(workers, micro_batches),
            inexact=_told(schedule.name, micro_batches, 1, min(workers, micro_batches) - 1),
        )
    if isinstance(schedule, FTPipe):
        raise InputError(Problem(
            what=f'schedule = "{name}"', why="with one stage per worker its order and its updates are those of"
            " pipedream, and with more of them its source leaves the order open", fix='schedule="pipedream"',
            field="schedule",
        ))  # fmt: skip
    _check_updates(name, updates, 1)
    return Order(table=schedule.table(workers, micro_batches, chunks))


def _double_buffered(schedule: PipeDream2BW, workers: int, each: int, updates: int, chunks: int) -> Order:
    _check(schedule, workers, each, chunks)
    return Order(
        table=schedule.versioned_table(workers, each, updates),
        inexact=_told(schedule.name, updates, each, 1),
    )


def _told(name: str, updates: int, each: int, lacking: int) -> str:
    if updates == 1:
        return ""
    size = "micro-batch" if each == 1 else f"{each} micro-batches"
    newest = f"gradients at weights that lack up to {lacking} of them" if lacking else "gradients at the newest weights"
    return f"{name} makes {updates} updates in a step, each of {size}; {newest}"


def _check(schedule: Schedule, workers: int, micro_batches: int, chunks: int) -> None:
    problems = list(schedule.problems(workers, micro_batches, chunks))
    if problems:
        raise InputError(problems)


def _check_updates(name: str, asked: int | None, done: int) -> None:
    if asked not in (None, done):
        raise InputError(Problem(
            what=f'updates = {asked} with schedule = "{name}"', why=f"it does {done} in a step",
            fix=f"updates={done}, or schedule=\"pipedream-2bw\"", field="updates",
        ))  # fmt: skip
