"""SlimPipe: little more than one micro-batch per worker, whatever the depth, and a bubble cut by slices and chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, simulate
from meshwright.schedules.named.slimpipe import SlimPipe


@pytest.mark.parametrize(("p", "m", "v", "slices"), [(4, 8, 1, 4), (4, 8, 2, 4), (8, 4, 2, 16), (8, 12, 1, 32)])
def test_slices_that_live_and_time(p: int, m: int, v: int, slices: int) -> None:
    schedule = SlimPipe(segments=slices)
    chunks = 2 if v > 1 else 1
    assert schedule.peak_activations(p, m, v) == tuple(slices * v + chunks * (p - 1 - r) for r in range(p))
    found_s = simulate(schedule.table(p, m, v), schedule.equal_times(p, v)).makespan_s
    assert found_s == pytest.approx(3 * (m + (p - 1) / (slices * v)))


def test_as_many_slices_as_keep_next_chunks_fed() -> None:
    (problem,) = SCHEDULES["slimpipe"].problems(8, 4, 2)
    assert (problem.field, problem.fix) == ("segments", "segments = 8, or v = 1")
    assert not SlimPipe(segments=8).problems(8, 4, 2)


def test_workers_that_are_one_slice_apart_even_what_they_attend_to() -> None:
    # Four workers with slices 0 to 3 attend to 1/2, 3/2, 5/2 and 7/2 slices of keys, 2 each: the last gives 3/2 away.
    assert SlimPipe(segments=4).shared_keys(4) == (1.0, 1.5)
    # Three with {0, 3, 2}, {1, 0, 3}, {2, 1, 0} and {3, 2, 1} of four: 4/3, 5/3, 1 and 1 slices are given, first and
    # second by or to two others.
    shared = SlimPipe(segments=4).shared_keys(3)
    assert shared is not None
    assert shared == pytest.approx((1.5, 1.25))


@given(p=st.integers(2, 12), slices=st.integers(2, 24))
def test_no_worker_gives_more_than_the_latest_slice_has_over_the_mean(p: int, slices: int) -> None:
    shared = SlimPipe(segments=slices).shared_keys(p)
    assert shared is not None
    most = slices - 1 - (min(p, slices) - 1) / 2
    assert 0 < shared.keys <= most + 1e-9
    if p % slices == 0:
        assert shared.keys == pytest.approx((slices - 1) / 2)
    assert 1 <= shared.queries <= p - 1


def test_one_worker_or_whole_sequences_share_nothing() -> None:
    assert SlimPipe(segments=4).shared_keys(1) is None
    assert SlimPipe(segments=1).shared_keys(4) is None
