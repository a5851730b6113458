from __future__ import annotations

import numpy as np
import pytest

from meshwright.planning.compose.sources.profiles.packing import packed
from meshwright.planning.compose.sources.profiles.seeds import seeds
from tests.planning.compose.sources.profiles.test_search import tiny_columns, tiny_costs


@pytest.mark.parametrize(("kinds", "shapes"), [(1, 3), (2, 40), (3, 400), (5, 3000)])
def test_fractions_are_the_linear_program_s(kinds: int, shapes: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(kinds)
    used = random.integers(0, 5, (shapes, kinds))
    used[:, 0] += used.sum(axis=1) == 0
    values = used @ random.random(kinds) * (1 + 0.2 * random.random(shapes))
    counts = random.integers(1, 50, kinds)
    best = -optimize.linprog(-values, A_ub=used.T, b_ub=counts, method="highs").fun
    packing = packed(values, used, counts)
    assert values[packing.rows] @ packing.amounts == pytest.approx(best)
    assert (packing.amounts @ used[packing.rows] <= counts + 1e-9).all()
    # The duals price every shape at no less than its value, and all devices at the optimum.
    assert (used @ packing.worth >= values * (1 - 1e-9)).all()
    assert packing.worth @ counts == pytest.approx(best)


def test_nothing_is_packed_where_nothing_has_value() -> None:
    used = np.array([[1, 0], [0, 2]])
    assert not len(packed(np.array([-1.0, 0.0]), used, np.array([4, 4])).rows)
    assert not len(packed(np.zeros(0), np.zeros((0, 2), int), np.array([4, 4])).rows)


def test_starts_fit_the_cluster_and_filled_ones_leave_no_room_for_their_shapes() -> None:
    columns, counts = tiny_columns(4, 4), np.array([4, 4])
    starts, full = seeds(columns, tiny_costs(4, 4), counts, 48, 10)
    assert 0 < len(starts) == len(full) <= 10
    for start, filled in zip(starts, full, strict=True):
        free = counts - sum(number * columns.used[row] for row, number in filled)
        assert (free >= 0).all()
        assert all(dict(filled)[row] >= number for row, number in start)
        assert not any((columns.used[row] <= free).all() for row, _ in filled)
