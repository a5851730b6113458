"""The price of executions: all 96 statistics, or only what a search needs.

Distinct blocks are priced once, then rows are composed in parts that fit a processor's cache, on all its cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.acceptance import reject_factored
from meshwright.calculon.batch import batch, statistics
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.factored import FactoredRows
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.legality import MEMORY_TIER1, MEMORY_TIER2, reject
from meshwright.calculon.memory import spaces
from meshwright.calculon.price_factored import Prepare, price_factored
from meshwright.calculon.rows import Book, ExecutionRows, Prepared, prepare
from meshwright.calculon.statistics import STATISTICS, CalculonColumns
from meshwright.search.parts import in_parts
from meshwright.shapes import Bool, Float, Int

MANY_ROWS = 1 << 19
"""Executions from which on it pays to look for the layouts and settings that they share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchColumns:
    """What a search asks of each execution."""

    ok: Bool[np.ndarray, "rows"]
    reason: Int[np.ndarray, "rows"]
    """Code of `legality.RULES`; 0 where ok."""
    total_time_s: Float[np.ndarray, "rows"]
    """Seconds per batch; infinite where not legal (finite where only memory is short)."""
    sample_rate: Float[np.ndarray, "rows"]
    """Samples per second; 0 where not legal."""
    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]
    """Memory needed per processor in each tier; infinite where not legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryColumns:
    """Memory alone: it depends on neither networks nor overlap of data-parallel traffic."""

    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]


def price(app: Application, system: System, columns: ExecutionColumns, *, fixed: bool = False) -> CalculonColumns:
    """All 96 statistics of every execution, with its acceptance and the reason of its rejection.

    Args:
        app: the application.
        system: the system.
        columns: the executions; legal or not.
        fixed: whether to correct the errors of the original that the manual lists.

    Returns:
        One row per execution. Rejected rows' statistics are NaN; rows rejected for memory keep them.
    """
    reason = _broken(app, system, columns)
    legal = np.flatnonzero(reason == 0)
    all_legal = legal.size == columns.rows
    chosen = columns if all_legal else columns.take(legal)
    values = (
        np.empty((len(STATISTICS), columns.rows)) if all_legal else np.full((len(STATISTICS), columns.rows), np.nan)
    )
    place = {name: row for row, name in enumerate(STATISTICS)}
    if legal.size:
        prepared = prepare(app, system, chosen, fixed=fixed)

        def one(part: slice) -> None:
            rows = ExecutionRows(prepared, chosen.take(part), part)
            where = part if all_legal else legal[part]
            for name, value in statistics(rows):
                values[place[name], where] = value

        in_parts(chosen.rows, one)
    found = dict(zip(STATISTICS, values, strict=True))
    _reject_for_memory(system, reason, found["proc_mem_tier1_cap_req"], found["proc_mem_tier2_cap_req"])
    return CalculonColumns(ok=reason == 0, reason=reason, values=found)


def price_for_search(
    app: Application,
    system: System,
    columns: ExecutionColumns,
    *,
    fixed: bool = False,
    legal: bool = False,
    book: Book | None = None,
) -> SearchColumns:
    """Acceptance, batch time and memory of every execution: `price` without what no search reads.

    The numbers are those of `price`, bit for bit. Blocks are priced once per distinct block (tensor degree,
    micro-batch, datatype, recompute ...), then composed per row; give it many thousands of rows at once.

    Args:
        app: the application.
        system: the system.
        columns: the executions.
        fixed: repair the errors of the original.
        legal: whether the rows are known to break no rule, memory aside; saves looking.
        book: blocks that are priced already, all of the rows' among them.
    """

    def priced(rows: ExecutionColumns) -> Prepared:
        return book.prepare(system, rows) if book else prepare(app, system, rows, fixed=fixed)

    shared = _shared(columns)
    reason = np.zeros(columns.rows, dtype=np.int8)
    if not legal:
        found = reject_factored(app, system, shared) if shared else None
        reason = _broken(app, system, columns) if found is None else found
    accepted = np.flatnonzero(reason == 0)
    if accepted.size == columns.rows:
        total, tier1, tier2 = price_factored(shared, priced) if shared else _price_rows(columns, priced)
    else:
        # Combinations are priced whole, so those of rejected executions must not be among them.
        chosen = columns.take(accepted)
        shared = _shared(chosen)
        needs = price_factored(shared, priced) if shared else _price_rows(chosen, priced)
        total, tier1, tier2 = (_spread(need, accepted, columns.rows) for need in needs)
    _reject_for_memory(system, reason, tier1, tier2)
    return SearchColumns(
        ok=reason == 0,
        reason=reason,
        total_time_s=total,
        sample_rate=columns.batch_size / total,
        tier1_bytes=tier1,
        tier2_bytes=tier2,
    )


def _shared(columns: ExecutionColumns) -> FactoredRows | None:
    return FactoredRows.of(columns) if columns.rows >= MANY_ROWS else None


def _price_rows(columns: ExecutionColumns, prepare_rows: Prepare) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `price_factored` answers, row by row."""
    total, tier1, tier2 = (np.empty(columns.rows) for _ in range(3))
    if not columns.rows:
        return total, tier1, tier2
    prepared = prepare_rows(columns)

    def one(part: slice) -> None:
        rows = ExecutionRows(prepared, columns.take(part), part)
        memory = spaces(rows)
        total[part], tier1[part], tier2[part] = batch(rows).total_s, memory.tier1, memory.tier2

    in_parts(columns.rows, one)
    return total, tier1, tier2


def _spread(values: np.ndarray, places: np.ndarray, rows: int) -> np.ndarray:
    """Values at their places, infinite elsewhere."""
    found = np.full(rows, np.inf)
    found[places] = values
    return found


def price_memory(
    app: Application, system: System, columns: ExecutionColumns, *, fixed: bool = False, book: Book | None = None
) -> MemoryColumns:
    """Memory of both tiers, for rows that `legality.reject` accepts; no times.

    Reads every key but the three networks and data_par_overlap, so a search prices it once per projection.
    """
    tier1, tier2 = np.empty(columns.rows), np.empty(columns.rows)
    if columns.rows:
        prepared = book.prepare(system, columns) if book else prepare(app, system, columns, fixed=fixed)

        def one(part: slice) -> None:
            memory = spaces(ExecutionRows(prepared, columns.take(part), part))
            tier1[part] = memory.tier1
            tier2[part] = memory.tier2

        in_parts(columns.rows, one)
    return MemoryColumns(tier1_bytes=tier1, tier2_bytes=tier2)


def _broken(app: Application, system: System, columns: ExecutionColumns) -> Int[np.ndarray, "rows"]:
    """`reject` in parts."""
    reason = np.empty(columns.rows, dtype=np.int8)

    def one(part: slice) -> None:
        reason[part] = reject(app, system, columns.take(part))

    in_parts(columns.rows, one)
    return reason


def _reject_for_memory(system: System, reason: np.ndarray, tier1: np.ndarray, tier2: np.ndarray) -> None:
    legal = reason == 0
    reason[legal & (tier1 > system.mem1.capacity_bytes)] = MEMORY_TIER1
    reason[(reason == 0) & (tier2 > system.mem2.capacity_bytes)] = MEMORY_TIER2
