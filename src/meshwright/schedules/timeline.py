"""When every task of a table runs, with one set of durations, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from meshwright.schedules.columns import OWN
from meshwright.schedules.events import Events, Solution
from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.schedules.memory import Footprint, MemoryUse, memory_use
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Bool, Float, Int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Transfers:
    """Every result that goes from one worker to another, in the order of the tasks that take it."""

    producer: Int[np.ndarray, " transfers"]
    """Task that made it: the compute task, also where the table lists SEND and RECV."""
    consumer: Int[np.ndarray, " transfers"]
    """Task that needs it."""
    from_worker: Int[np.ndarray, " transfers"]
    to_worker: Int[np.ndarray, " transfers"]
    start_s: Float[np.ndarray, " transfers"]
    """When it begins to leave."""
    end_s: Float[np.ndarray, " transfers"]
    """When it has arrived."""
    gradient: Bool[np.ndarray, " transfers"]
    """Whether the transfer carries a gradient; activations otherwise."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CriticalPath:
    """Tasks of which each is what the next one waits for, from the start of the step to its end.

    The durations of the tasks and the waits between them add up to the makespan.
    """

    tasks: Int[np.ndarray, " path"]
    """The tasks; of fused ones, the first."""
    wait_s: Float[np.ndarray, " path"]
    """Seconds from the end of the task before to the start of each: its result was under way, or held up on a
    channel."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """When every task of a table runs, with one set of durations."""

    table: ScheduleTable
    start_s: Float[np.ndarray, " tasks"]
    end_s: Float[np.ndarray, " tasks"]
    """Fused tasks share start and end; a RECV lasts from the start of its SEND to the arrival."""
    busy_s: Float[np.ndarray, " workers"]
    """Seconds each worker computes."""
    solution: Solution
    """The events behind it, with messages of their own where messages hold each other up."""

    @cached_property
    def worker_end_s(self) -> Float[np.ndarray, " workers"]:
        """End of each worker's last task, messages left out."""
        if self.table.computes_only:
            return self.end_s[self.table.first[1:] - 1]
        return np.maximum.reduceat(np.where(self._message, 0.0, self.end_s), self.table.first[:-1])

    @cached_property
    def worker_start_s(self) -> Float[np.ndarray, " workers"]:
        """Start of each worker's first task, messages left out."""
        if self.table.computes_only:
            return self.start_s[self.table.first[:-1]]
        return np.minimum.reduceat(np.where(self._message, np.inf, self.start_s), self.table.first[:-1])

    @property
    def makespan_s(self) -> float:
        """End of the last task."""
        return float(self.worker_end_s.max())

    @property
    def bubble_makespan(self) -> float:
        """Idle share of the makespan: 1 - busy / (p * makespan); 0 if nothing takes time."""
        return 1.0 - float(self.busy_s.sum()) / (self.table.p * self.makespan_s) if self.makespan_s else 0.0

    @property
    def span_s(self) -> float:
        """Largest time from first start to last end of one worker."""
        return float((self.worker_end_s - self.worker_start_s).max())

    @property
    def bubble_span(self) -> float:
        """Idle share of the longest span: 1 - mean busy / span (the zero-bubble papers' definition).

        0 if nothing takes time.
        """
        return 1.0 - float(self.busy_s.mean()) / self.span_s if self.span_s else 0.0

    @cached_property
    def exposed_s(self) -> Float[np.ndarray, " workers"]:
        """Seconds each worker does not compute because of communication: while a result that it waits for is under way,
        and, where messages occupy it, while it sends or receives."""
        events, end_s = self.solution.events, self.solution.end_s
        start_s = end_s - self.solution.event_s
        worker = events.table.worker[events.head]
        lane = LANE[events.table.kind[events.head]]
        held = events.in_compute_lane & (lane != Lane.COMPUTE)
        source, over_s = self.solution.latest_gate
        before = events.gates[0][:, 0]
        since_s = np.where(before >= 0, end_s[before], 0.0)
        under_way_s = np.where(events.in_compute_lane[source], end_s[source], start_s[source])
        overlapped = ~events.in_compute_lane[source] & (lane[source] == Lane.RECEIVE)
        if overlapped.any():
            sends = events.gates[0][source[overlapped], 1]
            under_way_s[overlapped] = start_s[sends]
        waits = (lane == Lane.COMPUTE) & (source >= 0) & (over_s > since_s)
        wait_s = np.where(waits, start_s - np.maximum(since_s, under_way_s), 0.0)
        wait_s[held] = self.solution.event_s[held]
        return np.bincount(worker, weights=np.maximum(wait_s, 0.0), minlength=self.table.p)

    def transfers(self) -> Transfers:
        """Every result that goes from one worker to another, and when."""
        events = self.solution.events
        table, node = events.table, events.table.node
        receiver, sender, way = events.messages
        start_s, end_s = self.solution.end_s - self.solution.event_s, self.solution.end_s
        sends = LANE[table.kind[sender]] == Lane.SEND
        way_s = np.zeros(len(receiver)) if not len(receiver) else self._way_s(receiver, sender, way)
        leaves_s = np.where(sends, start_s[node[sender]], end_s[node[sender]])
        arrives_s = np.where(sends, end_s[node[receiver]], leaves_s + way_s)
        producer, consumer = sender.copy(), receiver.copy()
        producer[sends] = table.needs[sender[sends], OWN]
        takes = np.full(table.tasks, -1)
        takes[table.needs[:, 0]] = np.arange(table.tasks)
        consumer[sends] = takes[receiver[sends]]
        gradient = (table.kind[receiver] != Kind.F) & (table.kind[receiver] != Kind.RECV_F)
        listed = np.cumsum(self._listed) - 1
        order = np.argsort(consumer, kind="stable")
        columns = (listed[producer], listed[consumer], table.worker[producer], table.worker[consumer])
        first = [column[order] for column in columns]
        return Transfers(
            producer=first[0],
            consumer=first[1],
            from_worker=first[2],
            to_worker=first[3],
            start_s=leaves_s[order],
            end_s=arrives_s[order],
            gradient=gradient[order],
        )

    def hops_s(self) -> Float[np.ndarray, "2 stages"]:
        """Seconds that what each virtual stage sends is under way at most, forward and backward; 0 where it stays."""
        table, events = self.table, self.solution.events
        longest_s = np.zeros((2, table.placement.stages))
        if not len(events.messages[0]):
            return longest_s
        if events.table is table and table.computes_only:
            stage, backward, message = _one_of_each_way(events)
            longest_s[backward, stage] = self._way_s(*message)
            return longest_s
        found = self.transfers()
        way = found.gradient.astype(np.intp), table.stage[found.producer]
        np.maximum.at(longest_s, way, found.end_s - found.start_s)
        return longest_s

    def critical_path(self) -> CriticalPath:
        """The tasks that determine the makespan: from the last one to end back to what each one waited for longest."""
        events, end_s = self.solution.events, self.solution.end_s
        before, _ = self.solution.latest_gate
        at = int(events.closing[np.argmax(end_s[events.closing])])
        path = []
        while at >= 0:
            path.append(at)
            at = int(before[at])
        nodes = np.array(path[::-1])
        nodes = nodes[self._listed[events.head[nodes]]]
        start_s = end_s[nodes] - self.solution.event_s[nodes]
        listed = np.cumsum(self._listed) - 1
        return CriticalPath(tasks=listed[events.head[nodes]], wait_s=start_s - np.append(0.0, end_s[nodes[:-1]]))

    def memory(self, footprint: Footprint) -> MemoryUse:
        """What lies in the memory of every worker over time, and the peak with its moment.

        Args:
            footprint: bytes that tasks keep and free.
        """
        return memory_use(self.table, self.start_s, self.end_s, footprint, self.transfers)

    @cached_property
    def _listed(self) -> Bool[np.ndarray, " tasks_of_events"]:
        """Which tasks of the events are tasks of the table: all, or all but the messages that were added to it."""
        if self.solution.events.table is self.table:
            return np.ones(self.table.tasks, bool)
        lane = LANE[self.solution.events.table.kind]
        return (lane != Lane.SEND) & (lane != Lane.RECEIVE)

    @cached_property
    def _message(self) -> Bool[np.ndarray, " tasks"]:
        lane = LANE[self.table.kind]
        return (lane == Lane.SEND) | (lane == Lane.RECEIVE)

    def _way_s(self, receiver: np.ndarray, sender: np.ndarray, way: np.ndarray) -> np.ndarray:
        """Seconds from the end of each sender to the arrival at its receiver."""
        node = self.solution.events.table.node
        reads, ways = (gates[node[receiver]] for gates in self.solution.events.gates)
        # A pair of passes that run as one event may send another two results, each on a way of its own.
        gate = ((reads == node[sender][:, None]) & (ways == way[:, None]))[:, 1:].argmax(axis=1) + 1
        return self.solution.way_s[node[receiver], gate]


