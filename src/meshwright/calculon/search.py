"""The exact search of a Calculon space: every execution is priced, or shown unable to be among the answers.

    cells x memory settings     legality and memory, exact; what does not fit leaves here and is counted
    x bound settings            a lower bound of the time; what the best and the front beat leaves here
    x all settings              priced, quickest bounds first

An answer is one of the quickest executions, or on the front of seconds per sample and memory of both tiers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.answer import NETWORKS, TIER1, TIER2, Partial, SearchResult, result_of
from meshwright.calculon.axes import LARGEST
from meshwright.calculon.bound import Relaxed, best_count
from meshwright.calculon.front import NEARBY, Points, Shield
from meshwright.calculon.layouts import Cells
from meshwright.calculon.legality import RULES
from meshwright.calculon.model import price_for_search
from meshwright.calculon.settings import Projection, SettingTable
from meshwright.calculon.space import Space
from meshwright.shapes import Bool, Float, Int

CHUNK_ROWS = 1 << 19
"""Rows priced together: enough to spend no time on calls, few enough for the cache."""
FIRST_ROWS = 512
"""Bounds whose executions are priced first in a chunk, to find times to beat."""
SEED_ROWS = 8192
"""Executions drawn and priced before the search, for the same reason."""


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
        self.space, self.top, self.want_front, self.fixed = space, top, front, fixed
        self.stop_microbatch = stop_microbatch and space.axes.batches == LARGEST
        self.relaxed = Relaxed(space, fixed=fixed)
        self.part = Partial()
        self.known = Points.none()
        """Points drawn at first: they prune, and are found again like any other."""
        self.threshold_s = np.inf
        self.shield = Shield.of(Points.none())

    def run(self, block: slice | None) -> Partial:
        if self.space.size > 4 * SEED_ROWS:
            self._seed()
        for table, cells in self._chunks(block):
            self._chunk(table, cells)
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
        ).take(priced.ok)
        points = points.unique()
        self.known = points.front().joined(points.best(self.top)).unique()
        self._look()

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
            alive = _until_nothing_fits(cells, alive.reshape(count, ways)).reshape(-1)
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
            self._bound(table, cells, split, allowed, rows)

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

    def _bound(
        self,
        table: SettingTable,
        cells: Cells,
        split: Int[np.ndarray, "cells"],
        allowed: Bool[np.ndarray, "splits assignments"],
        rows: Rows,
    ) -> None:
        """Bound the executions of feasible rows, first as if nothing were offloaded, and settle what is not beaten."""
        bound_s = self._coarse(table, cells, split, allowed, rows)
        rows, bound_s = self._unbeaten(rows, bound_s)
        order = np.argsort(bound_s, kind="stable")
        rows, bound_s = rows.take(order), bound_s[order]
        size = FIRST_ROWS
        while len(rows.cell):
            self._fine(table, cells, split, allowed, rows.take(slice(0, size)))
            rows, bound_s = self._unbeaten(rows.take(slice(size, None)), bound_s[size:])
            size = CHUNK_ROWS // 8

    def _coarse(
        self,
        table: SettingTable,
        cells: Cells,
        split: Int[np.ndarray, "cells"],
        allowed: Bool[np.ndarray, "splits assignments"],
        rows: Rows,
    ) -> Float[np.ndarray, "rows"]:
        """Lower bounds of rows over all their settings, offload left out."""
        light, coarse = table.light, table.coarse
        ways = light.size
        group = rows.cell * ways + light.of[table.memory.first][rows.memory]
        wanted = np.flatnonzero(np.bincount(group, minlength=cells.rows * ways))
        source, kind = _members(light.of[coarse.first], wanted % ways, ways)
        kept = _possible(coarse, table.networks, allowed)[split[wanted[source] // ways], kind]
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
        hopeful = self._hopeful(bound_s, rows.tier1_bytes, rows.tier2_bytes)
        return rows.take(hopeful), bound_s[hopeful]

    def _fine(
        self,
        table: SettingTable,
        cells: Cells,
        split: Int[np.ndarray, "cells"],
        allowed: Bool[np.ndarray, "splits assignments"],
        rows: Rows,
    ) -> None:
        """Bound every setting of the rows, offload included, and settle it."""
        bound = table.bound
        source, kind = _members(table.memory.of[bound.first], rows.memory, table.memory.size)
        kept = _possible(bound, table.networks, allowed)[split[rows.cell[source]], kind]
        source, kind = source[kept], kind[kept]
        whole = best_count(cells)
        for start in range(0, len(source), CHUNK_ROWS):
            at, what = source[start : start + CHUNK_ROWS], kind[start : start + CHUNK_ROWS]
            cell = rows.cell[at]
            waiting = Waiting(
                cell=cell,
                kind=what,
                count=whole[cell],
                bound_s=self._bounds(table, cells, cell, what, whole[cell]),
                tier1_bytes=rows.tier1_bytes[at],
                tier2_bytes=rows.tier2_bytes[at],
            )
            self._settle(table, cells, split, allowed, waiting)

    def _bounds(
        self,
        table: SettingTable,
        cells: Cells,
        cell: Int[np.ndarray, "rows"],
        kind: Int[np.ndarray, "rows"],
        count: Int[np.ndarray, "rows"],
    ) -> Float[np.ndarray, "rows"]:
        self.part.bounded += len(cell)
        return self.relaxed.sample_s(table, cells.take(cell), table.bound.first[kind], count)

    def _settle(
        self,
        table: SettingTable,
        cells: Cells,
        split: Int[np.ndarray, "cells"],
        allowed: Bool[np.ndarray, "splits assignments"],
        waiting: Waiting,
    ) -> None:
        """Price what waits, lowest bounds first, until the rest is beaten."""
        waiting = waiting.take(self._hopeful(*waiting.needs))
        waiting = waiting.take(np.argsort(waiting.bound_s, kind="stable"))
        size = FIRST_ROWS
        while waiting.rows:
            now, waiting = waiting.take(slice(0, size)), waiting.take(slice(size, None))
            several = cells.low[now.cell] < cells.high[now.cell]
            if several.any():
                self._settle_each(table, cells, split, allowed, now.take(several))
                now = now.take(~several)
            self._price(table, cells, split, allowed, now)
            waiting = waiting.take(self._hopeful(*waiting.needs))
            size = CHUNK_ROWS // 8

    def _settle_each(
        self,
        table: SettingTable,
        cells: Cells,
        split: Int[np.ndarray, "cells"],
        allowed: Bool[np.ndarray, "splits assignments"],
        waiting: Waiting,
    ) -> None:
        """Bound every number of micro-batches by itself and price what may be an answer."""
        number = cells.layouts[waiting.cell]
        source = np.repeat(np.arange(waiting.rows), number)
        count = np.arange(len(source)) - np.repeat(np.cumsum(number) - number, number) + cells.low[waiting.cell[source]]
        for start in range(0, len(source), CHUNK_ROWS):
            piece = slice(start, start + CHUNK_ROWS)
            each = waiting.take(source[piece])
            bound_s = self._bounds(table, cells, each.cell, each.kind, count[piece])
            each = Waiting(
                cell=each.cell,
                kind=each.kind,
                count=count[piece],
                bound_s=bound_s,
                tier1_bytes=each.tier1_bytes,
                tier2_bytes=each.tier2_bytes,
            )
            each = each.take(self._hopeful(*each.needs))
            order = np.argsort(each.bound_s, kind="stable")
            for first in range(0, len(order), CHUNK_ROWS // 8):
                now = each.take(order[first : first + CHUNK_ROWS // 8])
                self._price(table, cells, split, allowed, now.take(self._hopeful(*now.needs)))

    def _hopeful(
        self,
        bound_s: Float[np.ndarray, "rows"],
        tier1_bytes: Float[np.ndarray, "rows"],
        tier2_bytes: Float[np.ndarray, "rows"],
    ) -> Bool[np.ndarray, "rows"]:
        """Which may still be among the best or on the front."""
        hopeful = bound_s * (1.0 - NEARBY) <= self.threshold_s
        if self.want_front:
            rest = np.flatnonzero(~hopeful)
            hopeful[rest] = ~self.shield.beats(bound_s[rest], tier1_bytes[rest], tier2_bytes[rest])
        return hopeful

    def _price(
        self,
        table: SettingTable,
        cells: Cells,
        split: Int[np.ndarray, "cells"],
        allowed: Bool[np.ndarray, "splits assignments"],
        waiting: Waiting,
    ) -> None:
        """Price all legal settings of what waits, and keep the answers."""
        if not waiting.rows:
            return
        source, setting = _members(table.bound.of, waiting.kind, table.bound.size)
        cell = waiting.cell[source]
        kept = allowed[split[cell], table.networks.of[setting]]
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
        self._keep(found)

    def _keep(self, found: Points) -> None:
        """Take executions in that are among the best or on the front."""
        quick = found.take(found.sample_s * (1.0 - NEARBY) <= self.threshold_s)
        if quick.rows:
            self.part.best = self.part.best.joined(quick).best(self.top)
        if self.want_front:
            beaten = self.shield.beats(found.sample_s, found.tier1_bytes, found.tier2_bytes)
            if not beaten.all():
                self.part.front = self.part.front.joined(found.take(~beaten)).front()
        self._look()

    def _look(self) -> None:
        """What everything is held against from now on."""
        best = self.known.joined(self.part.best).unique().best(self.top)
        if best.rows >= self.top:
            self.threshold_s = float(best.sample_s[-1])
        if self.want_front:
            self.shield = Shield.of(self.known.joined(self.part.front).front())


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


def _members(
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


def _possible(
    kinds: Projection, networks: Projection, allowed: Bool[np.ndarray, "splits assignments"]
) -> Bool[np.ndarray, "splits kinds"]:
    """Which kinds of settings some allowed assignment of networks has, per split."""
    return np.stack([np.bincount(kinds.of[row[networks.of]], minlength=kinds.size) > 0 for row in allowed])


def _until_nothing_fits(cells: Cells, some: Bool[np.ndarray, "cells ways"]) -> Bool[np.ndarray, "cells ways"]:
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
