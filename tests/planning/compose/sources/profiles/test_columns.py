"""Layers of measured stages, against all ways to share them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.compose.sources.profiles.columns import _split

STAGE = st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 2), st.integers(0, 5))


@settings(max_examples=200)
@given(stages=st.lists(STAGE, min_size=1, max_size=4), data=st.data())
def test_layers_are_shared_with_the_least_bottleneck_of_all_ways(
    stages: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    fixed, each, least, more = (np.array([column], dtype=float) for column in zip(*stages, strict=True))
    limit = least + more
    middle = data.draw(st.integers(int(least.sum()), int(limit.sum())))
    (layers,) = _split(fixed, each, least, limit, middle)
    ways = [
        way
        for way in itertools.product(*(range(int(a), int(b) + 1) for a, b in zip(least[0], limit[0], strict=True)))
        if sum(way) == middle
    ]

    def bottleneck(way: tuple[int, ...]) -> float:
        return float((fixed[0] + np.array(way) * each[0]).max())

    found = tuple(int(count) for count in layers)
    assert found in ways
    assert bottleneck(found) == pytest.approx(min(map(bottleneck, ways)))


@given(st.lists(st.lists(STAGE, min_size=3, max_size=3), min_size=1, max_size=4))
def test_rows_are_shared_as_each_alone(rows: list[list[tuple[int, int, int, int]]]) -> None:
    table = np.array(rows, dtype=float)
    fixed, each, least = table[..., 0], table[..., 1], table[..., 2]
    limit = least + 6.0
    together = _split(fixed, each, least, limit, 12)
    for number in range(len(rows)):
        own = slice(number, number + 1)
        np.testing.assert_array_equal(together[own], _split(fixed[own], each[own], least[own], limit[own], 12))
