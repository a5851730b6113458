"""MixPipe: what its reconstruction gives by injected micro-batches."""

from __future__ import annotations

import pytest

from meshwright.schedules import simulate
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.mixpipe import MixPipe


@pytest.mark.parametrize(
    ("p", "m", "inject", "makespan_s", "peak"),
    [
        (4, 4, 2, 16, 4),
        (4, 8, 2, 34, 4),
        (4, 8, 3, 29, 5),
        (8, 16, 4, 78, 8),
        (8, 16, 5, 65, 10),
        (8, 32, 5, 123, 10),
        (8, 32, 7, 110, 12),
    ],
)
def test_time_and_peak_by_injection(p: int, m: int, inject: int, makespan_s: float, peak: int) -> None:
    mixpipe = MixPipe(inject=inject)
    table = mixpipe.table(p, m)
    assert simulate(table, mixpipe.equal_times(p)).makespan_s == makespan_s
    assert max(int(live.sum(axis=1).max()) for live in live_vectors(table)) == peak


def test_constraints() -> None:
    assert [found.fix for found in MixPipe(inject=9).problems(8, 8)] == ["inject = 8"]
    assert [found.fix for found in MixPipe(inject=1).problems(8, 8)] == ["inject = 4"]
    assert [found.field for found in MixPipe().problems(5, 1)] == ["p", "m"]
