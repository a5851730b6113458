"""Bamboo: redundant forwards, and the order behind the loss of a worker."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.schedules import Kind, Times, simulate
from meshwright.schedules.equal_stages import run_schedule
from meshwright.schedules.named.bamboo import Bamboo


def test_redundant_forward_runs_before_each_backward() -> None:
    assert Bamboo().table(2, 2).entries() == [
        ["F0.0", "F0.1", "X0.0", "B0.0", "X0.1", "B0.1"],
        ["F0.0", "X0.0", "B0.0", "F0.1", "X0.1", "B0.1"],
    ]


def test_a_slower_successor_hides_the_redundant_forward() -> None:
    bamboo = Bamboo()
    table = bamboo.table(2, 20)
    forward_s, backward_s = np.array([[1.0], [4.0]]), np.array([[2.0], [8.0]])
    plain, redundant = (
        Times(forward_s=forward_s, backward_s=backward_s, recompute_s=np.array([[seconds], [0.0]]))
        for seconds in (0.0, 4.0)
    )
    assert simulate(table, redundant).makespan_s <= simulate(table, plain).makespan_s + 4.0


@pytest.mark.parametrize("lost", range(4))
def test_the_worker_before_the_lost_one_takes_its_stage_over(lost: int) -> None:
    table = Bamboo().failover_table(4, 6, lost)
    assert table.p == 3
    assert table.placement.stages == 4
    heir = (lost - 1) % 4
    both = table.placement.worker[lost]
    assert both == table.placement.worker[heir]
    assert Kind.X not in table.kinds


def test_a_step_behind_a_loss_takes_what_the_worker_with_two_stages_takes() -> None:
    behind = run_schedule("bamboo", 4, 12, lost=2)
    assert (behind.p, len(behind.to_dict()["workers"])) == (3, 3)
    assert 12 * 6 <= behind.timeline.makespan_s <= (12 + 3) * 6
    assert run_schedule("bamboo", 4, 12).timeline.makespan_s < behind.timeline.makespan_s


def test_a_loss_that_nobody_can_take_over_is_refused() -> None:
    with pytest.raises(InputError, match="no other worker holds the stage") as refused:
        run_schedule("varuna", 4, 12, lost=2)
    assert "plan --replan-from" in refused.value.problems[0].fix
    with pytest.raises(InputError, match="the workers count from 0 to 3"):
        run_schedule("bamboo", 4, 12, lost=7)


def test_constraints() -> None:
    assert [found.fix for found in Bamboo().problems(1, 4)] == ["p = 2"]
    with pytest.raises(InputError, match="lost = 4"):
        Bamboo().failover_table(4, 6, 4)
