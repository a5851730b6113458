"""Updates made explicit: optimizer steps, and which version of the weights every task uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwright.schedules.kinds import WEIGHTED, Kind
from meshwright.schedules.lifetimes import versions_made
from meshwright.schedules.passes import Insertions
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Int


def with_optimizer(table: ScheduleTable, *, reduce: bool = True) -> ScheduleTable:
    """The table with one REDUCE of each chunk behind its last weight gradient and one OPT at the end of its worker.

    Args:
        table: the table of one step.
        reduce: whether gradients are reduced over data-parallel ranks; left as it is where the table does so already.
    """
    makes = np.nonzero(np.isin(table.kind, (Kind.B, Kind.W)))[0]
    last = np.zeros(table.placement.stages, np.int64)
    last[table.stage[makes]] = makes
    in_order = np.argsort(last, kind="stable")
    added = Insertions(table)
    if reduce and Kind.REDUCE not in table.kinds:
        added.behind(last[in_order], Kind.REDUCE, in_order, np.zeros_like(in_order))
    end = table.first[1:][table.placement.worker[in_order]] - 1
    added.behind(end, Kind.OPT, in_order, np.zeros_like(in_order))
    return added.table()


def with_updates(
    table: ScheduleTable,
    every: int,
    version: Callable[[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]], Int[np.ndarray, " tasks"]] | None = None,
) -> ScheduleTable:
    """The table of a pipeline that is not drained: OPT behind every so many weight gradients of a chunk.

    A forward uses the newest version of its worker's weights, or what `version` says; its backward uses the same.

    Args:
        table: the table of several updates.
        every: micro-batches per update.
        version: the version of forwards, from their micro-batches and the updates that their worker has made.
    """
    makes = np.nonzero(np.isin(table.kind, (Kind.B, Kind.W)))[0]
    by_stage = makes[np.argsort(table.stage[makes], kind="stable")]
    stage = table.stage[by_stage]
    count = np.arange(len(by_stage)) - np.searchsorted(stage, stage)
    closes = count % every == every - 1
    added = Insertions(table)
    added.behind(by_stage[closes], Kind.OPT, stage[closes], count[closes] // every)
    updated = added.table()
    made = versions_made(updated)
    forward = updated.at[Kind.F][updated.stage, np.minimum(updated.micro_batch, updated.at.shape[2] - 1)]
    newest = made if version is None else version(updated.micro_batch, made)
    return replace(updated, version=np.where(WEIGHTED[updated.kind], newest[forward], 0))


def live_versions(table: ScheduleTable) -> Int[np.ndarray, " workers"]:
    """Most versions of the weights that lie on each worker at once: the newest, and those of open micro-batches.

    Args:
        table: the table with versions and OPT tasks.
    """
    version = np.zeros(table.tasks, np.int32) if table.version is None else table.version
    made = versions_made(table)
    opens = (table.kind == Kind.F) | np.isin(table.kind, (Kind.B, Kind.W))
    most = np.ones(table.p, np.int64)
    open_units: dict[int, dict[int, int]] = {}
    for task in np.nonzero(opens)[0].tolist():
        held = open_units.setdefault(int(table.stage[task]), {})
        held[int(table.micro_batch[task])] = int(version[task])
        worker = int(table.worker[task])
        most[worker] = max(most[worker], len({*held.values(), int(made[task])}))
        if table.kind[task] != Kind.F:
            del held[int(table.micro_batch[task])]
    return most
