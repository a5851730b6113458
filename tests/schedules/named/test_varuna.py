"""Varuna: published order and times, its recomputation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Kind, Timeline, Times, simulate
from meshwright.schedules.named.varuna import opportunistic


def test_order_of_the_third_worker_of_four() -> None:
    order = "F0.0 F0.1 F0.2 R0.0 B0.0 R0.1 B0.1 R0.2 B0.2 F0.3 R0.3 B0.3"
    assert SCHEDULES["varuna"].table(4, 4).entries()[2] == order.split()


@pytest.mark.parametrize(("m", "makespan_s"), [(4, 24.0), (5, 27.0), (8, 39.0)])
def test_time_of_four_workers(m: int, makespan_s: float) -> None:
    varuna = SCHEDULES["varuna"]
    assert simulate(varuna.table(4, m), varuna.equal_times(4, recompute_s=1.0)).makespan_s == makespan_s
    assert varuna.closed_form_s(4, m, 1, 1.0, 2.0) == makespan_s


def test_one_worker_recomputes_nothing() -> None:
    """m (f + b), whatever the ratio of the two."""
    varuna = SCHEDULES["varuna"]
    assert varuna.closed_form_s(1, 4, 1, 1.0, 2.5) == 14.0
    assert simulate(varuna.table(1, 4), varuna.equal_times(1, recompute_s=1.0)).makespan_s == 12.0


def test_a_backward_follows_its_recomputation_and_the_last_worker_has_none() -> None:
    table = SCHEDULES["varuna"].table(5, 13)
    again = (table.kind == Kind.R).nonzero()[0]
    assert (table.kind[again + 1] == Kind.B).all()
    assert (table.micro_batch[again + 1] == table.micro_batch[again]).all()
    assert set(table.worker[again].tolist()) == {0, 1, 2, 3}


def test_inputs_in_flight() -> None:
    assert [int(live.max()) for live in SCHEDULES["varuna"].in_flight(4, 8)] == [8, 6, 3, 1]


def jittered(p: int, m: int, sigma: float, transfer_s: float, seed: int) -> Times:
    """Durations of every task of its own, spread around forward 1, backward 2, recomputation 1."""
    rng = np.random.default_rng(seed)

    def around(seconds: float) -> np.ndarray:
        return seconds * np.exp(sigma * rng.standard_normal((p, 1, m)))

    return Times(
        forward_s=around(1.0),
        backward_s=around(2.0),
        recompute_s=around(1.0),
        transfer_s=transfer_s * rng.random((p, 1)),
        by_micro_batch=True,
    )


def ends(timeline: Timeline, kind: Kind) -> np.ndarray:
    """End of every task of a kind by worker and micro-batch."""
    table = timeline.table
    own = table.kind == kind
    by_task = np.lexsort((table.micro_batch[own], table.worker[own]))
    return timeline.end_s[own][by_task]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
def test_opportunism_keeps_the_order_when_gradients_are_on_time(p: int) -> None:
    varuna = SCHEDULES["varuna"]
    for m in (1, 2, 4, 5, 9, 24):
        table = varuna.table(p, m)
        assert opportunistic(table, varuna.equal_times(p, recompute_s=1.0)).entries() == table.entries()


@given(
    p=st.integers(1, 7),
    m=st.integers(1, 16),
    sigma=st.sampled_from([0.05, 0.3, 1.0]),
    transfer_s=st.sampled_from([0.0, 0.5, 4.0]),
    seed=st.integers(0, 10**6),
)
def test_opportunism_ends_no_forward_and_no_backward_later(
    p: int, m: int, sigma: float, transfer_s: float, seed: int
) -> None:
    times = jittered(p, m, sigma, transfer_s, seed)
    table = SCHEDULES["varuna"].table(p, m)
    static, dynamic = simulate(table, times), simulate(opportunistic(table, times), times)
    for kind in (Kind.F, Kind.B):
        assert (ends(dynamic, kind) <= ends(static, kind) + 1e-9).all()
    assert sorted(map(sorted, dynamic.table.entries())) == sorted(map(sorted, table.entries()))


def test_opportunism_runs_a_forward_while_a_gradient_is_on_a_slow_link() -> None:
    varuna = SCHEDULES["varuna"]
    times = varuna.equal_times(4, recompute_s=1.0, transfer_s=2.0)
    table = opportunistic(varuna.table(4, 8), times)
    assert table.entries() != varuna.table(4, 8).entries()
    assert simulate(table, times).makespan_s < simulate(varuna.table(4, 8), times).makespan_s
