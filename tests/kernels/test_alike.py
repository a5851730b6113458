"""Complete linkage against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernels.alike import linkage, links_apart, ratio_apart
from meshwright.shapes import Float


def distances(count: int, seed: int, levels: int) -> Float[np.ndarray, "things things"]:
    """Random symmetric distances; few levels give many ties."""
    draw = np.random.default_rng(seed)
    apart = np.triu(draw.integers(0, levels, (count, count)).astype(float), 1)
    return apart + apart.T


def greedy_heights(apart: Float[np.ndarray, "things things"]) -> list[float]:
    """Heights of merging the nearest two clusters again and again."""
    clusters = [[i] for i in range(len(apart))]
    heights = []
    while len(clusters) > 1:
        pairs = [(i, j) for i in range(len(clusters)) for j in range(i)]
        far = [float(apart[np.ix_(clusters[i], clusters[j])].max()) for i, j in pairs]
        best = int(np.argmin(far))
        i, j = pairs[best]
        heights.append(far[best])
        clusters[j] += clusters.pop(i)
    return heights


@given(st.integers(2, 9), st.integers(0, 10_000))
def test_chains_give_the_greedy_hierarchy(count: int, seed: int) -> None:
    apart = distances(count, seed, 10**9)
    assert linkage(apart).height.tolist() == pytest.approx(greedy_heights(apart))


@given(st.integers(1, 12), st.integers(0, 10_000), st.integers(1, 6))
@settings(max_examples=60)
def test_members_are_within_the_tolerance_and_a_larger_one_only_joins(count: int, seed: int, levels: int) -> None:
    apart = distances(count, seed, levels)
    tree = linkage(apart)
    before = np.arange(count)
    for tolerance in (0.0, 1.0, 2.5, 10.0):
        label = tree.labels(tolerance)
        together = label[:, None] == label[None, :]
        assert apart[together].max() <= tolerance
        assert together[before[:, None] == before[None, :]].all()
        before = label
    assert len(set(before.tolist())) == 1


def test_nothing_joins_what_is_infinitely_far() -> None:
    apart = np.array([[0.0, 1.0, np.inf], [1.0, 0.0, np.inf], [np.inf, np.inf, 0.0]])
    assert linkage(apart).labels(1e9).tolist() == [0, 0, 2]


def test_things_as_far_apart_as_the_tolerance_are_together() -> None:
    apart = np.array([[0.0, 0.5, 2.0], [0.5, 0.0, 2.0], [2.0, 2.0, 0.0]])
    assert linkage(apart).labels(0.5).tolist() == [0, 0, 2]
    assert linkage(apart).labels(2.0).tolist() == [0, 0, 0]
    assert linkage(np.zeros((2, 2))).labels(0.0).tolist() == [0, 0]


def test_how_far_apart_properties_and_links_are() -> None:
    assert ratio_apart([np.array([2.0, 3.0]), np.array([10.0, 10.0])])[0, 1] == pytest.approx(0.5)
    apart = links_apart(np.array([[9.0, 40.0, 10.0], [40.0, 9.0, 10.0], [10.0, 10.0, 9.0]]))
    assert apart[0, 1] == 0
    assert apart[0, 2] == pytest.approx(3)
    assert links_apart(np.zeros((2, 2)))[0, 1] == np.inf


def test_things_that_are_too_far_apart_for_a_number_are_infinitely_far() -> None:
    apart = ratio_apart([np.array([1e300, 1e-300])])
    assert apart.tolist() == [[0.0, np.inf], [np.inf, 0.0]]
