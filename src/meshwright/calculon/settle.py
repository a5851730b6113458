"""The last two steps of a search: executions that fit are bounded, and priced where their bounds are not beaten."""

from __future__ import annotations

import numpy as np

from meshwright.calculon.answer import Partial
from meshwright.calculon.bound import Relaxed, best_count
from meshwright.calculon.candidates import Chunk, Rows, Waiting, members
from meshwright.calculon.front import Points
from meshwright.calculon.incumbents import Incumbents
from meshwright.calculon.model import price_for_search
from meshwright.calculon.space import Space
from meshwright.shapes import Float, Int

CHUNK_ROWS = 1 << 19
"""Rows bounded together: enough to spend no time on calls, few enough for memory."""
FIRST_ROWS = 512
"""Bounds whose executions are priced first in a chunk, to find times to beat."""


class Settlement:
    """Settles executions that fit: beaten by their bounds, or priced."""

    def __init__(self, space: Space, relaxed: Relaxed, incumbents: Incumbents, part: Partial, *, fixed: bool) -> None:
        self.space, self.relaxed, self.incumbents, self.part, self.fixed = space, relaxed, incumbents, part, fixed

    def settle(self, chunk: Chunk, rows: Rows) -> None:
        """Bound the executions of feasible rows, first as if nothing were offloaded, and settle what is not beaten."""
        bound_s = self._coarse(chunk, rows)
        rows, bound_s = self._unbeaten(rows, bound_s)
        order = np.argsort(bound_s, kind="stable")
        rows, bound_s = rows.take(order), bound_s[order]
        size = FIRST_ROWS
        while len(rows.cell):
            self._fine(chunk, rows.take(slice(0, size)))
            rows, bound_s = self._unbeaten(rows.take(slice(size, None)), bound_s[size:])
            size = CHUNK_ROWS // 8

    def _coarse(self, chunk: Chunk, rows: Rows) -> Float[np.ndarray, "rows"]:
        """Lower bounds of rows over all their settings, offload left out."""
        table, cells = chunk.table, chunk.cells
        light, coarse = table.light, table.coarse
        ways = light.size
        group = rows.cell * ways + light.of[table.memory.first][rows.memory]
        wanted = np.flatnonzero(np.bincount(group, minlength=cells.rows * ways))
        source, kind = members(light.of[coarse.first], wanted % ways, ways)
        kept = chunk.possible(coarse)[chunk.split[wanted[source] // ways], kind]
        source, kind = source[kept], kind[kept]
        cell, whole = wanted[source] // ways, best_count(cells)
        least = np.full(cells.rows * ways, np.inf)
        for start in range(0, len(cell), CHUNK_ROWS):
            piece = slice(start, start + CHUNK_ROWS)
            at, what = cell[piece], coarse.first[kind[piece]]
            self.part.bounded += len(at)
            found = self.relaxed.sample_s(table, cells.take(at), what, whole[at], offload=False)
            np.minimum.at(least, wanted[source[piece]], found)
        return least[group]

    def _unbeaten(self, rows: Rows, bound_s: Float[np.ndarray, "rows"]) -> tuple[Rows, Float[np.ndarray, "left"]]:
        """The rows that may still hold answers."""
        hopeful = self.incumbents.hopeful(bound_s, rows.tier1_bytes, rows.tier2_bytes)
        return rows.take(hopeful), bound_s[hopeful]

    def _fine(self, chunk: Chunk, rows: Rows) -> None:
        """Bound every setting of the rows, offload included, and settle it."""
        table, bound = chunk.table, chunk.table.bound
        source, kind = members(table.memory.of[bound.first], rows.memory, table.memory.size)
        kept = chunk.possible(bound)[chunk.split[rows.cell[source]], kind]
        source, kind = source[kept], kind[kept]
        whole = best_count(chunk.cells)
        for start in range(0, len(source), CHUNK_ROWS):
            at, what = source[start : start + CHUNK_ROWS], kind[start : start + CHUNK_ROWS]
            cell = rows.cell[at]
            waiting = Waiting(
                cell=cell,
                kind=what,
                count=whole[cell],
                bound_s=self._bounds(chunk, cell, what, whole[cell]),
                tier1_bytes=rows.tier1_bytes[at],
                tier2_bytes=rows.tier2_bytes[at],
            )
            self._price_hopeful(chunk, waiting)

    def _bounds(
        self,
        chunk: Chunk,
        cell: Int[np.ndarray, "rows"],
        kind: Int[np.ndarray, "rows"],
        count: Int[np.ndarray, "rows"],
    ) -> Float[np.ndarray, "rows"]:
        self.part.bounded += len(cell)
        table = chunk.table
        return self.relaxed.sample_s(table, chunk.cells.take(cell), table.bound.first[kind], count)

    def _price_hopeful(self, chunk: Chunk, waiting: Waiting) -> None:
        """Price what waits, lowest bounds first, until the rest is beaten."""
        waiting = waiting.take(self.incumbents.hopeful(*waiting.needs))
        waiting = waiting.take(np.argsort(waiting.bound_s, kind="stable"))
        cells, size = chunk.cells, FIRST_ROWS
        while waiting.rows:
            now, waiting = waiting.take(slice(0, size)), waiting.take(slice(size, None))
            several = cells.low[now.cell] < cells.high[now.cell]
            if several.any():
                self._price_each(chunk, now.take(several))
                now = now.take(~several)
            self._price(chunk, now)
            waiting = waiting.take(self.incumbents.hopeful(*waiting.needs))
            size = CHUNK_ROWS // 8

    def _price_each(self, chunk: Chunk, waiting: Waiting) -> None:
        """Bound every number of micro-batches by itself and price what may be an answer."""
        number = chunk.cells.layouts[waiting.cell]
        source = np.repeat(np.arange(waiting.rows), number)
        count = np.arange(len(source)) - np.repeat(np.cumsum(number) - number, number)
        count += chunk.cells.low[waiting.cell[source]]
        for start in range(0, len(source), CHUNK_ROWS):
            piece = slice(start, start + CHUNK_ROWS)
            each = waiting.take(source[piece])
            bound_s = self._bounds(chunk, each.cell, each.kind, count[piece])
            each = Waiting(
                cell=each.cell,
                kind=each.kind,
                count=count[piece],
                bound_s=bound_s,
                tier1_bytes=each.tier1_bytes,
                tier2_bytes=each.tier2_bytes,
            )
            each = each.take(self.incumbents.hopeful(*each.needs))
            order = np.argsort(each.bound_s, kind="stable")
            for first in range(0, len(order), CHUNK_ROWS // 8):
                now = each.take(order[first : first + CHUNK_ROWS // 8])
                self._price(chunk, now.take(self.incumbents.hopeful(*now.needs)))

    def _price(self, chunk: Chunk, waiting: Waiting) -> None:
        """Price all legal settings of what waits, and keep the answers."""
        if not waiting.rows:
            return
        table, cells = chunk.table, chunk.cells
        source, setting = members(table.bound.of, waiting.kind, table.bound.size)
        cell = waiting.cell[source]
        kept = chunk.allowed[chunk.split[cell], table.networks.of[setting]]
        source, setting, cell = source[kept], setting[kept], cell[kept]
        count = waiting.count[source]
        columns = self.space.columns(table, cells.take(cell), setting, count)
        priced = price_for_search(
            self.space.app, self.space.system, columns, fixed=self.fixed, legal=True, book=self.relaxed.book
        )
        self.part.priced += len(cell)
        found = Points(
            number=cells.first[cell] + (count - cells.low[cell]) * table.rows + setting,
            sample_s=priced.total_time_s / columns.batch_size,
            tier1_bytes=priced.tier1_bytes,
            tier2_bytes=priced.tier2_bytes,
        )
        self.incumbents.keep(found)
