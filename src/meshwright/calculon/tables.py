"""Columns of a search, coarse to fine: cells with memory settings, then with bound settings and a number of batches.

fitting   cells x memory settings that fit, bounded as if nothing were offloaded
bounded   cells x bound settings, bounded with offload; a range of micro-batch counts, or each by itself
price     all legal settings of those that are left
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.answer import BOUNDED
from meshwright.calculon.bound import Relaxed, best_count
from meshwright.calculon.layouts import Cells
from meshwright.calculon.model import price_for_search
from meshwright.calculon.settings import DistinctSettings, SettingTable
from meshwright.calculon.space import ExecutionSpace
from meshwright.search.incumbents import BestAndFront
from meshwright.search.points import Points
from meshwright.search.result import SpaceCounts
from meshwright.search.table import Table
from meshwright.shapes import Bool, Float, Int

CHUNK_ROWS = 1 << 19
"""Rows bounded together: enough to spend no time on calls, few enough for memory."""
SIZES = (512, CHUNK_ROWS // 8 // 512, CHUNK_ROWS // 8)
"""Rows refined together: few at first, to find times to beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search: what it searches, what it has found, what it has counted."""

    space: ExecutionSpace
    relaxed: Relaxed
    incumbents: BestAndFront
    counts: SpaceCounts
    fixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBlock:
    """Cells looked at together, with the settings they have."""

    run: SearchRun
    table: SettingTable
    cells: Cells
    split: Int[np.ndarray, "cells"]
    """Each cell's split of the processors."""
    allowed: Bool[np.ndarray, "splits assignments"]
    """Which assignments of networks each split allows."""

    def possible(
        self, kinds: DistinctSettings, cell: Int[np.ndarray, "rows"], kind: Int[np.ndarray, "rows"]
    ) -> Bool[np.ndarray, "rows"]:
        """Whether some allowed assignment of networks has a kind of settings.

        Args:
            kinds: the kinds.
            cell: one per row.
            kind: one per row.
        """
        of = self.table.networks.of
        known = np.stack([np.bincount(kinds.of[row[of]], minlength=kinds.size) > 0 for row in self.allowed])
        return known[self.split[cell], kind]

    def bounds(
        self,
        cell: Int[np.ndarray, "rows"],
        settings: Int[np.ndarray, "rows"],
        count: Int[np.ndarray, "rows"],
        *,
        offload: bool = True,
    ) -> Float[np.ndarray, "rows"]:
        """Lower bounds of seconds per sample; see `Relaxed.sample_s`."""
        self.run.counts.effort[BOUNDED] += len(cell)
        return self.run.relaxed.sample_s(self.table, self.cells.take(cell), settings, count, offload=offload)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingCells(Table):
    """Cells with memory settings that fit."""

    chunk: CellBlock
    cell: Int[np.ndarray, "rows"]
    memory: Int[np.ndarray, "rows"]
    bound_s: Float[np.ndarray, "rows"]
    """No execution takes fewer seconds per sample."""
    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]

    @classmethod
    def of(
        cls,
        chunk: CellBlock,
        cell: Int[np.ndarray, "rows"],
        memory: Int[np.ndarray, "rows"],
        tier1_bytes: Float[np.ndarray, "rows"],
        tier2_bytes: Float[np.ndarray, "rows"],
    ) -> FittingCells:
        """Rows with bounds over all their settings, offload left out.

        Args:
            chunk: the chunk of the cells.
            cell: one per row.
            memory: memory setting of each row.
            tier1_bytes: the bytes of tier 1 that it needs of the first tier.
            tier2_bytes: the bytes of tier 2 of the second.
        """
        table, cells = chunk.table, chunk.cells
        light, coarse = table.light, table.coarse
        ways = light.size
        group = cell * ways + light.of[table.memory.first][memory]
        wanted = np.flatnonzero(np.bincount(group, minlength=cells.rows * ways))
        source, kind = members(light.of[coarse.first], wanted % ways, ways)
        kept = chunk.possible(coarse, wanted[source] // ways, kind)
        source, kind = source[kept], kind[kept]
        at, whole = wanted[source] // ways, best_count(cells)
        least = np.full(cells.rows * ways, np.inf)
        for start in range(0, len(at), CHUNK_ROWS):
            piece = slice(start, start + CHUNK_ROWS)
            found = chunk.bounds(at[piece], coarse.first[kind[piece]], whole[at[piece]], offload=False)
            np.minimum.at(least, wanted[source[piece]], found)
        return cls(
            chunk=chunk,
            cell=cell,
            memory=memory,
            bound_s=least[group],
            tier1_bytes=tier1_bytes,
            tier2_bytes=tier2_bytes,
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """See `engine.Columns`."""
        return SIZES

    def beaten(self) -> None:
        """Executions are counted where they are found to fit."""

    def refine(self) -> Iterator[Bounded]:
        """Every bound setting of the rows, offload included."""
        chunk, table = self.chunk, self.chunk.table
        source, kind = members(table.memory.of[table.bound.first], self.memory, table.memory.size)
        kept = chunk.possible(table.bound, self.cell[source], kind)
        source, kind = source[kept], kind[kept]
        whole = best_count(chunk.cells)
        for start in range(0, len(source), CHUNK_ROWS):
            at, what = source[start : start + CHUNK_ROWS], kind[start : start + CHUNK_ROWS]
            cell = self.cell[at]
            yield Bounded(
                chunk=chunk,
                cell=cell,
                kind=what,
                count=whole[cell],
                bound_s=chunk.bounds(cell, table.bound.first[what], whole[cell]),
                tier1_bytes=self.tier1_bytes[at],
                tier2_bytes=self.tier2_bytes[at],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded(Table):
    """Cells with bound settings, for every number of micro-batches of the cell or for one."""

    chunk: CellBlock
    cell: Int[np.ndarray, "rows"]
    kind: Int[np.ndarray, "rows"]
    """Which bound setting."""
    count: Int[np.ndarray, "rows"]
    """Micro-batches per replica."""
    bound_s: Float[np.ndarray, "rows"]
    """No execution takes fewer seconds per sample."""
    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]
    single: bool = False
    """Each row has one number of micro-batches."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """See `engine.Columns`."""
        return (SIZES[-1], 1, SIZES[-1]) if self.single else SIZES

    def beaten(self) -> None:
        """Executions are counted where they are found to fit."""

    def refine(self) -> Iterator[Bounded]:
        """Every number of micro-batches by itself; rows that have one are priced."""
        cells = self.chunk.cells
        several = (cells.low[self.cell] < cells.high[self.cell]) & (not self.single)
        if several.any():
            yield from self.take(several)._each()
        self.take(~several)._price()

    def _each(self) -> Iterator[Bounded]:
        """The rows for every number of micro-batches of their cells."""
        cells, table = self.chunk.cells, self.chunk.table
        number = cells.layouts[self.cell]
        source = np.repeat(np.arange(self.rows), number)
        count = np.arange(len(source)) - np.repeat(np.cumsum(number) - number, number)
        count += cells.low[self.cell[source]]
        for start in range(0, len(source), CHUNK_ROWS):
            at, counts = source[start : start + CHUNK_ROWS], count[start : start + CHUNK_ROWS]
            yield Bounded(
                chunk=self.chunk,
                cell=self.cell[at],
                kind=self.kind[at],
                count=counts,
                bound_s=self.chunk.bounds(self.cell[at], table.bound.first[self.kind[at]], counts),
                tier1_bytes=self.tier1_bytes[at],
                tier2_bytes=self.tier2_bytes[at],
                single=True,
            )

    def _price(self) -> None:
        """Price all legal settings of the rows, and keep the answers."""
        if not self.rows:
            return
        chunk, run = self.chunk, self.chunk.run
        table, cells = chunk.table, chunk.cells
        source, setting = members(table.bound.of, self.kind, table.bound.size)
        cell = self.cell[source]
        kept = chunk.allowed[chunk.split[cell], table.networks.of[setting]]
        source, setting, cell = source[kept], setting[kept], cell[kept]
        count = self.count[source]
        columns = run.space.columns(table, cells.take(cell), setting, count)
        priced = price_for_search(
            run.space.app, run.space.system, columns, fixed=run.fixed, legal=True, book=run.relaxed.book
        )
        run.counts.priced += len(cell)
        run.incumbents.keep(
            Points(
                number=cells.first[cell] + (count - cells.low[cell]) * table.rows + setting,
                time_s=priced.total_time_s / columns.batch_size,
                tier1_bytes=priced.tier1_bytes,
                tier2_bytes=priced.tier2_bytes,
            )
        )


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
