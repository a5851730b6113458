"""Communication made explicit: every result that another worker needs is sent and received by tasks of their own."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.columns import ALONG
from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.schedules.pairing import peer
from meshwright.schedules.passes import Insertions
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Int


def with_communication(table: ScheduleTable) -> ScheduleTable:
    """The table with SEND right behind each producer and RECV right before each consumer, on different workers.

    A channel delivers in the order of its sends. Where its messages are needed in another order, a RECV moves forward
    to stand before the RECV of the next message of its channel; its worker then waits no longer than it did. Results
    for the same worker are local and stay without tasks. A table that communicates already is returned as it is.

    Args:
        table: any table.
    """
    if table.kinds & {Kind.SEND_F, Kind.SEND_B}:
        return table
    consumer = np.nonzero(table.crosses)[0]
    producer = table.needs[consumer, ALONG]
    # Of several messages of one producer (there is one at most) and of fused ones, the order of the list counts.
    by_send = np.argsort(producer, kind="stable")
    consumer, producer = consumer[by_send], producer[by_send]
    forward = table.kind[consumer] == Kind.F
    channel = table.worker[producer].astype(np.int64) * table.p + table.worker[consumer]
    before = _received_before(table, consumer, channel)
    added = Insertions(table)
    added.behind(producer, np.where(forward, Kind.SEND_F, Kind.SEND_B), *_cell(table, producer))
    added.before(before, np.where(forward, Kind.RECV_F, Kind.RECV_B), *_cell(table, consumer))
    return added.table()


def batches(table: ScheduleTable) -> Int[np.ndarray, " tasks"]:
    """Number of the batch that each SEND and RECV belongs to, -1 for other tasks.

    A batch is what a worker exchanges with one peer between two other tasks of its list. It is posted as one group
    (batched isend and irecv), so that two workers that send to each other do not both wait for the other's receive.

    Args:
        table: the table with communication.
    """
    other = peer(table)
    message = np.isin(LANE[table.kind], (Lane.SEND, Lane.RECEIVE))
    gap = np.cumsum(~message)
    key = (table.worker.astype(np.int64) * (table.tasks + 1) + gap) * (table.p + 1) + other + 1
    number = np.full(table.tasks, -1)
    number[message] = np.unique(key[message], return_inverse=True)[1]
    return number


def _cell(table: ScheduleTable, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return table.stage[tasks], table.micro_batch[tasks]


def _received_before(
    table: ScheduleTable, consumer: Int[np.ndarray, " edges"], channel: Int[np.ndarray, " edges"]
) -> Int[np.ndarray, " edges"]:
    """The task before which each message is received: the earliest consumer of it and of all later ones on its channel.

    Args:
        table: the schedule.
        consumer: the consumer of each message, in the order in which they are sent.
        channel: the channel of each message.
    """
    head = consumer if table.fused is None else np.searchsorted(table.node, table.node[consumer])
    # From the last message back, channel by channel: numbers of a later channel lie above all of an earlier one.
    back = np.argsort(channel, kind="stable")[::-1]
    offset = channel[back] * np.int64(table.tasks)
    before = np.empty_like(head)
    before[back] = np.minimum.accumulate(head[back] + offset) - offset
    return before
