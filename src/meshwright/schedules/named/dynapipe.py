"""DynaPipe: in each cycle one backward and one forward per worker, as far as memory allows."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.base import Schedule
from meshwright.schedules.lists import Task, table_of_lists
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import Kind, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class DynaPipe(Schedule):
    """Cyclic memory-aware 1F1B: a worker runs one ready backward, then one ready forward, in every cycle.

    Ready is what was there when the cycle began; a forward is left out when the worker would keep more activations than
    its limit. With p - r on worker r the order and time are those of 1F1B. Lengths of micro-batches do not change the
    order, only its times.
    Source: Jiang et al., "DynaPipe: Optimizing Multi-task Training through Dynamic Pipelines", EuroSys 2024.
    """

    most: int | None = whole(None, "Most activations on a worker. [default: p - r on worker r]")

    name = "dynapipe"
    only_chunks = 1
    title = "DynaPipe: cyclic 1F1B within a memory limit"
    source = "Jiang et al., DynaPipe, EuroSys 2024"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + p - 1) * (forward_s + backward_s) with the limits of 1F1B; not known otherwise."""
        return (m + p - 1) * (forward_s + backward_s) if self.most is None else None

    def period(self, p: int, v: int) -> int | None:
        """Each micro-batch repeats the one before, with the limits of 1F1B."""
        return 1 if self.most is None else None

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        lists: list[list[Task]] = [[] for _ in range(p)]
        limit = [p - worker if self.most is None else self.most for worker in range(p)]
        forwards, backwards = [0] * p, [0] * p
        while min(backwards) < m:
            # What each worker may run up to, fixed when the cycle begins.
            arrived = [m, *forwards[:-1]]
            returned = [*backwards[1:], forwards[-1]]
            for worker in range(p):
                if backwards[worker] < returned[worker]:
                    lists[worker].append(Task(Kind.B, worker, backwards[worker]))
                    backwards[worker] += 1
                if forwards[worker] < arrived[worker] and forwards[worker] - backwards[worker] < limit[worker]:
                    lists[worker].append(Task(Kind.F, worker, forwards[worker]))
                    forwards[worker] += 1
        return table_of_lists(self.placement(p), (m,), lists)
