"""The event simulator: exact start and end of every task of a schedule table, for one or many sets of durations.

Each worker runs its list in order; a task starts when the worker is free and its inputs have arrived. Within a worker
results are free. Between workers a message leaves its producer, takes `sending_s` to leave behind the message before it
on its channel, and arrives a latency later; with `overlap` it occupies nobody but its channel. Without overlap each
SEND holds its worker for latency + sending seconds, right behind the producer, and its RECV the other worker for as
long, right before the consumer, from the start of the SEND at the earliest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshwright.errors import InputError
from meshwright.schedules.events import Events, event_ends
from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.schedules.placement import Placement
from meshwright.schedules.program import Program, compile_events
from meshwright.schedules.run import end_times, rows_together
from meshwright.schedules.table import ScheduleTable
from meshwright.schedules.times import Times, class_seconds, edge_latency_s
from meshwright.shapes import Float

if TYPE_CHECKING:
    from meshwright.schedules.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Random durations: each task takes exp(sigma*n - sigma^2/2) times its duration, n standard normal, mean 1.

    Messages keep theirs. The draws follow the order of the table, so a seed gives one result for a table.
    """

    sigma: float
    seed: int = 0

    def factor(self, tasks: int) -> Float[np.ndarray, " tasks"]:
        """What each task's duration is multiplied by.

        Args:
            tasks: number of tasks.
        """
        normal = np.random.default_rng(self.seed).standard_normal(tasks)
        return np.exp(self.sigma * normal - self.sigma**2 / 2)


def simulate(table: ScheduleTable, times: Times, *, overlap: bool = True, jitter: Jitter | None = None) -> Timeline:
    """Start and end of every task: end = max(worker free, inputs arrived) + duration.

    Args:
        table: what runs in which order.
        times: one set of durations, without leading axes.
        overlap: whether workers compute while they send and receive.
        jitter: what varies the durations.
    """
    events = events_of(table, times, overlap=overlap)
    most = max(table.micro_batches)
    seconds = class_seconds(table.placement, times, events.table.kinds, most, serial=events.serial)
    if seconds.lead:
        raise InputError(
            what=f"{seconds.tasks.shape[-1]} sets of durations for one timeline",
            why="a timeline shows one set",
            fix="pass arrays of shape (workers, chunks), or ask `makespans` for many sets",
            field="times",
        )
    factor = None
    if jitter is not None:
        own = ~np.isin(LANE[events.table.kind], (Lane.SEND, Lane.RECEIVE))
        factor = np.ones(events.table.tasks)
        factor[own] = jitter.factor(int(own.sum()))
    from meshwright.schedules.timeline import timeline_of  # only what is shown or traced

    return timeline_of(table, event_ends(events, seconds, most if times.by_micro_batch else 1, factor))


def makespans(table: ScheduleTable, times: Times, *, overlap: bool = True) -> Float[np.ndarray, "*all_rows workers"]:
    """End of each worker's last task for many sets of durations at once; the step's makespan is the largest.

    Equal to `simulate` up to rounding (relative 1e-10); the middle of a steady phase is skipped where it is periodic.

    Args:
        table: what runs in which order.
        times: sets of durations along leading axes.
        overlap: whether workers compute while they send and receive.
    """
    events = events_of(table, times, overlap=overlap)
    most = max(table.micro_batches) if times.by_micro_batch else 1
    known = table.__dict__.setdefault("_programs", {})
    key = events.table is table, events.serial, most
    if key not in known:
        known[key] = compile_events(events, most)
    return worker_ends(known[key], table.placement, events.table.kinds, times)


def worker_ends(
    program: Program, placement: Placement, kinds: frozenset[Kind], times: Times, periods: tuple[int, ...] | None = None
) -> Float[np.ndarray, "*all_rows workers"]:
    """`makespans` of a compiled table, its phases run `periods` times.

    Args:
        program: the compiled table.
        placement: the placement of its virtual stages.
        kinds: kinds of tasks it holds.
        times: sets of durations along leading axes.
        periods: the periods of every segment, if not the program's own.
    """
    seconds = class_seconds(placement, times, kinds, program.micro_batches, serial=program.serial)
    rows, block = seconds.tasks.shape[-1], rows_together(program)
    worker_end_s = np.empty((rows, placement.p))
    for low in range(0, rows, block):
        part = slice(low, low + block)
        ends_s = end_times(program, program.weights(seconds.tasks[:, part], seconds.edges[:, part]), periods)
        worker_end_s[part] = np.maximum.reduceat(ends_s, program.last_first, axis=0).T
    return worker_end_s.reshape(*seconds.lead, placement.p)


def events_of(table: ScheduleTable, times: Times, *, overlap: bool = True) -> Events:
    """The events of a table: with messages of their own where they hold up each other or the workers.

    Args:
        table: what runs in which order.
        times: durations.
        overlap: whether workers compute while they send and receive.
    """
    serial = not overlap and bool(table.crosses.any())
    spelt_out = serial or times.occupies_channels
    known = table.__dict__.setdefault("_events", {})
    key = spelt_out, serial
    if key not in known:
        if spelt_out:
            from meshwright.schedules.communication import with_communication  # most tables leave transfers to times

            table = with_communication(table)
        known[key] = Events(table=table, serial=serial)
    events: Events = known[key]
    return events


__all__ = ["Jitter", "Times", "edge_latency_s", "makespans", "simulate", "worker_ends"]
