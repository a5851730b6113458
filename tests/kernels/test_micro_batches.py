"""Grouping sequences into micro-batches against every grouping there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernels.micro_batches import grouped

LAUNCH, SQUARE = 20.0, 0.01


def seconds(counts: np.ndarray, length: int) -> np.ndarray:
    return LAUNCH + counts * (length + SQUARE * length**2)


def step_s(groups: list[tuple[int, int]], fill: float) -> float:
    times = [float(seconds(np.array([count]), length)[0]) for count, length in groups]
    return fill * max(times) + sum(times)


def every_grouping(lengths: list[int], most: int) -> list[list[tuple[int, int]]]:
    """All ways to cut a row of sequences into micro-batches of at most so many tokens."""
    if not lengths:
        return [[]]
    found = []
    for count in range(1, len(lengths) + 1):
        if count * lengths[count - 1] <= max(most, lengths[0]):
            found += [[(count, lengths[count - 1]), *rest] for rest in every_grouping(lengths[count:], most)]
    return found


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8).map(sorted), st.sampled_from([0.0, 1.0, 3.0, 7.0]))
def test_as_quick_as_the_best_of_all_groupings(lengths: list[int], fill: float) -> None:
    most = 120
    found = grouped(lengths, seconds, most_tokens=most, fill=fill)
    assert sum(count for count, _ in found) == len(lengths)
    assert all(count * length <= most for count, length in found)
    best = min(step_s(groups, fill) for groups in every_grouping(lengths, most))
    # Quantiles of the longest time are tried, not each of them.
    assert step_s(found, fill) <= best * (1.02 if fill else 1.0 + 1e-12)


def test_deep_pipelines_get_micro_batches_of_more_equal_time() -> None:
    lengths = [10] * 40 + [60] * 4
    flat, deep = (grouped(lengths, seconds, most_tokens=400, fill=fill) for fill in (0.0, 30.0))
    longest = [max(float(seconds(np.array([n]), length)[0]) for n, length in groups) for groups in (flat, deep)]
    assert longest[1] < longest[0]
    assert len(deep) > len(flat)


def test_costs_of_a_paper_example() -> None:
    """Four sequences of 4, 4, 1 and 1 alone, p = 3: 2 x 4 + 10 = 18 where merging saves nothing."""
    found = grouped([1, 1, 4, 4], lambda counts, length: counts * float(length), most_tokens=4, fill=2.0)
    assert step_s_plain(found) == 18.0


def step_s_plain(groups: list[tuple[int, int]]) -> float:
    times = [float(count * length) for count, length in groups]
    return 2.0 * max(times) + sum(times)


def test_no_length_beyond_the_room_but_the_longest() -> None:
    assert grouped([5, 50], seconds, most_tokens=50, fill=1.0)[-1] == (1, 50)
    assert pytest.approx(sum(n * length for n, length in grouped([9] * 10, seconds, most_tokens=45, fill=0.0))) == 90


@pytest.mark.parametrize("fill", [0.5, 3.0])
@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_another_unit_of_time_gives_the_same_groups(fill: float, unit: float) -> None:
    lengths = [3, 8, 8, 12, 20, 20, 31, 45, 60, 60]
    scaled = grouped(lengths, lambda counts, length: unit * seconds(counts, length), most_tokens=120, fill=fill)
    assert scaled == grouped(lengths, seconds, most_tokens=120, fill=fill)
