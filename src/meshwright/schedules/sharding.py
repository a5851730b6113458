"""Sharded data parallelism made explicit: weights are gathered before they are used and freed behind."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.kinds import Kind
from meshwright.schedules.passes import Insertions, stage_runs
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Int


def with_sharding(table: ScheduleTable, *, ahead: int = 1, reduce_each: bool = True) -> ScheduleTable:
    """The table with UNSHARD before, and RESHARD behind, every run of tasks of a worker on one chunk.

    The weights of a chunk stay gathered as long as its worker works on nothing else: breadth-first schedules gather
    each chunk once for its forwards and once for its backwards, interleaved ones once per group. The order of the other
    tasks stays.

    Args:
        table: the table, without sharding.
        ahead: compute tasks before a run at which its UNSHARD may begin (prefetch).
        reduce_each: REDUCE behind every run with weight gradients, so that they stay sharded; otherwise behind the last
            one of each chunk.
    """
    runs = stage_runs(table, ahead)
    added = Insertions(table)
    grads = runs.backward.copy()
    if not reduce_each:
        # Runs are sorted by stage and in order within: the last with gradients is the one before the stage changes.
        for stage in range(table.placement.stages):
            own = (runs.stage == stage).nonzero()[0]
            grads[own[runs.backward[own]][:-1]] = False
    rounds = _counted(runs.stage, grads)
    added.behind(runs.last[grads], Kind.REDUCE, runs.stage[grads], rounds)
    added.behind(runs.last, Kind.RESHARD, runs.stage, runs.number)
    added.before(runs.ahead, Kind.UNSHARD, runs.stage, runs.number)
    return added.table()


def with_paging(table: ScheduleTable, *, ahead: int = 1) -> ScheduleTable:
    """The table with RELOAD_W before, and OFFLOAD_W behind, every run of tasks of a worker on one chunk.

    Args:
        table: the table, without paging.
        ahead: compute tasks before a run at which its RELOAD_W may begin.
    """
    runs = stage_runs(table, ahead)
    added = Insertions(table)
    added.behind(runs.last, Kind.OFFLOAD_W, runs.stage, runs.number)
    added.before(runs.ahead, Kind.RELOAD_W, runs.stage, runs.number)
    return added.table()


def _counted(stage: np.ndarray, chosen: np.ndarray) -> Int[np.ndarray, " chosen"]:
    """How many chosen runs of the same stage come before each chosen one."""
    own = stage[chosen]
    return np.arange(len(own)) - np.searchsorted(own, own)
