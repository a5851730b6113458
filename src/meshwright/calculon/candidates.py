"""Candidates of a search: cells with memory settings, then with bound settings and a lower bound of their time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.layouts import Cells
from meshwright.calculon.settings import Projection, SettingTable
from meshwright.shapes import Bool, Float, Int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Cells looked at together, with the settings they have."""

    table: SettingTable
    cells: Cells
    split: Int[np.ndarray, "cells"]
    """Each cell's split of the processors."""
    allowed: Bool[np.ndarray, "splits assignments"]
    """Which assignments of networks each split allows."""

    def possible(self, kinds: Projection) -> Bool[np.ndarray, "splits kinds"]:
        """Which kinds of settings some allowed assignment of networks has, per split."""
        of = self.table.networks.of
        return np.stack([np.bincount(kinds.of[row[of]], minlength=kinds.size) > 0 for row in self.allowed])


@dataclass(frozen=True, slots=True)
class Rows:
    """Cells with memory settings."""

    cell: Int[np.ndarray, "rows"]
    memory: Int[np.ndarray, "rows"]
    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]

    def take(self, index: Int[np.ndarray, "chosen"] | Bool[np.ndarray, "rows"] | slice) -> Rows:
        """Those of an index, a mask or a slice."""
        return Rows(self.cell[index], self.memory[index], self.tier1_bytes[index], self.tier2_bytes[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Bounded executions of one cell, bound setting and number of micro-batches."""

    cell: Int[np.ndarray, "rows"]
    kind: Int[np.ndarray, "rows"]
    """Which bound setting."""
    count: Int[np.ndarray, "rows"]
    """Micro-batches per replica."""
    bound_s: Float[np.ndarray, "rows"]
    """No execution takes fewer seconds per sample."""
    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]

    @property
    def needs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bound and memory of both tiers."""
        return self.bound_s, self.tier1_bytes, self.tier2_bytes

    @property
    def rows(self) -> int:
        """How many wait."""
        return len(self.cell)

    def take(self, index: Int[np.ndarray, "chosen"] | Bool[np.ndarray, "rows"] | slice) -> Waiting:
        """Those of an index or a mask."""
        return Waiting(**{name: getattr(self, name)[index] for name in self.__slots__})


def members(
    of: Int[np.ndarray, "members"], wanted: Int[np.ndarray, "rows"], size: int
) -> tuple[Int[np.ndarray, "found"], Int[np.ndarray, "found"]]:
    """All members of each wanted group: the row that wants it, and the member.

    Args:
        of: group of each member.
        wanted: groups.
        size: number of groups.
    """
    order = np.argsort(of, kind="stable")
    number = np.bincount(of, minlength=size)
    start = np.cumsum(number) - number
    repeats = number[wanted]
    source = np.repeat(np.arange(len(wanted)), repeats)
    turn = np.arange(len(source)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return source, order[start[wanted[source]] + turn]


def until_nothing_fits(cells: Cells, some: Bool[np.ndarray, "cells ways"]) -> Bool[np.ndarray, "cells ways"]:
    """Cells whose smaller micro-batches all have something that fits, per memory setting."""
    alive = np.ones_like(some)
    for row in range(1, cells.rows):
        same = (
            cells.tensor_par[row] == cells.tensor_par[row - 1]
            and cells.pipeline_par[row] == cells.pipeline_par[row - 1]
            and cells.interleaving[row] == cells.interleaving[row - 1]
        )
        if same:
            alive[row] = alive[row - 1] & some[row - 1]
    return alive
