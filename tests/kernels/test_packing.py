"""Packing against every packing there is; the fullest rank against draws of ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernels.packing import best_fit, dealt_out, drawn_lengths, fewest_rows, fullest_of, least_rows

ROOM = 12
SMALL = st.lists(st.integers(1, ROOM), min_size=1, max_size=7).map(np.array)


def by_trying(lengths: np.ndarray, room: int) -> int:
    """Rows of the best of all assignments of sequences to rows."""
    for rows in range(1, len(lengths) + 1):
        for places in itertools.product(range(rows), repeat=len(lengths)):
            if np.bincount(places, lengths, rows).max() <= room:
                return rows
    raise AssertionError("every sequence fits a row of its own")


@settings(max_examples=50)
@given(SMALL.filter(lambda lengths: len(lengths) < 7))
def test_as_few_rows_as_the_best_of_all_packings(lengths: np.ndarray) -> None:
    rows = fewest_rows(lengths, ROOM)
    assert int(rows.max()) + 1 == by_trying(lengths, ROOM)


@given(SMALL)
def test_no_row_is_too_full_and_bounds_hold(lengths: np.ndarray) -> None:
    for rows in (fewest_rows(lengths, ROOM), best_fit(lengths, ROOM)):
        assert np.bincount(rows, lengths).max() <= ROOM
        assert least_rows(lengths, ROOM) <= int(rows.max()) + 1 <= len(lengths)
        assert set(rows.tolist()) == set(range(int(rows.max()) + 1))


def test_search_saves_a_row_where_best_fit_does_not() -> None:
    lengths = np.array([4, 4, 5, 5, 3, 3])
    assert (int(best_fit(lengths, 12).max()) + 1, int(fewest_rows(lengths, 12).max()) + 1) == (3, 2)
    even = np.array([3, 2, 3, 2, 6, 4, 3, 7, 6])
    assert (int(best_fit(even, 12).max()) + 1, int(fewest_rows(even, 12).max()) + 1) == (4, 3)


def test_sequences_of_just_the_smallest_length_count_as_small_ones() -> None:
    # 11 and 10 stand alone where 3 is the least that must find room, and so does the 3.
    assert least_rows(np.array([3, 11, 10]), 12) == 3


def test_drawn_sequences_come_in_their_proportions() -> None:
    found = drawn_lengths(np.array([10, 20, 40]), np.array([0.5, 0.3, 0.2]), 10)
    assert found.tolist() == [10] * 5 + [20] * 3 + [40] * 2


@pytest.mark.parametrize(("terms", "ranks"), [(1, 8), (4, 64), (32, 16), (200, 32)])
def test_the_fullest_rank_is_as_full_as_that_of_many_draws(terms: int, ranks: int) -> None:
    values, shares = (1.0, 2.0, 3.0, 30.0), (0.4, 0.3, 0.25, 0.05)
    random = np.random.default_rng(1)
    sums = random.choice(values, p=shares, size=(3_000_000 // (ranks * terms), ranks, terms)).sum(axis=2)
    expected = sums.max(axis=1).mean() / (terms * np.dot(values, shares))
    assert fullest_of(values, shares, terms, ranks) == pytest.approx(expected, rel=0.03)


def test_the_fuller_of_two_ranks() -> None:
    """Of two fair draws of 0 or 1 the larger is 1 in three cases of four: 3/4 over the mean of 1/2."""
    assert fullest_of((0.0, 1.0), (0.5, 0.5), 1, 2) == pytest.approx(1.5, rel=1e-3)


def test_nobody_waits_for_one_rank_or_for_equal_rows() -> None:
    assert fullest_of((1.0, 9.0), (0.5, 0.5), 4, 1) == 1.0
    assert fullest_of((5.0, 5.0), (0.5, 0.5), 4, 64) == 1.0
    assert fullest_of((1.0, 9.0), (0.5, 0.5), 1, 10_000) == pytest.approx(9.0 / 5.0, rel=1e-6)


def test_dealing_out_one_length_or_to_one_rank_leaves_nobody_behind() -> None:
    assert dealt_out((5.0,), (1.0,), 4, 64) == 1.0
    assert dealt_out((1.0, 9.0), (0.5, 0.5), 4, 1) == 1.0


def test_dealing_out_evens_ranks_out_and_cannot_split_a_row() -> None:
    values, shares = (1.0, 2.0, 3.0, 30.0), (0.4, 0.3, 0.25, 0.05)
    few, many = (dealt_out(values, shares, terms, 8) for terms in (8, 200))
    assert few > many >= 1.0
    assert many < 1.02 < fullest_of(values, shares, 200, 8)
    # Three of 64 rows are heavy: three ranks get one each, and no other heavy row beside it.
    assert 1.5 < few < 30 / 8 / 3.25 + 1.0


@given(SMALL)
def test_the_bound_is_that_of_every_whole_number_up_to_half_the_room(lengths: np.ndarray) -> None:
    def rows_for(small: int) -> int:
        alone = sum(length > ROOM - small for length in lengths)
        large = [length for length in lengths if ROOM / 2 < length <= ROOM - small]
        rest = sum(length for length in lengths if small <= length <= ROOM / 2)
        beside = sum(ROOM - length for length in large)
        return alone + len(large) + max(0, math.ceil((rest - beside) / ROOM))

    sums = math.ceil(lengths.sum() / ROOM)
    assert least_rows(lengths, ROOM) == max(sums, *(rows_for(small) for small in range(ROOM // 2 + 1)))
