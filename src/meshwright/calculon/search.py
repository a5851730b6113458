"""The exact search of a Calculon space, as columns of the engine.

    cells x memory settings     legality and memory, exact; what does not fit leaves here and is counted
    x bound settings            a lower bound of the time; what the best and the front beat leaves here
    x all settings              priced, quickest bounds first

An answer is one of the quickest executions, or on the front of seconds per sample and memory of both tiers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from meshwright.budget import spent
from meshwright.calculon.answer import NETWORKS, TIER1, TIER2, ExecutionAnswer, SearchGoal, space_answer
from meshwright.calculon.axes import LARGEST
from meshwright.calculon.bound import Relaxed
from meshwright.calculon.layouts import Cells
from meshwright.calculon.legality import RULES
from meshwright.calculon.model import price_for_search
from meshwright.calculon.settings import SettingTable
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.tables import CHUNK_ROWS, CellBlock, FittingCells, SearchRun
from meshwright.search.engine import explore
from meshwright.search.incumbents import BestAndFront, SearchedPart
from meshwright.search.points import Points
from meshwright.search.result import SpaceCounts
from meshwright.shapes import Bool, Int

SEED_ROWS = 8192
"""Executions drawn and priced before the search, to find times to beat."""


def search(space: ExecutionSpace, goal: SearchGoal) -> ExecutionAnswer:
    """The best executions of a space, its front, and the certificate.

    Args:
        space: what to search.
        goal: what for.

    Returns:
        Executions with all their statistics.

    Raises:
        InfeasibleError: the space is empty.
    """
    started = time.perf_counter()
    space.require_executions()
    return space_answer(space, search_part(space, goal), started=started, fixed=goal.fixed)


def search_part(space: ExecutionSpace, goal: SearchGoal, block: slice | None = None) -> SearchedPart:
    """Search some splits of the processors.

    Parts prune by nothing found elsewhere, so that their counts do not depend on where and when they are searched.

    Args:
        space: what to search.
        goal: what for.
        block: positions in `space.degrees`; all by default.

    Returns:
        The part's best and front, and its counts.
    """
    run = SearchRun(
        space=space,
        relaxed=Relaxed(space, fixed=goal.fixed),
        incumbents=BestAndFront(goal.top, front=goal.front),
        counts=SpaceCounts(),
        fixed=goal.fixed,
    )
    if space.size > 4 * SEED_ROWS:
        _seed(run)
    stops = goal.stop_microbatch and space.axes.batches == LARGEST
    for number, (table, cells) in enumerate(_chunks(space, block, stops=stops)):
        if number and (limit := spent()):
            run.counts.stop(limit, 0.0)
            break
        fitting = _fitting(run, table, cells, stops=stops)
        if fitting is not None:
            explore(fitting, run.incumbents, run.counts)
    return SearchedPart(best=run.incumbents.best, front=run.incumbents.front, counts=run.counts)


def _seed(run: SearchRun) -> None:
    """Price executions drawn at random, to find times to beat."""
    space = run.space
    numbers = np.random.default_rng(0).integers(0, space.size, SEED_ROWS)
    columns = space.take(numbers)
    priced = price_for_search(space.app, space.system, columns, fixed=run.fixed, book=run.relaxed.book)
    points = Points(
        number=numbers,
        time_s=priced.total_time_s / columns.batch_size,
        tier1_bytes=priced.tier1_bytes,
        tier2_bytes=priced.tier2_bytes,
    )
    run.incumbents.learn(points.take(priced.ok))


def _chunks(space: ExecutionSpace, block: slice | None, *, stops: bool) -> Iterator[tuple[SettingTable, Cells]]:
    """Cells of one setting table, joined or cut to about CHUNK_ROWS rows of cells x memory settings."""
    waiting: list[Cells] = []
    table: SettingTable | None = None
    rows = 0
    for now, cells in space.cells(block):
        if table is not None and waiting and (now is not table or rows + cells.rows * now.memory.size > CHUNK_ROWS):
            yield from _cut(table, waiting, stops=stops)
            waiting, rows = [], 0
        table = now
        waiting.append(cells)
        rows += cells.rows * now.memory.size
    if table is not None and waiting:
        yield from _cut(table, waiting, stops=stops)


def _cut(table: SettingTable, parts: list[Cells], *, stops: bool) -> Iterator[tuple[SettingTable, Cells]]:
    cells = Cells.joined(parts)
    # Where micro-batches stop growing, all sizes of a split are looked at together.
    size = cells.rows if stops else max(1, CHUNK_ROWS // table.memory.size)
    for start in range(0, cells.rows, size):
        yield table, cells.take(slice(start, start + size))


def _fitting(run: SearchRun, table: SettingTable, cells: Cells, *, stops: bool) -> FittingCells | None:
    """The cells and memory settings that are legal and fit; all others are counted under the rule they break."""
    memory, system = table.memory, run.space.system
    count, ways = cells.rows, memory.size
    code = run.relaxed.broken(table, cells).reshape(-1)
    sound = np.flatnonzero(code == 0)
    cell, kind = np.divmod(sound, ways)
    need = run.relaxed.memory(run.space.columns(table, cells.take(cell), memory.first[kind], cells.low[cell]))
    split, allowed = _allowed(run.relaxed, table, cells)
    executions = np.bincount(memory.of, minlength=ways)
    legal = np.stack([np.bincount(memory.of[row[table.networks.of]], minlength=ways) for row in allowed])
    fit1 = need.tier1_bytes <= system.mem1.capacity_bytes
    fit = fit1 & (need.tier2_bytes <= system.mem2.capacity_bytes)
    some = legal[split[cell], kind] > 0
    alive = np.ones(count * ways, dtype=bool)
    if stops:
        alive[:] = False
        alive[sound[fit & some]] = True
        alive = until_nothing_fits(cells, alive.reshape(count, ways)).reshape(-1)
    _count_broken(run.counts, code, np.where(alive, np.outer(cells.layouts, executions).reshape(-1), 0))
    every = np.where(alive[sound], cells.layouts[cell] * executions[kind], 0)
    lawful = np.where(alive[sound], cells.layouts[cell] * legal[split[cell], kind], 0)
    run.counts.pruned[NETWORKS] += int((every - lawful).sum())
    run.counts.pruned[TIER1] += int(lawful[~fit1].sum())
    run.counts.pruned[TIER2] += int(lawful[fit1 & ~fit].sum())
    run.counts.feasible += int(lawful[fit].sum())
    row = np.flatnonzero(fit & some & alive[sound])
    if not len(row):
        return None
    chunk = CellBlock(run=run, table=table, cells=cells, split=split, allowed=allowed)
    return FittingCells.of(chunk, cell[row], kind[row], need.tier1_bytes[row], need.tier2_bytes[row])


def _allowed(
    relaxed: Relaxed, table: SettingTable, cells: Cells
) -> tuple[Int[np.ndarray, "cells"], Bool[np.ndarray, "splits assignments"]]:
    """Each cell's split of the processors, and which assignments of networks each split allows."""
    joined = cells.tensor_par * (1 << 32) + cells.pipeline_par
    _, first, split = np.unique(joined, return_index=True, return_inverse=True)
    return split.reshape(-1), np.stack([relaxed.allowed(table, cells, place) for place in first.tolist()])


def _count_broken(counts: SpaceCounts, code: Int[np.ndarray, "rows"], executions: Int[np.ndarray, "rows"]) -> None:
    """Count executions under the rule that their cell and memory setting break."""
    counts.space += int(executions.sum())
    for broken in np.unique(code[code > 0]).tolist():
        counts.pruned[RULES[broken].text] += int(executions[code == broken].sum())


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
