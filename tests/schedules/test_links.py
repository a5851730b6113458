"""Links: latency and bandwidth by pair of workers and direction."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, Times, simulate
from meshwright.schedules.links import Links


def test_each_direction_has_its_latency_and_bandwidth() -> None:
    table = SCHEDULES["gpipe"].table(2, 2)
    latency_s, bytes_per_s = np.array([[0.0, 0.5], [0.25, 0.0]]), np.array([[np.inf, 100.0], [50.0, np.inf]])
    links = Links(latency_s=latency_s, bytes_per_s=bytes_per_s)
    times = links.times(Times.equal(2), table.placement, activation_bytes=200.0, gradient_bytes=50.0)
    moved = simulate(table, times).transfers()
    took = dict(zip(moved.gradient.tolist(), (moved.end_s - moved.start_s).tolist(), strict=True))
    assert took == {False: 200 / 100 + 0.5, True: 50 / 50 + 0.25}
    assert np.diff(moved.start_s[~moved.gradient]).tolist() == [2.0]


def test_links_within_a_worker_cost_nothing() -> None:
    table = SCHEDULES["dualpipev"].table(2, 4, 2)
    links = Links(latency_s=np.full((2, 2), 7.0), bytes_per_s=np.full((2, 2), np.inf))
    times = links.times(Times.equal(2, 2, weight_s=1.0), table.placement, activation_bytes=1.0)
    assert simulate(table, times).makespan_s > simulate(table, Times.equal(2, 2, weight_s=1.0)).makespan_s + 7.0
    free = Links(latency_s=7.0 * np.eye(2), bytes_per_s=np.full((2, 2), np.inf))
    times = free.times(Times.equal(2, 2, weight_s=1.0), table.placement, activation_bytes=1.0)
    assert simulate(table, times).makespan_s == simulate(table, Times.equal(2, 2, weight_s=1.0)).makespan_s


def test_wrong_links_are_refused_together() -> None:
    placement = SCHEDULES["1f1b"].placement(2)
    with pytest.raises(InputError) as caught:
        Links(latency_s=-np.ones((3, 3)), bytes_per_s=np.zeros((3, 3))).times(Times.equal(2), placement, 1.0)
    assert [problem.field for problem in caught.value.problems] == [
        "latency_s",
        "bytes_per_s",
        "latency_s",
        "bytes_per_s",
    ]
