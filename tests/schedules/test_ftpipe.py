"""FTPipe: workers with blocks that are not neighbours, and the partitioner that makes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, Kind
from meshwright.schedules.ftpipe import FTPipe, mixed_partition, stages_of


def largest_load(seconds: list[float], workers: tuple[int, ...]) -> float:
    return float(np.bincount(workers, weights=seconds).max())


def test_one_stage_per_worker_is_1f1b() -> None:
    assert SCHEDULES["ftpipe"].table(4, 8).entries() == SCHEDULES["1f1b"].table(4, 8).entries()


@pytest.mark.parametrize(("seconds", "largest"), [([5, 1, 1, 5], 6), ([4, 4, 1, 1, 1, 1], 6)])
def test_largest_load_of_two_workers(seconds: list[float], largest: float) -> None:
    assert largest_load(seconds, mixed_partition(seconds, 2)) == largest


@given(seconds=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=24), p=st.integers(1, 6))
def test_partition_uses_every_worker_and_is_near_the_mean(seconds: list[float], p: int) -> None:
    if p > len(seconds):
        with pytest.raises(InputError, match="at least one"):
            mixed_partition(seconds, p)
        return
    workers = mixed_partition(seconds, p)
    assert set(workers) == set(range(p))
    assert largest_load(seconds, workers) <= sum(seconds) / p + max(seconds) + 1e-9
    blocks = stages_of(workers)
    held = max(blocks.count(worker) for worker in range(p))
    assert FTPipe(blocks=blocks).table(p, 3, held).placement.worker.tolist() == list(blocks)


def test_depth_limits_what_is_in_flight() -> None:
    table = FTPipe(blocks=(0, 1, 0, 1)).table(2, 12, 2)
    change = np.where(table.kind == Kind.F, 1, -1)
    for stage in range(4):
        assert np.cumsum(change[table.stage == stage]).max() <= 4 - stage


@pytest.mark.parametrize(
    ("blocks", "v", "field", "fix"),
    [
        ((0, 1, 0), 1, "v", "v = 2"),
        ((0, 0, 2), 2, "blocks", "name each of 0 to 1 and no other"),
        ((0, 0), 2, "blocks", "name each of 0 to 1 and no other"),
    ],
)
def test_constraints(blocks: tuple[int, ...], v: int, field: str, fix: str) -> None:
    assert [(found.field, found.fix) for found in FTPipe(blocks=blocks).problems(2, 4, v)] == [(field, fix)]
