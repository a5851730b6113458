"""One pipeline schedule to and from the CSV that PyTorch loads."""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import Problem, UnsupportedError
from meshwright.formats.torch_csv import read_actions, with_waits, write_actions
from meshwright.formats.writing import write_file
from meshwright.schedules import Schedule, ScheduleTable, with_communication
from meshwright.schedules.equal_stages import ScheduleRun, run_table
from meshwright.schedules.torch_actions import from_actions, to_actions
from meshwright.schedules.written import Written


def write_schedule_csv(
    schedule: Schedule, table: ScheduleTable, path: str | Path, *, communication: bool = False, waits: bool = False
) -> None:
    """Write an order as the CSV that `torch.distributed.pipelining` loads.

    Args:
        schedule: the schedule that the table is of.
        table: the order.
        path: the file; written over if it exists.
        communication: spell out sends, receives and reductions (compute_comms), which PyTorch else puts in itself.
        waits: whether communication has the waits that PyTorch 2.15 and newer want; 2.14 and older do not know them.

    Raises:
        UnsupportedError: listing all that PyTorch cannot do of it.
        InputError: the path cannot be written.
    """
    refused = [
        Problem(
            what=f"schedule {schedule.name}: {what}",
            why="torch.distributed.pipelining holds each stage once and flushes the pipeline after every step",
            fix="a schedule that flushes, with one copy of the weights, such as 1f1b",
            field="schedule",
        )
        for wrong, what in (
            (not schedule.exact_semantics, "a step is not the gradient of one version of the weights"),
            (schedule.validates_behind, "workers go on to the next step without waiting for each other"),
            (schedule.shadows, "each worker runs the next one's forward as well"),
        )
        if wrong
    ]
    if refused:
        raise UnsupportedError(refused, code="MW421")
    actions = to_actions(with_communication(table) if communication else table)
    write_file(path, write_actions(with_waits(actions) if communication and waits else actions))


def read_schedule_csv(
    path: str | Path,
    *,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    transfer_s: float = 0.0,
) -> ScheduleRun:
    """Read such a file, check it as every schedule is checked, and simulate it with equal stages.

    Args:
        path: the file, with communication or without.
        forward_s: forward of one micro-batch through a full worker share.
        input_s: its input gradient; whole backwards take input_s + weight_s.
        weight_s: its weight gradient.
        transfer_s: latency of a transfer, which occupies nobody.

    Raises:
        InputError: every cell that is no action, or what is wrong with the order.
    """
    schedule = Written(given=from_actions(read_actions(path)))
    return run_table(
        schedule, schedule.given, forward_s=forward_s, input_s=input_s, weight_s=weight_s, transfer_s=transfer_s
    )
