"""Chimera: published times, more pairs, constraints."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.schedules import SCHEDULES, Caps, Times, best_schedule, simulate
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.chimera import Chimera


def test_first_worker_of_four() -> None:
    order = SCHEDULES["chimera"].table(4, 4).entries()[0]
    assert order == ["F0.0", "F0.1", "F1.0", "B1.0", "F1.1", "B1.1", "B0.0", "B0.1"]


@pytest.mark.parametrize(("backward_s", "makespan_s", "bubble"), [(1.0, 10.0, 0.2), (2.0, 16.0, 0.25)])
def test_published_time_of_four_workers(backward_s: float, makespan_s: float, bubble: float) -> None:
    chimera = SCHEDULES["chimera"]
    timeline = simulate(chimera.table(4, 4), chimera.equal_times(4, backward_s=backward_s))
    assert timeline.makespan_s == makespan_s
    assert timeline.bubble_makespan == pytest.approx(bubble)
    assert [int(live.sum(axis=1).max()) for live in live_vectors(timeline.table)] == [3, 4, 4, 3]


def test_concatenation_loses_to_1f1b_with_many_micro_batches() -> None:
    assert SCHEDULES["chimera"].closed_form_s(8, 32, 1, 1.0, 2.0) == 126
    assert SCHEDULES["1f1b"].closed_form_s(8, 32, 1, 1.0, 2.0) == 117


@pytest.mark.parametrize(("p", "m", "makespan_s"), [(4, 8, 29), (8, 16, 65), (8, 32, 110), (8, 64, 213), (16, 64, 230)])
def test_forwards_that_run_ahead_win_over_1f1b_again(p: int, m: int, makespan_s: float) -> None:
    ahead = Chimera(doubling=True)
    timeline = simulate(ahead.table(p, m), ahead.equal_times(p))
    assert timeline.makespan_s == makespan_s <= (m + p - 1) * 3
    assert max(ahead.peak_activations(p, m)) < 2 * p
    assert not ahead.problems(p, m + 1)


@pytest.mark.parametrize(
    ("p", "m", "makespan_s"), [(4, 8, 25.5), (8, 16, 52.5), (8, 32, 100.5), (8, 64, 196.5), (16, 64, 207.5)]
)
def test_halves_of_micro_batches_fill_the_pauses_in_no_more_memory(p: int, m: int, makespan_s: float) -> None:
    halved = Chimera(halving=True)
    timeline = simulate(halved.table(p, m), halved.equal_times(p))
    assert timeline.makespan_s == makespan_s < (m + p - 1) * 3
    assert max(halved.peak_activations(p, m)) <= 2 * p
    assert max(SCHEDULES["chimera"].peak_activations(p, m)) == p
    forwards = [[entry for entry in row if entry[0] == "F"] for row in timeline.table.entries()]
    assert all(row[0].endswith("s0") and row[1].endswith("s1") for row in forwards)


def test_the_best_order_of_chimera_is_chosen_where_its_settings_are_open() -> None:
    times = Times(forward_s=np.ones((8, 1)), backward_s=np.full((8, 1), 2.0), transfer_s=0.0)
    found = best_schedule(times, 32, allow=["1f1b", "chimera"], chunks=[1], placements=())
    spans = {seen.name: seen.makespan_s for seen in found.candidates}
    assert (found.name, found.makespan_s) == ("chimera-halving", 100.5)
    assert spans["chimera-doubling"] in (None, 110.0)
    tight = Caps(capacity_bytes=12.0, activation_bytes=1.0, weight_bytes=1.0)
    assert best_schedule(times, 32, tight, allow=["chimera"], chunks=[1], placements=()).name == "chimera-halving"
    assert [one.field for one in Chimera(doubling=True, halving=True).problems(8, 32)] == ["halving"]


def test_more_pairs_shorten_the_bubble_and_take_more_copies() -> None:
    times = [Chimera(pairs=pairs).closed_form_s(8, 8, 1, 1.0, 2.0) for pairs in (1, 2, 4)]
    assert times == [36, 28, 24]
    assert Chimera(pairs=4).worker_weight_copies(8, 8) == (8,) * 8


@pytest.mark.parametrize(
    ("pairs", "p", "m", "v", "fixes"),
    [
        (1, 3, 4, 1, {"p": "p = 2 or 4"}),
        (1, 4, 10, 1, {"m": "m = 8 or 12, or doubling or halving"}),
        (1, 4, 1, 2, {"m": "m = 2", "v": "v = 1"}),
        (3, 8, 8, 1, {"pairs": "pairs = 2 or 4"}),
        (2, 8, 3, 1, {"m": "m = 4"}),
    ],
)
def test_constraints(pairs: int, p: int, m: int, v: int, fixes: dict[str, str]) -> None:
    assert {found.field: found.fix for found in Chimera(pairs=pairs).problems(p, m, v)} == fixes
