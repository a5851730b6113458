"""Closed forms of the schedules that searches try by default, equal to what their tables say."""

from __future__ import annotations

from itertools import product

import pytest

from meshwright.schedules import Schedule
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.breadth_first import BreadthFirst
from meshwright.schedules.named.gpipe import GPipe
from meshwright.schedules.named.interleaved import Interleaved
from meshwright.schedules.named.one_f_one_b import OneFOneB


@pytest.mark.parametrize(
    ("schedule", "shapes"),
    [
        (Interleaved(), product(range(2, 7), range(1, 25), range(2, 5))),
        (Interleaved(group=3), product(range(4, 8), (3,), range(2, 5))),
        (Interleaved(group=5), product(range(2, 6), range(1, 31), range(2, 4))),
        (OneFOneB(), product(range(1, 8), range(1, 20), (1,))),
        (OneFOneB(warmup="pb"), product(range(1, 8), range(1, 20), (1,))),
        (GPipe(), product(range(1, 6), range(1, 9), (1,))),
        (BreadthFirst(), product(range(1, 5), range(1, 9), range(2, 4))),
    ],
    ids=lambda value: value.token if isinstance(value, Schedule) else "",
)
def test_activations_in_flight_are_counted_as_along_the_table(
    schedule: Schedule, shapes: product[tuple[int, int, int]]
) -> None:
    for p, m, v in shapes:
        if schedule.problems(p, m, v):
            continue
        counted = [vectors.tolist() for vectors in live_vectors(schedule.table(p, m, v))]
        assert [vectors.tolist() for vectors in schedule.in_flight(p, m, v)] == counted, (p, m, v)


@pytest.mark.parametrize(("p", "m"), [(p, m) for p in range(2, 9) for m in range(1, 34)])
def test_groups_settled_for_a_number_of_micro_batches_are_the_smallest_legal_ones(p: int, m: int) -> None:
    legal = [g for g in range(p, m + 1) if not Interleaved(group=g).problems(p, m, 2)]
    settled = Interleaved().settled(p, m)

    if not legal:
        assert settled == Interleaved()
    else:
        assert (settled.group or p) == legal[0]
        assert not settled.problems(p, m, 2)
    assert Interleaved(group=m).settled(p, m) == Interleaved(group=m)  # what is stated stays


@pytest.mark.parametrize("schedule", [Interleaved(), Interleaved(group=3), Interleaved(group=5)], ids=lambda s: s.token)
def test_forwards_without_a_partner_are_those_up_to_the_last_workers_first_backward(schedule: Interleaved) -> None:
    """The way to the last worker, and what it runs first; never more than there are."""
    tried = 0
    for p, m, v in product(range(2, 6), range(1, 16), range(2, 4)):
        if schedule.problems(p, m, v):
            continue
        last = schedule.table(p, m, v).entries()[-1]
        warm = next(place for place, task in enumerate(last) if task.startswith("B"))
        assert schedule.unpaired(p, m, v) == min(p - 1 + warm, m * v), (p, m, v)
        tried += 1
    assert tried > 4
