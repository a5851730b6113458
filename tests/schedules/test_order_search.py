"""The order that a search finds, against every order that its rules make."""

from __future__ import annotations

from itertools import product

import pytest

from meshwright.schedules import SCHEDULES
from meshwright.schedules.list_scheduling import Work
from meshwright.schedules.order_search import Options, greedy_options, ordered_by, search_orders, warmup_options


def work_of(forward_s: list[float], *, split: bool, latency_s: float = 0.0) -> Work:
    stages = len(forward_s)
    return Work(
        placement=SCHEDULES["1f1b"].placement(stages, 1),
        micro_batches=(6,),
        forward_s=forward_s,
        gradient_s=[second if split else 2 * second for second in forward_s],
        weight_s=forward_s if split else None,
        latency_s=[latency_s] * stages,
    )


def options_of(work: Work) -> list[Options]:
    split = work.weight_s is not None
    return greedy_options(warmup_options(work, (0.0, 1.0)), split=split)


@pytest.mark.parametrize(
    ("forward_s", "split", "latency_s"),
    list(product([[1.0, 1.0, 1.0], [1.0, 3.0, 1.0, 2.0], [4.0, 1.0]], [False, True], [0.0, 0.5])),
)
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_no_slower_than_any_rule(forward_s: list[float], split: bool, latency_s: float, turned: bool) -> None:
    work = work_of(forward_s, split=split, latency_s=latency_s)
    options = options_of(work)[:: -1 if turned else 1]
    least_s = min(ordered_by(work, choice.rule(), "").makespan_s for choice in options)
    assert search_orders([work], [options]).makespan_s <= least_s
    # With a bound that the quickest rule reaches nothing is improved: what is left is that rule's order.
    assert search_orders([work], [options], least_s).makespan_s == least_s


def test_of_equal_orders_the_first_rule_is_named() -> None:
    """One stage has one way to be quick."""
    work = work_of([1.0], split=False)
    options = [Options(warmups=(count,), wait=0.0, eager=False) for count in (2, 1, 3)]
    assert search_orders([work], [options], 1e-9).rule == "warm-up 2..2"
    assert search_orders([work], [options[1:]], 1e-9).rule == "warm-up 1..1"


def test_the_quicker_of_two_works_is_found_wherever_it_stands() -> None:
    quick, slow = work_of([1.0, 1.0], split=False), work_of([1.0, 2.0], split=False)
    for works in ((quick, slow), (slow, quick)):
        assert search_orders(works, [options_of(work) for work in works]).work is quick
