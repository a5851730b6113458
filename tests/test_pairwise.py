"""The cover of pairs that the parity tests choose their cases with."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pairwise import pairwise

SIZES = {"a": 4, "b": 3, "c": 3, "d": 2}


def levels(case: dict[str, int], count: int) -> set[tuple[tuple[str, int], ...]]:
    return set(combinations(case.items(), count))


@given(st.sets(st.integers(0, 71), min_size=1))
def test_every_pair_that_occurs_is_taken_by_some_case(kept: set[int]) -> None:
    whole = [dict(zip(SIZES, one, strict=True)) for one in product(*map(range, SIZES.values()))]
    cases = [whole[number] for number in sorted(kept)]
    chosen = pairwise(cases, list(SIZES), [1.0] * len(cases))
    assert len(set(chosen)) == len(chosen)
    pairs, taken = (set().union(*(levels(case, 2) for case in some)) for some in (cases, [cases[at] for at in chosen]))
    assert taken == pairs


def test_a_whole_product_needs_few_more_than_the_two_largest_factors() -> None:
    cases = [dict(zip(SIZES, one, strict=True)) for one in product(*map(range, SIZES.values()))]
    assert len(pairwise(cases, list(SIZES), [1.0] * len(cases))) <= 15


def test_dear_cases_are_left_out_where_cheap_ones_do() -> None:
    cases = [{"a": 0, "b": 0}, {"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 0, "b": 0}]
    assert set(pairwise(cases, ["a", "b"], [9.0, 1.0, 1.0, 1.0])) == {1, 2, 3}


@pytest.mark.parametrize(("alone", "count"), [((), 4), (("c",), 6)])
def test_levels_of_factors_alone_are_all_taken(alone: tuple[str, ...], count: int) -> None:
    cases = [{"a": a, "b": b, "c": c} for a, b, c in product(range(2), range(2), range(6))]
    chosen = pairwise(cases, ["a", "b"], [1.0] * len(cases), alone)
    assert len(chosen) == count
