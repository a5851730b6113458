"""Rows that are priced together: each in one block, and blocks no larger than one product of matrices takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from meshwright.library.models import spec
from meshwright.search.geometry import ShapeFactory
from meshwright.search.legal_rows import build_grid
from meshwright.search.priced_rows import FEW_PAIRS, priced_together
from meshwright.search.space import Space
from meshwright.specs.workload import Workload

SPACES = {
    "shapes by formula": Space(),
    "shapes that are sketched": Space(pins=(("schedule", ("zb-h1", "dualpipe")),), opened=("schedule",)),
}


@pytest.mark.parametrize("batch", [16, 4096])
@pytest.mark.parametrize("name", SPACES)
def test_every_row_is_in_one_block_of_its_stages(name: str, batch: int) -> None:
    model, workload, space = spec("llama-3.1-405b"), Workload(seq_len=4096, global_batch=batch), SPACES[name]
    grid = build_grid(model, workload, 512, space)
    factory = ShapeFactory.of(model, workload, space)
    blocks = list(priced_together(grid, factory))
    assert sorted(np.concatenate(blocks).tolist()) == list(range(grid.rows))
    assert all(np.unique(grid.pp[rows]).size == 1 for rows in blocks)

    def pairs(rows: np.ndarray) -> int:
        p = int(grid.pp[rows[0]])
        return len(rows) * sum(factory.count(p, int(m)) for m in np.unique(grid.m[rows]))

    several = [rows for rows in blocks if np.unique(grid.m[rows]).size > 1]
    assert bool(several) == (name == "shapes by formula")
    assert all(pairs(rows) <= FEW_PAIRS for rows in several)
    for left, right in pairwise(blocks):
        if several and grid.pp[left[0]] == grid.pp[right[0]]:
            more = right[grid.m[right] == grid.m[right[0]]]
            assert pairs(np.concatenate([left, more])) > FEW_PAIRS
