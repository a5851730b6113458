"""Mario: recomputation costs little where workers would wait for gradients."""

from __future__ import annotations

from meshwright.schedules import Kind, simulate
from meshwright.schedules.named.mario import Mario
from meshwright.schedules.named.one_f_one_b import OneFOneB


def test_recomputation_in_waits_is_cheaper_than_within_backwards() -> None:
    for p, m in ((4, 8), (8, 16), (8, 24)):
        plain, full = (OneFOneB().equal_times(p, backward_s=backward_s) for backward_s in (2.0, 3.0))
        free_s, again_s = (simulate(OneFOneB().table(p, m), times).makespan_s for times in (plain, full))
        ahead_s, held_s = (
            simulate(one.table(p, m), one.equal_times(p, recompute_s=1.0)).makespan_s
            for one in (Mario(), Mario(plain=True))
        )
        assert free_s < ahead_s < held_s < again_s
        # All that a worker before the last one computes, reached and left by one micro-batch without recomputation.
        assert ahead_s >= 4 * m + 3


def test_the_last_worker_makes_nothing_again() -> None:
    table = Mario().table(3, 4)
    assert [int((table.kind[table.worker == r] == Kind.R).sum()) for r in range(3)] == [4, 4, 0]
    assert Mario(plain=True).peak_activations(4, 8) == (4, 3, 2, 1)
