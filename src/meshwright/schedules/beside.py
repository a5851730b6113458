"""Pipelines that share nothing, as one table: their workers, chains and virtual stages one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from meshwright.schedules.kinds import Placement
from meshwright.schedules.table import ScheduleTable


def side_by_side(tables: Sequence[ScheduleTable]) -> ScheduleTable:
    """The table that runs all of these at once, each on workers of its own.

    Args:
        tables: the tables of pipelines that do not wait for each other.

    Returns:
        Their tasks, workers numbered through; equal segments are kept, unlike ones are counted as micro-batches.
    """
    if len(tables) == 1:
        return tables[0]
    workers = list(accumulate((table.p for table in tables), initial=0))
    stages = list(accumulate((table.placement.stages for table in tables), initial=0))
    chains = list(accumulate((table.placement.chains for table in tables), initial=0))

    def moved(name: str, by: Sequence[int]) -> np.ndarray:
        return np.concatenate([getattr(table, name) + add for table, add in zip(tables, by, strict=False)])

    placements = [table.placement for table in tables]
    placement = Placement(
        worker=np.concatenate([one.worker + add for one, add in zip(placements, workers, strict=False)]),
        chain=np.concatenate([one.chain + add for one, add in zip(placements, chains, strict=False)]),
    )
    nothing = [0] * len(tables)
    fused = [np.zeros(table.tasks, bool) if table.fused is None else table.fused for table in tables]
    versions = [np.zeros(table.tasks, np.int32) if table.version is None else table.version for table in tables]
    return ScheduleTable(
        placement=placement,
        micro_batches=tuple(count for table in tables for count in table.micro_batches),
        worker=moved("worker", workers),
        kind=moved("kind", nothing),
        stage=moved("stage", stages),
        micro_batch=moved("micro_batch", nothing),
        fused=np.concatenate(fused),
        version=None if all(table.version is None for table in tables) else np.concatenate(versions),
        segments=tables[0].segments if len({table.segments for table in tables}) == 1 else 1,
    )
