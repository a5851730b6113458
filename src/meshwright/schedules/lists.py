"""Schedule tables from one list of tasks per worker, written down as the source of a schedule tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.schedules.table import Kind, Placement, ScheduleTable


class Task(NamedTuple):
    """One task of a worker's list."""

    kind: Kind
    stage: int
    """Virtual stage."""
    unit: int
    """Micro-batch, or segment."""
    fused: bool = False
    """Whether it runs together with the task before it."""


def table_of_lists(
    placement: Placement, micro_batches: tuple[int, ...], lists: Sequence[Iterable[Task]], segments: int = 1
) -> ScheduleTable:
    """The table in which every worker runs its list.

    Args:
        placement: the placement of the virtual stages.
        micro_batches: the micro-batches of each chain.
        lists: the tasks of each worker, in order.
        segments: the number of segments per micro-batch, if `unit` counts segments.
    """
    rows = [(worker, *task) for worker, tasks in enumerate(lists) for task in tasks]
    columns = np.array(rows, np.int32).T
    return ScheduleTable(
        placement=placement,
        micro_batches=micro_batches,
        worker=columns[0],
        kind=columns[1],
        stage=columns[2],
        micro_batch=columns[3],
        fused=columns[4].astype(bool),
        segments=segments,
    )


def v_placement(p: int) -> Placement:
    """Down the workers and back up: virtual stages r and 2p - 1 - r on worker r.

    Args:
        p: workers.
    """
    return Placement.of_chains([[*range(p), *reversed(range(p))]])
