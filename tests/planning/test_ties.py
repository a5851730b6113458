"""Two plans beside each other: which parts of their steps differ, and whether it is a tie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.ties import MOST_PARTS, differing_parts, memory_difference, tied, time_difference

SECONDS = st.lists(st.floats(0.0, 2.0), min_size=5, max_size=5)


def price(parts_s: list[float], *, memory_bytes: float = 1e9, tie: float = 0.03) -> Any:
    parts = tuple((f"part {number}", seconds) for number, seconds in enumerate(parts_s))
    return SimpleNamespace(step_time_s=sum(parts_s) + 1.0, breakdown_s=parts, peak_memory_bytes=memory_bytes, tie=tie)


@given(SECONDS, SECONDS)
def test_parts_that_differ_are_the_largest_of_their_kind(base: list[float], other: list[float]) -> None:
    found = differing_parts(price(base), price(other))
    changes = {f"part {number}": b - a for number, (a, b) in enumerate(zip(base, other, strict=True))}
    largest = max(map(abs, changes.values()))
    if largest <= 1e-6 * (sum(base) + 1.0):
        assert found == {}
        return
    assert found == {name: changes[name] for name in found}
    sizes = [abs(change) for change in found.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == largest
    worth = sorted((abs(one) for one in changes.values() if abs(one) >= 0.08 * largest), reverse=True)
    assert sizes == worth[:MOST_PARTS]


def test_a_slower_plan_has_a_positive_ratio_and_a_quicker_one_a_negative() -> None:
    base, slower = price([1.0, 1.0]), price([1.0, 1.6])
    assert time_difference(base, slower).facts["ratio"] == pytest.approx(0.2)
    assert time_difference(slower, base).facts["ratio"] == pytest.approx(3.0 / 3.6 - 1.0)
    assert memory_difference(base, slower).facts["ratio"] == pytest.approx(0.2)


def test_plans_tie_below_the_limit_in_either_direction() -> None:
    best = price([1.0], tie=0.03)
    assert [tied(ratio, best) for ratio in (-0.04, -0.03, -0.02, 0.0, 0.02, 0.03, 0.04)] == [
        *(False, False, True, True, True, False, False),
    ]


@pytest.mark.parametrize(("more", "said"), [(0.004, 0.0), (-0.004, 0.0), (0.006, 6e6), (-0.006, -6e6), (0.5, 5e8)])
def test_less_than_half_a_percent_of_memory_is_no_difference(more: float, said: float) -> None:
    found = memory_difference(price([1.0]), price([1.0], memory_bytes=1e9 * (1 + more)))
    assert found.facts["change_bytes"] == pytest.approx(said)
    assert found.facts["peak_bytes"] == pytest.approx(1e9 * (1 + more))


@pytest.mark.parametrize(("more_s", "named"), [(1e-8, False), (1e-5, True)])
def test_what_rounding_leaves_is_no_difference(more_s: float, named: bool) -> None:
    assert bool(differing_parts(price([1.0, 1.0]), price([1.0, 1.0 + more_s]))) == named
