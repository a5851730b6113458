"""1F1B with DAPPLE's two warm-up policies."""

from __future__ import annotations

import pytest

from meshwright.schedules import SCHEDULES, simulate
from meshwright.schedules.named.one_f_one_b import OneFOneB


def test_pb_keeps_twice_the_micro_batches_less_one() -> None:
    schedule = OneFOneB(warmup="pb")
    assert [int(live.max()) for live in schedule.in_flight(4, 16)] == [7, 5, 3, 1]
    assert [int(live.max()) for live in schedule.in_flight(4, 4)] == [4, 4, 3, 1]
    order = "F0.0 F0.1 F0.2 F0.3 F0.4 B0.0 F0.5 B0.1 B0.2 B0.3 B0.4 B0.5"
    assert schedule.table(4, 6).entries()[1] == order.split()


def test_pa_is_plain_1f1b() -> None:
    assert OneFOneB(warmup="pa") == SCHEDULES["1f1b"]
    assert SCHEDULES["1f1b"].table(4, 4).entries()[2] == [
        "F0.0",
        "F0.1",
        "B0.0",
        "F0.2",
        "B0.1",
        "F0.3",
        "B0.2",
        "B0.3",
    ]


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 32)])
def test_pb_hides_slow_links(p: int, m: int) -> None:
    """Latency of half a forward: PA pays it twice per micro-batch in the steady phase, PB in fill and drain only."""
    pa, pb = OneFOneB(), OneFOneB(warmup="pb")
    times = pa.equal_times(p, transfer_s=0.5)
    plain, ahead = (simulate(schedule.table(p, m), times).makespan_s for schedule in (pa, pb))
    assert ahead == pytest.approx((m + p - 1) * 3 + 2 * (p - 1) * 0.5)
    assert plain > ahead


@pytest.mark.parametrize("backward_s", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 8), (5, 9), (8, 6), (8, 24)])
def test_both_policies_take_the_same_time_with_free_transfers(p: int, m: int, backward_s: float) -> None:
    for policy in ("pa", "pb"):
        schedule = OneFOneB(warmup=policy)
        times = schedule.equal_times(p, forward_s=1.0, backward_s=backward_s)
        makespan_s = simulate(schedule.table(p, m), times).makespan_s
        assert schedule.closed_form_s(p, m, 1, 1.0, backward_s) == pytest.approx(makespan_s, rel=1e-12)


def test_an_unknown_policy_names_the_two() -> None:
    assert [(found.field, found.fix) for found in OneFOneB(warmup="pc").problems(4, 8)] == [
        ("warmup", "warmup = pa or pb")
    ]
