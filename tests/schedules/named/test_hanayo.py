"""Hanayo: published times of its waves, constraints."""

from __future__ import annotations

import pytest

from meshwright.schedules import simulate
from meshwright.schedules.named.hanayo import Hanayo


@pytest.mark.parametrize(
    ("ticks", "waves", "backward_s", "makespan_s"), [(1, 1, 1.0, 11.0), (2, 1, 2.0, 18.0), (1, 2, 1.0, 9.5)]
)
def test_times_of_four_workers(ticks: int, waves: int, backward_s: float, makespan_s: float) -> None:
    hanayo = Hanayo(waves=waves, backward_ticks=ticks)
    times = hanayo.equal_times(4, 2 * waves, backward_s=backward_s)
    assert simulate(hanayo.table(4, 4, 2 * waves), times).makespan_s == makespan_s


def test_the_closed_form_is_that_of_one_wave_and_as_many_micro_batches_as_workers() -> None:
    """m (f + b) + (p - 1) b = 4 x 3 + 3 x 2, and m (f + b) of one worker; none for others or short backwards."""
    hanayo = Hanayo()
    assert hanayo.closed_form_s(4, 4, 2, 1.0, 2.0) == 18.0
    assert hanayo.closed_form_s(1, 5, 2, 1.0, 2.5) == 17.5
    unknown = ((4, 8, 2, 2.0), (4, 3, 2, 2.0), (4, 4, 4, 2.0), (4, 4, 2, 0.5 * hanayo.backward_ticks))
    assert [hanayo.closed_form_s(p, m, v, 1.0, backward_s) for p, m, v, backward_s in unknown] == [None] * 4


def test_a_limit_keeps_the_activations_of_long_steps() -> None:
    """The wave alone would hold 15 micro-batches for 115 s; 1F1B takes 117 s."""
    any_number, some = Hanayo(admit=16), Hanayo()
    assert [max(one.peak_activations(8, 32, 2)) for one in (any_number, some)] == [30, 16]
    times = any_number.equal_times(8, 2)
    assert [simulate(one.table(8, 32, 2), times).makespan_s for one in (any_number, some)] == [115.0, 110.0]
    for p, m, v in ((4, 9, 2), (5, 12, 4), (6, 20, 4), (8, 12, 2)):
        assert max(some.peak_activations(p, m, v)) <= p * v
        assert simulate(some.table(p, m, v), some.equal_times(p, v)).makespan_s <= (m + p - 1) * 3
    assert [(found.field, found.fix) for found in Hanayo(admit=3).problems(4, 8, 2)] == [("admit", "admit = 4")]


def test_transfers_do_not_stop_every_micro_batch() -> None:
    """The order made for free transfers took 236 of these, 1F1B 221."""
    hanayo = Hanayo()
    took = [simulate(hanayo.table(4, 64, 2), hanayo.equal_times(4, 2, transfer_s=c)).makespan_s for c in (0.0, 0.2)]
    assert took == pytest.approx([201.5, 205.1])
    more = [
        simulate(Hanayo(admit=n).table(4, 64, 4), hanayo.equal_times(4, 4, transfer_s=0.1)).makespan_s for n in (4, 6)
    ]
    assert more[1] < 0.93 * more[0]


def test_a_wave_turns_on_its_worker() -> None:
    assert Hanayo().placement(3, 4).worker.tolist() == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("waves", "v", "field", "fix"),
    [(None, 3, "v", "v = 2 or 4"), (None, 1, "v", "v = 2"), (2, 2, "v", "v = 4"), (0, 2, "waves", "waves = 1")],
)
def test_constraints(waves: int | None, v: int, field: str, fix: str) -> None:
    assert [(found.field, found.fix) for found in Hanayo(waves=waves).problems(4, 8, v)] == [(field, fix)]