@lru_cache(maxsize=8)
def _one_of_each_way(
    events: Events,
) -> tuple[Int[np.ndarray, " ways"], Int[np.ndarray, " ways"], tuple[Int[np.ndarray, " ways"], ...]]:
    """Virtual stages that send, whether backward, and of each one message as `Events.messages` has it: where nothing
    holds messages up, all of one way take equally long."""
    receiver, sender, way = events.messages
    ways, one = np.unique(way, return_index=True)
    backward = (ways >= events.table.p * events.table.v).astype(np.intp)
    return events.table.stage[sender[one]], backward, (receiver[one], sender[one], ways)


def timeline_of(table: ScheduleTable, solution: Solution) -> Timeline:
    """The tasks of a table out of the solution of its events.

    Args:
        table: the one that was asked about.
        solution: the solution of its events, or of those of the same table with communication.
    """
    events = solution.events
    node = events.table.node
    before = events.gates[0][:, 0]
    # Rounding must not let a task start before the one it follows has ended.
    since_s = np.where(before >= 0, solution.end_s[before], 0.0)
    start_s = np.maximum(solution.end_s - solution.event_s, since_s)
    if events.table.fused is None:
        end_s = solution.end_s
    else:
        start_s, end_s = start_s[node], solution.end_s[node]
    lane = LANE[events.table.kind]
    computes = lane == Lane.COMPUTE
    busy_s = np.bincount(events.table.worker[computes], weights=solution.task_s[computes], minlength=table.p)
    if events.table is not table:
        listed = (lane != Lane.SEND) & (lane != Lane.RECEIVE)
        start_s, end_s = start_s[listed], end_s[listed]
    elif not events.serial and not table.computes_only:
        received = np.nonzero(lane == Lane.RECEIVE)[0]
        start_s[received] = start_s[table.needs[received, 0]]
    return Timeline(table=table, start_s=start_s, end_s=end_s, busy_s=busy_s, solution=solution)
