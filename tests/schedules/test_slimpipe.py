"""SlimPipe: little more than one micro-batch per worker, whatever the depth, and a bubble cut by slices and chunks."""

from __future__ import annotations

import pytest

from meshwright.schedules import SCHEDULES, simulate
from meshwright.schedules.slimpipe import SlimPipe


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
