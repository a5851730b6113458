"""The table that a method runs, and whether it computes what one device computes."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules import schedule_named
from meshwright.schedules.base import Updates
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TaskOrder:
    """Who runs what when."""

    table: ScheduleTable
    inexact: str = ""
    """How it differs from one update with the gradient of the batch; empty if it does not."""


def task_order(name: str, workers: int, micro_batches: int, chunks: int, updates: int | None = None) -> TaskOrder:
    """The order of a named schedule.

    Args:
        name: of the schedule, with its settings.
        workers: meshes.
        micro_batches: of a step.
        chunks: virtual stages per worker; 0 for the fewest that the schedule allows.
        updates: of the weights in a step, of schedules with several versions; the schedule's own number without it.

    Raises:
        InputError: the schedule forbids these numbers.
        UnsupportedError: nobody knows the schedule.
    """
    schedule = schedule_named(name)
    chunks = chunks or schedule.fewest_chunks(max(workers, 2), micro_batches)
    made = schedule.updates(workers, micro_batches, chunks, updates)
    return TaskOrder(table=made.table, inexact=_inexact(schedule.name, made))


def _inexact(name: str, made: Updates) -> str:
    if made.count == 1:
        return ""
    size = "micro-batch" if made.each == 1 else f"{made.each} micro-batches"
    lag = f"weights that lack up to {made.lag} of them" if made.lag else "the newest weights"
    return f"{name} makes {made.count} updates in a step, each of {size}; gradients at {lag}"
