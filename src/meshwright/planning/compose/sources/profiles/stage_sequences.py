"""Which stages follow each other: the sequences of stage kinds a pipeline may have.

Restrictions, made for speed: stages of one kind stand side by side, so that a pipeline enters an island once, and it
holds at most two kinds of stage. Every sequence has a stage of one replica, since others are the same as several
pipelines side by side.
"""

from __future__ import annotations

import numpy as np

from meshwright.planning.compose.sources.profiles.stage_kinds import StageKinds
from meshwright.shapes import Int


def sequences(
    kinds: StageKinds, counts: Int[np.ndarray, "devices"], most_stages: int
) -> list[Int[np.ndarray, "sequences stages"]]:
    """All sequences the cluster has devices for, one table per number of stages.

    Args:
        kinds: the kinds of stage.
        counts: devices of each kind in the cluster.
        most_stages: the most stages of a pipeline.
    """
    every = np.arange(len(kinds.shapes))
    first, second = (grid.ravel() for grid in np.meshgrid(every, every, indexing="ij"))
    first, second = first[first != second], second[first != second]
    tables = []
    for stages in range(1, most_stages + 1):
        blocks = [np.repeat(every[:, None], stages, axis=1)]
        for before in range(1, stages):
            blocks.append(np.where(np.arange(stages) < before, first[:, None], second[:, None]))
        table = np.concatenate(blocks)
        used = devices_by_kind(kinds, table, len(counts))
        possible = (kinds.replicas[table].min(axis=1) == 1) & (used <= counts).all(axis=1)
        if possible.any():
            tables.append(table[possible])
    return tables


def devices_by_kind(
    kinds: StageKinds, table: Int[np.ndarray, "sequences stages"], count: int
) -> Int[np.ndarray, "sequences devices"]:
    """Devices of each kind in each sequence."""
    return np.stack(
        [np.where(kinds.device[table] == one, kinds.devices[table], 0).sum(axis=1) for one in range(count)], axis=1
    )
