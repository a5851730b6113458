"""Varuna: published order and times, its recomputation."""

from __future__ import annotations

import pytest

from meshwright.schedules import SCHEDULES, Kind, simulate


def test_order_of_the_third_worker_of_four() -> None:
    order = "F0.0 F0.1 F0.2 R0.0 B0.0 R0.1 B0.1 R0.2 B0.2 F0.3 R0.3 B0.3"
    assert SCHEDULES["varuna"].table(4, 4).entries()[2] == order.split()


@pytest.mark.parametrize(("m", "makespan_s"), [(4, 24.0), (5, 27.0), (8, 39.0)])
def test_time_of_four_workers(m: int, makespan_s: float) -> None:
    varuna = SCHEDULES["varuna"]
    assert simulate(varuna.table(4, m), varuna.equal_times(4, recompute_s=1.0)).makespan_s == makespan_s
    assert varuna.closed_form_s(4, m, 1, 1.0, 2.0) == makespan_s


def test_a_backward_follows_its_recomputation_and_the_last_worker_has_none() -> None:
    table = SCHEDULES["varuna"].table(5, 13)
    again = (table.kind == Kind.R).nonzero()[0]
    assert (table.kind[again + 1] == Kind.B).all()
    assert (table.micro_batch[again + 1] == table.micro_batch[again]).all()
    assert set(table.worker[again].tolist()) == {0, 1, 2, 3}


def test_inputs_in_flight() -> None:
    assert [int(live.max()) for live in SCHEDULES["varuna"].in_flight(4, 8)] == [8, 6, 3, 1]
