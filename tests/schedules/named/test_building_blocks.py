"""V-Half and V-Min: reordering shortens the span and keeps the peak."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Schedule, ScheduleTable, simulate
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.v_half import VHalf
from meshwright.schedules.named.v_min import VMin


def peak(table: ScheduleTable) -> int:
    return max(int(vectors.sum(axis=1).max()) for vectors in live_vectors(table))


@pytest.mark.parametrize(
    ("schedule", "p", "m", "span_s", "most"),
    [(VHalf(), 4, 8, 26.5, 6), (VMin(), 4, 8, 29.5, 4), (VHalf(), 8, 24, 80.5, 10), (VMin(), 8, 24, 85.5, 8)],
)
def test_no_longer_and_no_larger_than_by_the_authors_code(
    schedule: Schedule, p: int, m: int, span_s: float, most: int
) -> None:
    table = schedule.table(p, m, 2)
    assert span_s - 1 <= simulate(table, schedule.equal_times(p, 2)).span_s <= span_s
    assert peak(table) == most


@pytest.mark.parametrize(
    ("p", "span_s", "most"), [(5, 51.5, 6), (6, 62.5, 6), (9, 95.5, 8), (12, 128.5, 10), (15, 161.5, 12)]
)
def test_forwards_that_are_not_next_fill_idle_slots_too(p: int, span_s: float, most: int) -> None:
    table = VMin().table(p, 3 * p, 2)
    assert simulate(table, VMin().equal_times(p, 2)).span_s == pytest.approx(span_s)
    assert peak(table) == most


@given(schedule=st.sampled_from([VHalf, VMin]), p=st.integers(1, 9), m=st.integers(1, 14))
@settings(max_examples=20)
def test_reordering_is_never_slower_and_never_larger(schedule: type, p: int, m: int) -> None:
    raw, better = schedule(raw=True).table(p, m, 2), schedule().table(p, m, 2)
    times = schedule().equal_times(p, 2)
    assert simulate(better, times).makespan_s <= simulate(raw, times).makespan_s + 1e-9
    assert peak(better) <= peak(raw)


@pytest.mark.parametrize(
    ("p", "first", "last"), [(3, (0, 5, 8, 13), (2, 3, 10, 11)), (4, (0, 7, 8, 15), (3, 4, 11, 12))]
)
def test_v_min_waits_two_slots_before_gradients_where_three_divides_the_workers(
    p: int, first: tuple[int, ...], last: tuple[int, ...]
) -> None:
    assert (VMin().offsets(p, 0), VMin().offsets(p, p - 1)) == (first, last)


def test_a_v_of_whole_backwards_holds_two_thirds_of_1f1b_and_takes_about_its_time() -> None:
    schedule, plain = SCHEDULES["v-1f1b"], SCHEDULES["1f1b"]
    # Peak and time of the authors' published code (1adf3b8).
    theirs = (
        (4, 4, 6, 19.5),
        (4, 8, 6, 31.5),
        (5, 10, 8, 39.0),
        (6, 12, 10, 47.0),
        (7, 7, 10, 36.0),
        (8, 24, 12, 88.5),
        (12, 24, 18, 98.0),
        (16, 48, 22, 181.5),
    )
    for p, m, peak, theirs_s in theirs:
        found_s = simulate(schedule.table(p, m, 2), schedule.equal_times(p, 2)).makespan_s
        assert max(schedule.peak_activations(p, m, 2)) == peak <= 2 * p * 0.84
        assert found_s <= theirs_s
        assert found_s <= simulate(plain.table(p, m, 1), plain.equal_times(p, 1)).makespan_s
