"""Path bounds as tables of counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES
from meshwright.schedules.bounds import window_lengths
from tests.schedules.cases import CASES, Case, name


@pytest.mark.parametrize("case", CASES, ids=name)
@given(seed=st.integers(0, 2**32 - 1))
def test_counts_by_class_give_the_same_bound(case: Case, seed: int) -> None:
    p, m, v = case.shapes[-1]
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, (p, case.schedule.table(p, m, v).v))
    classes[0, 0] = 2
    seconds = rng.random((5, 3))
    bound = case.schedule.path_bound(p, m, v)
    once, each = bound.by_class(classes)
    by_class = ((once + m * each) * seconds[: once.shape[1]]).sum(axis=(1, 2)).max()
    whole = bound.end_s(m, *(duration[classes] for duration in seconds))
    assert by_class == pytest.approx(whole.max())
    assert len(once) <= len(bound.once)


def test_a_slow_worker_sets_the_pace_of_1f1b() -> None:
    """bound = fill and drain of what lies before the slow worker + m times its own work."""
    forward_s, backward_s = np.ones((4, 1)), 2 * np.ones((4, 1))
    forward_s[1], backward_s[1] = 10, 20
    assert SCHEDULES["1f1b"].lower_bound_s(forward_s, backward_s, 0.0, 100) == pytest.approx(3 + 100 * 30)


def test_windows_are_powers_of_two_and_all_workers() -> None:
    assert [list(window_lengths(p)) for p in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
