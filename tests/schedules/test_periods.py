"""Codes of steps, and the stretches in which they come again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules.periods import phases, step_codes


@given(st.lists(st.tuples(*(st.sampled_from((0, 1, 5, most)) for most in (7, 2**20, 2**40, 2**41))), min_size=1))
def test_codes_are_equal_where_all_columns_are_however_large_their_numbers(rows: list[tuple[int, ...]]) -> None:
    codes = step_codes(*np.array(rows, np.int64).T)
    assert len(set(codes.tolist())) == len(set(rows))
    assert all((codes[0] == code) == (rows[0] == row) for code, row in zip(codes, rows, strict=True))


@pytest.mark.parametrize("ahead", range(1, 9))
@pytest.mark.parametrize("length", [3, 4, 7])
def test_a_stretch_repeats_from_its_first_node_to_its_last(ahead: int, length: int) -> None:
    """However many nodes of another kind stand in front of what repeats, and behind it."""
    periods, pattern = 40, np.arange(length)
    code = np.concatenate((np.arange(ahead) + 100, np.tile(pattern, periods), np.arange(3) + 200))
    ((first, period, found),) = phases(code, np.arange(len(code) + 1))
    assert (first, period, found) == (ahead, length, periods)
