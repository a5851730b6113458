"""The exact search of a Calculon space: every execution is priced, or shown unable to be among the answers.

    cells x memory settings     legality and memory, exact; what does not fit leaves here and is counted
    x bound settings            a lower bound of the time; what the best and the front beat leaves here
    x all settings              priced, quickest bounds first

An answer is one of the quickest executions, or on the front of seconds per sample and memory of both tiers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from meshwright.calculon.answer import NETWORKS, TIER1, TIER2, Partial, SearchResult, result_of
from meshwright.calculon.axes import LARGEST
from meshwright.calculon.bound import Relaxed
from meshwright.calculon.candidates import Chunk, Rows, until_nothing_fits
from meshwright.calculon.front import Points
from meshwright.calculon.incumbents import Incumbents
from meshwright.calculon.layouts import Cells
from meshwright.calculon.legality import RULES
from meshwright.calculon.model import price_for_search
from meshwright.calculon.settings import SettingTable
from meshwright.calculon.settle import CHUNK_ROWS, Settlement
from meshwright.calculon.space import Space
from meshwright.shapes import Bool, Int

SEED_ROWS = 8192
"""Executions drawn and priced before the search, to find times to beat."""


def search(
    space: Space, *, top: int = 10, front: bool = True, stop_microbatch: bool = False, fixed: bool = False
) -> SearchResult:
    """The best executions of a space, its front, and the certificate.

    Args:
        space: what to search.
        top: how many of the best.
        front: also find the front of time per sample and memory of both tiers.
        stop_microbatch: leave out micro-batches larger than one with which nothing fits, as Calculon's `-m` does.
        fixed: with the model's known errors mended.

    Returns:
        Executions with all their statistics.

    Raises:
        InfeasibleError: the space is empty.
    """
    started = time.perf_counter()
    space.require_executions()
    part = search_part(space, top=top, front=front, stop_microbatch=stop_microbatch, fixed=fixed)
    return result_of(space, part, started=started, fixed=fixed)


def search_part(
    space: Space,
    *,
    top: int = 10,
    front: bool = True,
    stop_microbatch: bool = False,
    fixed: bool = False,
    block: slice | None = None,
) -> Partial:
    """Search some splits of the processors.

    Args:
        space: what to search.
        top, front, stop_microbatch, fixed: as `search` takes them.
        block: positions in `space.degrees`; all by default.

    Returns:
        The part's best and front, and its counts.
    """
    return _Search(space, top, front=front, stop_microbatch=stop_microbatch, fixed=fixed).run(block)


class _Search:
    """One run over a space or a part of it."""

    def __init__(self, space: Space, top: int, *, front: bool, stop_microbatch: bool, fixed: bool) -> None:
        self.space, self.fixed = space, fixed
        self.stop_microbatch = stop_microbatch and space.axes.batches == LARGEST
        self.relaxed = Relaxed(space, fixed=fixed)
        self.part = Partial()
        self.incumbents = Incumbents(top, front=front)
        self.settlement = Settlement(space, self.relaxed, self.incumbents, self.part, fixed=fixed)

    def run(self, block: slice | None) -> Partial:
        if self.space.size > 4 * SEED_ROWS:
            self._seed()
        for table, cells in self._chunks(block):
            self._chunk(table, cells)
        self.part.best, self.part.front = self.incumbents.best, self.incumbents.front
        return self.part

    def _seed(self) -> None:
        numbers = np.random.default_rng(0).integers(0, self.space.size, SEED_ROWS)
        columns = self.space.take(numbers)
        priced = price_for_search(self.space.app, self.space.system, columns, fixed=self.fixed, book=self.relaxed.book)
        points = Points(
            number=numbers,
            sample_s=priced.total_time_s / columns.batch_size,
            tier1_bytes=priced.tier1_bytes,
            tier2_bytes=priced.tier2_bytes,
        )
        self.incumbents.learn(points.take(priced.ok))

    def _chunks(self, block: slice | None) -> Iterator[tuple[SettingTable, Cells]]:
        """Cells of one setting table, joined or cut to about CHUNK_ROWS rows of cells x memory settings."""
        waiting: list[Cells] = []
        held: SettingTable | None = None
        rows = 0
        for table, cells in self.space.cells(block):
            if held is not None and (table is not held or rows + cells.rows * table.memory.size > CHUNK_ROWS):
                yield from self._cut(held, waiting)
                waiting, rows = [], 0
            held = table
            waiting.append(cells)
            rows += cells.rows * table.memory.size
        if held is not None:
            yield from self._cut(held, waiting)

    def _cut(self, table: SettingTable, parts: list[Cells]) -> Iterator[tuple[SettingTable, Cells]]:
        if not parts:
            return
        cells = Cells.joined(parts)
        # Where micro-batches stop growing, all sizes of a split are looked at together.
        size = cells.rows if self.stop_microbatch else max(1, CHUNK_ROWS // table.memory.size)
        for start in range(0, cells.rows, size):
            yield table, cells.take(slice(start, start + size))

    def _chunk(self, table: SettingTable, cells: Cells) -> None:
        memory = table.memory
        count, ways = cells.rows, memory.size
        code = self.relaxed.broken(table, cells).reshape(-1)
        sound = np.flatnonzero(code == 0)
        cell, kind = np.divmod(sound, ways)
        need = self.relaxed.memory(self.space.columns(table, cells.take(cell), memory.first[kind], cells.low[cell]))
        split, allowed = self._allowed(table, cells)
        executions = np.bincount(memory.of, minlength=ways)
        legal = np.stack([np.bincount(memory.of[row[table.networks.of]], minlength=ways) for row in allowed])
        system = self.space.system
        fit1 = need.tier1_bytes <= system.mem1.capacity_bytes
        fit = fit1 & (need.tier2_bytes <= system.mem2.capacity_bytes)
        some = legal[split[cell], kind] > 0
        alive = np.ones(count * ways, dtype=bool)
        if self.stop_microbatch:
            alive[:] = False
            alive[sound[fit & some]] = True
            alive = until_nothing_fits(cells, alive.reshape(count, ways)).reshape(-1)
        self._count(code, np.where(alive, np.outer(cells.layouts, executions).reshape(-1), 0))
        self._count_sound(
            np.where(alive[sound], cells.layouts[cell] * executions[kind], 0),
            np.where(alive[sound], cells.layouts[cell] * legal[split[cell], kind], 0),
            fit1,
            fit,
        )
        row = np.flatnonzero(fit & some & alive[sound])
        if len(row):
            rows = Rows(cell[row], kind[row], need.tier1_bytes[row], need.tier2_bytes[row])
            self.settlement.settle(Chunk(table, cells, split, allowed), rows)

    def _allowed(
        self, table: SettingTable, cells: Cells
    ) -> tuple[Int[np.ndarray, "cells"], Bool[np.ndarray, "splits assignments"]]:
        """Each cell's split of the processors, and which assignments of networks each split allows."""
        joined = cells.tensor_par * (1 << 32) + cells.pipeline_par
        _, first, split = np.unique(joined, return_index=True, return_inverse=True)
        return split.reshape(-1), np.stack([self.relaxed.allowed(table, cells, place) for place in first.tolist()])

    def _count(self, code: Int[np.ndarray, "rows"], executions: Int[np.ndarray, "rows"]) -> None:
        """Count executions under the rule that their cell and memory setting break."""
        self.part.space += int(executions.sum())
        for broken in np.unique(code[code > 0]).tolist():
            self.part.pruned[RULES[broken].text] += int(executions[code == broken].sum())

    def _count_sound(
        self,
        executions: Int[np.ndarray, "sound"],
        legal: Int[np.ndarray, "sound"],
        fit1: Bool[np.ndarray, "sound"],
        fit: Bool[np.ndarray, "sound"],
    ) -> None:
        """Count the others once: excluded by networks or memory, or feasible."""
        pruned = self.part.pruned
        pruned[NETWORKS] += int((executions - legal).sum())
        pruned[TIER1] += int(legal[~fit1].sum())
        pruned[TIER2] += int(legal[fit1 & ~fit].sum())
        self.part.feasible += int(legal[fit].sum())
