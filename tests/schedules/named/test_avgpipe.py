"""AvgPipe: advanced forwards, transfers they hide, several pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.schedules import SCHEDULES, simulate
from meshwright.schedules.named.avgpipe import AvgPipe


def test_limits_are_1f1b_and_all_forwards_first() -> None:
    assert AvgPipe(extra=0).table(4, 8).entries() == SCHEDULES["1f1b"].table(4, 8).entries()
    first = AvgPipe(extra=8).table(4, 8).entries()[3]
    assert first == [f"F0.{unit}" for unit in range(8)] + [f"B0.{unit}" for unit in range(8)]


def test_peaks_grow_by_the_advance() -> None:
    assert [int(live.max()) for live in AvgPipe(extra=1).in_flight(4, 8)] == [5, 4, 3, 2]


def test_each_advanced_forward_saves_two_latencies_of_the_step() -> None:
    times = SCHEDULES["avgpipe"].equal_times(8, transfer_s=0.2)
    spans = [simulate(AvgPipe(extra=extra).table(8, 64), times).makespan_s for extra in range(4)]
    assert np.diff(spans) == pytest.approx([-0.4] * 3)


def test_pipelines_take_turns_on_their_workers() -> None:
    two = AvgPipe(extra=0, pipelines=2)
    assert two.table(2, 4).entries()[0] == ["F0.0", "F0.1", "B0.0", "F1.0", "B0.1", "F1.1", "B1.0", "B1.1"]
    assert [two.drains(4, m) for m in (4, 6, 8)] == [True, False, False]
    assert two.worker_weight_copies(2, 4) == (3, 3)
    assert not two.exact_semantics


@pytest.mark.parametrize(
    ("schedule", "m", "fix"),
    [
        (AvgPipe(extra=-1), 8, "extra = 0"),
        (AvgPipe(pipelines=3), 8, "m = 6 or 9"),
        (AvgPipe(pipelines=0), 8, "pipelines = 1"),
    ],
)
def test_constraints(schedule: AvgPipe, m: int, fix: str) -> None:
    assert [found.fix for found in schedule.problems(4, m)] == [fix]


def test_one_worker_has_no_transfers_to_run_ahead_of() -> None:
    assert [found.fix for found in AvgPipe(extra=0).problems(1, 8)] == ["p = 2 or more, or schedule 1f1b"]
