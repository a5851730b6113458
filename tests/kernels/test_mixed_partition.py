"""FTPipe's partition: workers are alike where layers are not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernels.mixed_partition import LEAST_GAIN, MOST_STAGES, mixed_partitions, worker_cuts
from meshwright.kernels.partition import balanced_partition


def loads_of(weights: list[float], counts: tuple[int, ...], workers: tuple[int, ...]) -> list[float]:
    """Weight of each worker."""
    loads, first = [0.0] * (max(workers) + 1), 0
    for count, worker in zip(counts, workers, strict=True):
        loads[worker] += sum(weights[first : first + count])
        first += count
    return loads


def test_heavy_neighbours_go_to_two_workers() -> None:
    """Between neighbours the best cut of 4, 4, 1, 1, 1, 1 leaves 8 to one of two workers; in blocks both have 6."""
    (found,) = mixed_partitions([4, 4, 1, 1, 1, 1], 2)
    assert (found.counts, found.workers, found.heaviest, found.moved) == ((1, 1, 2, 2), (0, 1, 0, 1), 6.0, 3)


@pytest.mark.parametrize(("weights", "workers"), [([5, 1, 1, 5], 2), ([1] * 12, 4), ([3, 1], 2), ([1, 2, 3], 1)])
def test_nothing_is_found_where_a_cut_between_neighbours_is_as_light(weights: list[float], workers: int) -> None:
    assert mixed_partitions(weights, workers) == ()


@given(
    weights=st.lists(st.sampled_from([1.0, 2.0, 5.0, 7.5]), min_size=5, max_size=40),
    workers=st.integers(2, 6),
    last_extra=st.sampled_from([0.0, 3.0]),
)
def test_a_partition_is_whole_lighter_than_a_cut_and_the_same_for_its_map(
    weights: list[float], workers: int, last_extra: float
) -> None:
    found = mixed_partitions(weights, workers, last_extra=last_extra)
    if found:
        cut = balanced_partition(weights, parts=workers, last_extra=last_extra).bottleneck
        assert found[0].heaviest < (1 - LEAST_GAIN) * cut
    assert [one.moved for one in found] == sorted({one.moved for one in found})
    for one in found:
        assert sum(one.counts) == len(weights)
        assert min(one.counts) >= 1
        assert list(dict.fromkeys(one.workers)) == list(range(workers))
        assert all(left != right for left, right in zip(one.workers, one.workers[1:], strict=False))
        loads = loads_of([*weights[:-1], weights[-1] + last_extra], one.counts, one.workers)
        assert one.heaviest == pytest.approx(max(loads))
        assert one.counts == worker_cuts(weights, one.workers, last_extra=last_extra)


def test_longer_chains_move_layers_between_neighbours_alone() -> None:
    workers = tuple(range(2)) * MOST_STAGES
    counts = worker_cuts([1.0] * 90 + [10.0], workers)
    assert sum(counts) == 91
    loads = loads_of([1.0] * 90 + [10.0], counts, workers)
    assert max(loads) - min(loads) <= 2


@given(
    weights=st.lists(st.integers(1, 9).map(float), min_size=6, max_size=14),
    workers=st.sampled_from([(0, 1, 0), (0, 1, 0, 1), (0, 1, 2, 0, 1), (0, 1, 2, 1, 0)]),
    giant=st.sampled_from([0.0, 40.0]),
)
def test_no_layer_moved_to_the_next_stage_makes_workers_more_alike(
    weights: list[float], workers: tuple[int, ...], giant: float
) -> None:
    """Neither is the fullest lighter, nor, where one layer alone fills it, are the others more alike."""
    weights[0] += giant

    def fullness(counts: tuple[int, ...]) -> tuple[float, float]:
        loads = loads_of(weights, counts, workers)
        return max(loads), sum(load**2 for load in loads)

    counts = worker_cuts(weights, workers)
    for giver, taker in [*pairwise(range(len(workers))), *((b, a) for a, b in pairwise(range(len(workers))))]:
        moved = list(counts)
        moved[giver] -= 1
        moved[taker] += 1
        if moved[giver]:
            assert fullness(tuple(moved)) >= fullness(counts)
