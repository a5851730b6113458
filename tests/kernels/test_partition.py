"""Chain partition: exact against all partitions of small chains, and the ties."""

from __future__ import annotations

import time
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernels.partition import NOT_ALLOWED, _Chain, balanced_partition

# Whole numbers, so that two ways to the same load are equal.
weights = st.lists(st.integers(0, 9), min_size=1, max_size=9)
extras = st.integers(0, 12)


def brute_force(
    units: list[int], parts: int, first_extra: int, last_extra: int, least: list[int]
) -> tuple[int, tuple[int, ...]]:
    """Of all partitions: the smallest bottleneck, then squares, then counts in order."""
    best = None
    for cuts in combinations_with_replacement(range(len(units) + 1), parts - 1):
        ends = [0, *cuts, len(units)]
        counts = tuple(b - a for a, b in pairwise(ends))
        if any(count < fewest for count, fewest in zip(counts, least, strict=True)):
            continue
        loads = [sum(units[a:b]) for a, b in pairwise(ends)]
        loads[0] += first_extra
        loads[-1] += last_extra
        key = (max(loads), sum(load**2 for load in loads), counts)
        best = key if best is None else min(best, key)
    assert best is not None
    return best[0], best[2]


@given(weights, extras, extras, st.integers(1, 5), st.booleans(), st.booleans())
def test_equals_brute_force(
    units: list[int], first_extra: int, last_extra: int, parts: int, empty_first: bool, empty_last: bool
) -> None:
    least = [1] * parts
    if parts > 1:
        least[0], least[-1] = int(not empty_first), int(not empty_last)
    if len(units) < sum(least):
        return
    found = balanced_partition(
        units,
        parts=parts,
        first_extra=first_extra,
        last_extra=last_extra,
        allow_empty_first=empty_first,
        allow_empty_last=empty_last,
    )
    assert (found.bottleneck, found.counts) == brute_force(units, parts, first_extra, last_extra, least)


@given(
    st.lists(st.floats(0.01, 10), min_size=12, max_size=130),
    st.integers(1, 12),
    st.floats(0, 20),
    st.floats(0, 20),
)
def test_counts_and_bottleneck_agree(units: list[float], parts: int, first_extra: float, last_extra: float) -> None:
    found = balanced_partition(units, parts=parts, first_extra=first_extra, last_extra=last_extra)
    ends = [sum(found.counts[:p]) for p in range(parts + 1)]
    loads = [sum(units[a:b]) for a, b in pairwise(ends)]
    loads[0] += first_extra
    loads[-1] += last_extra
    assert len(found.counts) == parts
    assert min(found.counts) >= 1
    assert sum(found.counts) == len(units)
    assert max(loads) == pytest.approx(found.bottleneck)
    assert found.bottleneck >= max(max(units), sum(loads) / parts) - 1e-9


@pytest.mark.parametrize(
    ("layers", "options", "counts"),
    [
        (80, {"parts": 8}, (10,) * 8),
        (10, {"parts": 4}, (2, 2, 3, 3)),  # the smoothest, and of those the lightest first
        (126, {"parts": 16, "first_extra": 1.0, "last_extra": 1.0}, (7, *[8] * 14, 7)),  # Llama 3.1 405B
        (8, {"parts": 4, "last_extra": 2.0}, (2, 2, 3, 1)),
        (6, {"parts": 4, "last_extra": 2.0, "allow_empty_last": True}, (2, 2, 2, 0)),
        (6, {"parts": 4, "first_extra": 2.0, "allow_empty_first": True}, (0, 2, 2, 2)),
        (5, {"parts": 5}, (1, 1, 1, 1, 1)),
        (5, {"parts": 1, "first_extra": 3.0}, (5,)),
    ],
)
def test_equal_layers(layers: int, options: dict[str, Any], counts: tuple[int, ...]) -> None:
    assert balanced_partition([1.0], run_lengths=[layers], **options).counts == counts


def test_equal_layers_of_any_weight_tie_as_whole_ones_do() -> None:
    tenths = balanced_partition([0.1] * 64, parts=6, last_extra=0.3)
    whole = balanced_partition([1.0] * 64, parts=6, last_extra=3.0)
    assert tenths.counts == whole.counts


def test_runs_are_units() -> None:
    runs = balanced_partition([1.0, 2.5], run_lengths=[3, 58], parts=16, last_extra=2.0)
    assert runs == balanced_partition([1.0] * 3 + [2.5] * 58, parts=16, last_extra=2.0)


def test_fewer_units_than_parts() -> None:
    with pytest.raises(ValueError, match="4 units cannot fill 5 parts"):
        balanced_partition([1.0] * 4, parts=5)
    assert balanced_partition([1.0] * 4, parts=5, allow_empty_last=True).counts == (1, 1, 1, 1, 0)


def test_long_chains_take_no_time() -> None:
    started = time.process_time()
    for parts, heaviest in ((7, 74.0), (64, 9.0), (256, 3.4), (511, 3.4)):
        found = balanced_partition([1.0e9] * 512, parts=parts, last_extra=2.4e9)
        assert (sum(found.counts), len(found.counts)) == (512, parts)
        assert found.bottleneck == pytest.approx(heaviest * 1e9)
    assert time.process_time() - started < 1.0


@given(
    weights=st.lists(st.integers(0, 6), min_size=1, max_size=7),
    ceiling=st.integers(0, 20),
    extra=st.integers(0, 5),
    least=st.integers(0, 3),
)
def test_ends_of_a_part_are_those_that_weigh_no_more_than_the_ceiling(
    weights: list[int], ceiling: int, extra: int, least: int
) -> None:
    prefix = np.concatenate([[0.0], np.cumsum(weights, dtype=float)])
    chain = _Chain(prefix, [float(extra)], [least])
    if ceiling < extra:
        return
    ends, squares = chain._reached(float(ceiling), 1.0, float(extra), least)
    for start, (row, squared) in enumerate(zip(ends.tolist(), squares.tolist(), strict=True)):
        found = {end: value for end, value in zip(row, squared, strict=True) if value != NOT_ALLOWED}
        loads = {end: sum(weights[start:end]) + extra for end in range(start + least, len(weights) + 1)}
        assert found == {end: load**2 for end, load in loads.items() if load <= ceiling}
