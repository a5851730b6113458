"""Whether what is sent is received: every message has both its ends, in the same order on every channel.

A channel leads from one worker to another one and carries activations and gradients alike.
"""

from __future__ import annotations

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.columns import TaskColumns
from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.shapes import Bool, Int

PARTNER = {Kind.SEND_F: Kind.RECV_F, Kind.RECV_F: Kind.SEND_F, Kind.SEND_B: Kind.RECV_B, Kind.RECV_B: Kind.SEND_B}
"""The other end of a message."""


def peer(tasks: TaskColumns) -> Int[np.ndarray, " tasks"]:
    """Worker at the other end of the message that a task sends or receives; -1 for other tasks.

    Args:
        tasks: the tasks of a table.
    """
    placement = tasks.placement
    downwards = np.isin(tasks.kind, (Kind.SEND_F, Kind.RECV_B))
    upwards = np.isin(tasks.kind, (Kind.SEND_B, Kind.RECV_F))
    other = np.where(downwards, placement.following[tasks.stage], placement.preceding[tasks.stage])
    return np.where((downwards | upwards) & (other >= 0), placement.worker[other], -1)


def pairing_problems(tasks: TaskColumns) -> list[Problem]:
    """Messages without one of their ends, and channels whose ends disagree about the order.

    Args:
        tasks: complete as far as computation goes.
    """
    if not tasks.kinds & set(PARTNER):
        return []
    return _unpaired(tasks) or _out_of_order(tasks)


def _unpaired(tasks: TaskColumns) -> list[Problem]:
    placement = tasks.placement
    before, after = _crosses(tasks, placement.preceding), _crosses(tasks, placement.following)
    units = np.arange(tasks.at.shape[2])[None, :] < np.asarray(tasks.micro_batches)[placement.chain][:, None]
    problems = []
    for kind, boundary, neighbour in (
        (Kind.SEND_F, after, placement.following),
        (Kind.RECV_F, before, placement.preceding),
        (Kind.SEND_B, before, placement.preceding),
        (Kind.RECV_B, after, placement.following),
    ):
        has, expected = tasks.at[kind] >= 0, units & boundary[:, None]
        missing, extra = expected & ~has, has & ~expected
        if missing.any():
            stage, unit = (int(index[0]) for index in np.nonzero(missing))
            other = int(neighbour[stage])
            partner = PARTNER[kind]
            left = tasks.at[partner, other, unit] >= 0
            name = f"{kind.name}{placement.chunk[stage]}.{unit} on worker {placement.worker[stage]}"
            its = f"{partner.name}{placement.chunk[other]}.{unit} on worker {placement.worker[other]}"
            problems.append(
                Problem(
                    what=f"schedule table: {name} is missing ({missing.sum()} such)"
                    + (f", the other end of {its}" if left else f", and so is {its}"),
                    why="where a table communicates, every result that another worker needs is sent and received",
                    fix="list both ends, or leave all communication to `with_communication`",
                    field="schedule",
                )
            )
        if extra.any():
            stage, unit = (int(index[0]) for index in np.nonzero(extra))
            problems.append(
                Problem(
                    what=f"schedule table: {tasks.name(int(tasks.at[kind, stage, unit]))} on worker"
                    f" {placement.worker[stage]} has no other end ({extra.sum()} such)",
                    why="nothing is sent within a worker or beyond the ends of a chain",
                    fix="remove it",
                    field="schedule",
                )
            )
    return problems


def _crosses(tasks: TaskColumns, neighbour: Int[np.ndarray, " stages"]) -> Bool[np.ndarray, " stages"]:
    worker = tasks.placement.worker
    return (neighbour >= 0) & (worker[neighbour] != worker)


def _out_of_order(tasks: TaskColumns) -> list[Problem]:
    other = peer(tasks).astype(np.int64)
    lane = LANE[tasks.kind]
    sends, receives = np.nonzero(lane == Lane.SEND)[0], np.nonzero(lane == Lane.RECEIVE)[0]
    sent_by = tasks.needs[receives, 0]
    sends = sends[np.argsort(tasks.worker[sends] * tasks.p + other[sends], kind="stable")]
    by_channel = np.argsort(other[receives] * tasks.p + tasks.worker[receives], kind="stable")
    wrong = np.nonzero(sends != sent_by[by_channel])[0]
    if not len(wrong):
        return []
    first_sent, received = int(sends[wrong[0]]), int(receives[by_channel[wrong[0]]])
    first_received = int(tasks.needs[received, 0])
    late = int(receives[np.nonzero(sent_by == first_sent)[0][0]])
    channel = f"from worker {tasks.worker[first_sent]} to worker {tasks.worker[received]}"
    return [
        Problem(
            what=f"schedule table: {channel}, {tasks.name(first_sent)} is sent before {tasks.name(first_received)}, but"
            f" {tasks.name(received)} is received before {tasks.name(late)}",
            why="messages arrive in the order in which they are sent, so both ends of a channel list them alike",
            fix=f"on worker {tasks.worker[received]}, move {tasks.name(late)} before {tasks.name(received)}",
            field="schedule",
        )
    ]
