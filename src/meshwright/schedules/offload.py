"""Activations moved out of a worker's memory and back: behind their forward, and before their backward."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.kinds import LANE, Kind, Lane
from meshwright.schedules.passes import Insertions
from meshwright.schedules.table import ScheduleTable


def with_offload(table: ScheduleTable, *, idle: int = 4, ahead: int = 1) -> ScheduleTable:
    """The table with OFFLOAD_A right behind every forward whose activations then lie idle for long, and RELOAD_A.

    RELOAD_A begins `ahead` compute tasks before the task that needs the activations (R, or B or I).

    Args:
        table: without offloading.
        idle: fewest compute tasks of the worker between the forward and that task for which moving is worth it.
        ahead: compute tasks that hide the way back, less than `idle`.
    """
    computes = np.nonzero(LANE[table.kind] == Lane.COMPUTE)[0]
    position = np.zeros(table.tasks, np.int64)
    position[computes] = np.arange(len(computes))
    forward = np.nonzero(table.kind == Kind.F)[0]
    at, stage, unit = table.at, table.stage[forward], table.micro_batch[forward]
    backward = np.maximum(at[Kind.B][stage, unit], at[Kind.I][stage, unit])
    again = at[Kind.R][stage, unit]
    needed = np.where(again >= 0, again, backward)
    moves = position[needed] - position[forward] - 1 >= max(idle, ahead + 1)
    forward, needed, stage, unit = (column[moves] for column in (forward, needed, stage, unit))
    added = Insertions(table)
    added.behind(forward, Kind.OFFLOAD_A, stage, unit)
    added.before(computes[position[needed] - ahead], Kind.RELOAD_A, stage, unit)
    return added.table()
