"""DynaPipe: its order."""

from __future__ import annotations

from meshwright.schedules import SCHEDULES, simulate
from meshwright.schedules.named.dynapipe import DynaPipe


def test_the_limits_of_1f1b_give_1f1b() -> None:
    for p, m in ((1, 3), (3, 2), (4, 8), (8, 24)):
        assert DynaPipe().table(p, m).entries() == SCHEDULES["1f1b"].table(p, m).entries()


def test_a_limit_holds_and_costs_time() -> None:
    tight = DynaPipe(most=2)
    assert max(int(live.max()) for live in tight.in_flight(4, 12)) == 2
    assert simulate(tight.table(4, 12), tight.equal_times(4)).makespan_s > 15 * 3
    assert [found.fix for found in DynaPipe(most=0).problems(4, 8)] == ["most = 1"]
