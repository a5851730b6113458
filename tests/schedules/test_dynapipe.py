"""DynaPipe: its order, and micro-batches of unequal length."""

from __future__ import annotations

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, simulate
from meshwright.schedules.dynapipe import DynaPipe
from meshwright.schedules.packing import balance, ordered, pack, sample_order, uneven_makespan_s


def test_the_limits_of_1f1b_give_1f1b() -> None:
    for p, m in ((1, 3), (3, 2), (4, 8), (8, 24)):
        assert DynaPipe().table(p, m).entries() == SCHEDULES["1f1b"].table(p, m).entries()


def test_a_limit_holds_and_costs_time() -> None:
    tight = DynaPipe(most=2)
    assert max(int(live.max()) for live in tight.in_flight(4, 12)) == 2
    assert simulate(tight.table(4, 12), tight.equal_times(4)).makespan_s > 15 * 3
    assert [found.fix for found in DynaPipe(most=0).problems(4, 8)] == ["most = 1"]


def test_four_samples_that_joining_does_not_help() -> None:
    costs = (4.0, 4.0, 1.0, 1.0)
    packing = pack(4, lambda i, n: sum(costs[i:n]), p=3)
    assert packing.objective_s == 2 * 4 + 10


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), p=st.integers(1, 4), replicas=st.integers(1, 3))
def test_packing_is_the_best_of_all_cuts(lengths: list[int], p: int, replicas: int) -> None:
    lengths = sorted(lengths)
    count = len(lengths)

    def seconds(i: int, n: int) -> float:
        return 1.0 + (n - i) * lengths[n - 1] if (n - i) * lengths[n - 1] <= 20 else np.inf

    packing = pack(count, seconds, p, replicas=replicas)
    best = np.inf
    for cuts in product((False, True), repeat=count - 1):
        bounds = [0, *(k + 1 for k, cut in enumerate(cuts) if cut), count]
        parts = [seconds(i, n) for i, n in pairwise(bounds)]
        best = min(best, (p - 1) * max(parts) + sum(parts) / replicas)
    assert packing.objective_s == pytest.approx(best)


def test_a_sample_that_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match="sample 1 does not fit alone"):
        pack(3, lambda i, n: np.inf if i <= 1 < n else 1.0, p=2)


@given(seconds=st.lists(st.floats(0.0, 10.0), max_size=20), replicas=st.integers(1, 5))
def test_balance_deals_every_micro_batch_once(seconds: list[float], replicas: int) -> None:
    parts = balance(seconds, replicas)
    assert len(parts) == replicas
    assert sorted(k for part in parts for k in part) == list(range(len(seconds)))
    loads = [sum(seconds[k] for k in part) for part in parts]
    assert max(loads) - min(loads) <= max(seconds, default=0.0) + 1e-9


def test_balance_of_a_known_case() -> None:
    loads = sorted(sum((8, 7, 6, 5, 4)[k] for k in part) for part in balance((8, 7, 6, 5, 4), 2))
    assert loads == [14, 16]


@given(p=st.integers(1, 6), m=st.integers(1, 12))
def test_equal_micro_batches_take_the_simulated_time(p: int, m: int) -> None:
    table = DynaPipe().table(p, m)
    whole = simulate(table, DynaPipe().equal_times(p)).makespan_s
    assert uneven_makespan_s(table, np.ones((p, m)), np.full((p, m), 2.0)) == pytest.approx(whole)


def test_order_of_micro_batches_is_never_worse_than_rising() -> None:
    seconds = (1.0, 6.0, 1.0, 1.0, 5.0, 2.0)
    table = DynaPipe().table(4, 6)

    def makespan_s(order: tuple[int, ...]) -> float:
        scale = np.array([seconds[k] for k in order])
        return uneven_makespan_s(table, np.tile(scale, (4, 1)), np.tile(2 * scale, (4, 1)))

    order = ordered(seconds, makespan_s)
    assert sorted(order) == list(range(6))
    assert makespan_s(order) <= makespan_s((0, 2, 3, 5, 4, 1))


def test_samples_of_one_length_are_sorted() -> None:
    assert sample_order(np.array([[5], [1], [3], [1]])) == (1, 3, 2, 0)


@given(points=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6))
def test_samples_of_two_lengths_lie_on_a_short_way(points: list[tuple[int, int]]) -> None:
    lengths = np.array(points)

    def way(order: tuple[int, ...]) -> int:
        return int(np.abs(np.diff(lengths[list(order)], axis=0)).sum())

    order = sample_order(lengths)
    assert sorted(order) == list(range(len(points)))
    assert way(order) <= way(tuple(np.lexsort((lengths[:, 1], lengths[:, 0])).tolist()))
    assert way(order) <= 1.5 * min(way(other) for other in permutations(range(len(points))))
