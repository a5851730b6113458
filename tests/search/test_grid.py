"""Rows in every way to reach experts, as the strategies that they stand for."""

from __future__ import annotations

import numpy as np

from meshwright.search.axes import way_columns
from meshwright.search.grid import COLUMNS, grid_degrees
from meshwright.search.legal_rows import build_grid
from meshwright.search.space import Space
from meshwright.specs import Workload
from tests.estimate.cases import MIXED


def test_strategies_say_of_each_row_what_its_way_says() -> None:
    workload = Workload(seq_len=1024, global_batch=8)
    about = way_columns()
    rows = build_grid(MIXED, workload, 8, Space(pins=(("pp", (1,)),)))
    assert (rows.ep > 1).any()
    assert about.shadowed.any()
    assert about.placed.any()
    grid = rows.in_ways(np.arange(len(about.shadowed)))
    spread = grid.ep > 1
    found = grid.strategies(workload)
    assert found.shadowed is not None
    assert found.placed is not None
    assert (found.shadowed == about.shadowed[grid.way]).all()
    assert (found.placed == about.placed[grid.way]).all()
    assert set(grid.way[spread].tolist()) == set(range(len(about.shadowed)))
    assert not grid.way[~spread].any()
    plain = grid.take((about.shadowed[grid.way] == 0) & ~about.placed[grid.way]).strategies(workload)
    assert plain.shadowed is None
    assert plain.placed is None


def test_columns_that_are_only_looked_up_are_narrow_and_widened_before_anybody_computes_with_them() -> None:
    grid = build_grid(MIXED, Workload(seq_len=1024, global_batch=8), 8, Space())
    assert grid.rows
    of_row = sum(getattr(grid, name).itemsize * getattr(grid, name)[0].size for name in COLUMNS)
    assert of_row <= 0.7 * sum(8 * getattr(grid, name)[0].size for name in COLUMNS)
    assert all(values.dtype == np.int64 for values in (*grid_degrees(grid).values(), grid.m))
    found = grid.in_ways(np.arange(2)).strategies(Workload(seq_len=1024, global_batch=8))
    assert {found.context.dtype, found.tp_overlap.dtype} == {np.dtype(np.int64)}
    assert grid.in_ways(np.arange(2)).way.dtype == grid.way.dtype
