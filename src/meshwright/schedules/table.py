"""The one schedule language: a table of tasks per worker, checked when it is built.

A schedule sends micro-batches down one or more *chains* of virtual stages. A `Placement` says which worker holds which
virtual stage; a `ScheduleTable` says in which order every worker runs its tasks. Nothing here knows seconds. The named
schedules list computation only; passes (`with_communication` and its neighbours) add the other tasks of `Kind`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.errors import InputError
from meshwright.schedules.checks import column_problems, table_problems
from meshwright.schedules.columns import TaskColumns
from meshwright.schedules.kinds import Kind
from meshwright.schedules.placement import Placement


@dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleTable(TaskColumns):
    """Who runs which task in which order.

    Built from any complete order; raises `InputError` with every problem, each told by the fewest tasks that show it,
    when a worker is unknown, a micro-batch misses or repeats a task, a message lacks an end or two ends of a channel
    disagree, something is used before it exists or after it is freed, or workers wait for each other in a circle.
    """

    def __post_init__(self) -> None:
        columns = {name: np.asarray(getattr(self, name)) for name in ("worker", "kind", "stage", "micro_batch")}
        problems = column_problems(columns, self.placement, self.micro_batches)
        if problems:
            raise InputError(problems)
        super().__post_init__()
        problems = table_problems(self)
        if problems:
            raise InputError(problems)

    def entries(self) -> list[list[str]]:
        """Every worker's list as users read it: `F0.3` is kind, chunk of the worker, micro-batch; `+` fuses."""
        lists: list[list[str]] = [[] for _ in range(self.p)]
        letters = [kind.name for kind in Kind]
        fused = np.zeros(self.tasks, bool) if self.fused is None else self.fused
        plain = self.segments == 1 and self.version is None
        columns = (self.worker, self.kind, self.chunk, self.micro_batch, fused)
        for task, (worker, kind, chunk, unit, joined) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            name = f"{letters[kind]}{chunk}.{unit}" if plain else self.name(task)
            if joined:
                lists[worker][-1] += f"+{name}"
            else:
                lists[worker].append(name)
        return lists


__all__ = ["Kind", "Placement", "ScheduleTable"]
