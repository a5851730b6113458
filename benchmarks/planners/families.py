"""Rows of a table that differ in recompute alone: a stage recomputes some of its layers and not the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.planners.profile import FULL, NONE
from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.shapes import Float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Degrees and sharding of a stage."""

    plain: int
    """Row without recompute."""
    again: int
    """Row with all of it."""
    tp: int
    dp: int
    ep: int
    sharding: str

    def costs(
        self, table: StageOptions, counts: Float[np.ndarray, " parts"], recomputed: int, in_flight: float
    ) -> tuple[float, float, float]:
        """Seconds of a micro-batch, seconds once a step and bytes of a device.

        Args:
            table: of its rows.
            counts: of the stage's parts.
            recomputed: layers of it, from its first on.
            in_flight: micro-batches that it keeps.
        """
        layers = counts[:-2].sum()
        share = recomputed / layers
        mixed = np.concatenate([counts[:-2] * (1 - share), counts[-2:]])
        rest = np.concatenate([counts[:-2] * share, [0.0, 0.0]])
        rows = [self.plain, self.again]
        once = table.once_s[rows]
        kept = table.kept_bytes[rows]
        present = counts > 0
        used = [row for row, some in ((self.plain, recomputed < layers), (self.again, recomputed > 0)) if some]
        transient = table.transient_bytes[used][:, present].max()
        held = table.fixed_bytes[self.plain] + transient + table.state_bytes[self.plain] @ counts
        return (
            float(once[0] @ mixed + once[1] @ rest),
            float(table.sync_s[self.plain] @ counts),
            float(held + in_flight * (kept[0] @ mixed + kept[1] @ rest)),
        )

    def least(
        self, table: StageOptions, counts: Float[np.ndarray, " parts"], in_flight: float, room_bytes: float
    ) -> tuple[int, tuple[float, float, float]]:
        """Layers that are recomputed, as few as fit, with their costs; all of them where none do.

        Args:
            table: of its rows.
            counts: of the stage's parts.
            in_flight: micro-batches that it keeps.
            room_bytes: of a device.
        """
        low, high = 0, int(counts[:-2].sum())
        while low < high:
            middle = (low + high) // 2
            if self.costs(table, counts, middle, in_flight)[2] <= room_bytes:
                high = middle
            else:
                low = middle + 1
        return low, self.costs(table, counts, low, in_flight)

    def rows(self, layers: int, recomputed: int) -> tuple[int, ...]:
        """The row of each layer; arguments as `costs`."""
        return (self.again,) * recomputed + (self.plain,) * (layers - recomputed)


def families(table: StageOptions) -> list[Family]:
    """All of a table.

    Args:
        table: with rows without recompute and with all of it.
    """
    grid = table.grid
    keys = np.column_stack([grid.tp, grid.overlap, grid.context, grid.ep, grid.etp, grid.dp, grid.way, table.choice])
    by_key: dict[tuple[int, ...], dict[int, int]] = {}
    for row, key in enumerate(keys.tolist()):
        by_key.setdefault(tuple(key), {})[int(table.recompute[row])] = row
    return [
        Family(
            plain=rows[NONE],
            again=rows[FULL],
            tp=int(grid.tp[rows[NONE]]),
            dp=int(grid.dp[rows[NONE]]),
            ep=int(grid.ep[rows[NONE]]),
            sharding=table.shardings[int(table.choice[rows[NONE]])].name,
        )
        for rows in by_key.values()
        if NONE in rows and FULL in rows
    ]
