"""Orders that a list scheduler makes come to repeat themselves, and longer steps are continued from there."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.schedules import schedule_named
from meshwright.schedules.base import _cached_program
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.simulate import Times, makespans
from meshwright.schedules.steady import steady_of


@pytest.mark.parametrize(
    ("name", "p", "v", "period"),
    [("chimera-halving", 4, 1, 4), ("mixpipe", 4, 1, 4), ("mixpipe", 8, 1, 8)],
)
def test_the_period_is_the_shortest_that_all_workers_have(name: str, p: int, v: int, period: int) -> None:
    schedule = schedule_named(name)
    assert schedule.period(p, v) == period
    found = steady_of(schedule.table(p, 20 * p, v))
    assert found is not None
    assert found.period == period


def test_an_order_without_a_period_is_made_whole() -> None:
    ftpipe = schedule_named("ftpipe-flush")
    assert steady_of(ftpipe.table(8, 128, 2)) is None
    doubling = schedule_named("chimera-doubling")
    assert doubling.period(8, 1) is None
    assert doubling.continued_from(8, 1000, 1) == 1000


@pytest.mark.parametrize(
    ("name", "p", "v"),
    [
        ("mixpipe", 6, 1),
        ("chimera-halving", 4, 1),
        ("slimpipe-segments16", 4, 2),
        ("slimpipe-segments8", 8, 1),
        ("interleaved-zb", 4, 3),
    ],
)
def test_long_steps_are_continued_and_end_as_the_whole_order_ends(name: str, p: int, v: int) -> None:
    schedule, rng = schedule_named(name), np.random.default_rng(7)
    base = schedule.continued_from(p, 1000 * p, v)
    for m in (base + p, 2 * base + 3 * p):
        if schedule.problems(p, m, v):
            continue
        whole = schedule.table(p, m, v)
        assert schedule.continued_from(p, m, v) < m
        assert _cached_program(schedule, p, m, v)[3] is not None
        forward_s, backward_s, transfer_s = rng.uniform(0.5, 2.0, (3, p, whole.v))
        times = Times(forward_s=forward_s, backward_s=backward_s, transfer_s=transfer_s / 9, weight_s=backward_s * 0.4)
        np.testing.assert_allclose(schedule.end_s(p, m, v, times), makespans(whole, times), rtol=1e-9)
        for some, every in zip(schedule.in_flight(p, m, v), live_vectors(whole), strict=True):
            np.testing.assert_array_equal(some, every)
