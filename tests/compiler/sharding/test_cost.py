"""Prices of moving a value, against the formulas of the collectives."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis

MESH = LogicalMesh(
    axes=(MeshAxis(size=2, latency_s=1e-6, bytes_per_s=1e9), MeshAxis(size=4, latency_s=2e-6, bytes_per_s=4e9)),
    flop_per_s=1e9,
)
SIZE = 8e6


def moved(source: tuple[int, int], target: tuple[int, int]) -> float:
    return float(MESH.move_s(SIZE, np.array(source), np.array(target)))


@pytest.mark.parametrize(
    ("source", "target", "seconds"),
    [
        ((0, 1), (0, 1), 0.0),
        ((-1, -1), (0, 1), 0.0),
        ((0, -1), (-1, -1), MESH.all_gather_s(0, SIZE)),
        ((0, 1), (0, -1), MESH.all_gather_s(1, SIZE / 2)),
        ((0, -1), (1, -1), MESH.all_to_all_s(0, SIZE / 2)),
        ((0, 1), (-1, -1), MESH.all_gather_s(0, SIZE / 4) + MESH.all_gather_s(1, SIZE)),
        # The slice along the second axis comes first: a quarter is gathered.
        ((0, -1), (-1, 1), MESH.all_gather_s(0, SIZE / 4)),
        # The inner axis goes on: what a device has of the eighths is no part of the quarter that it wants.
        ((0, 0), (-1, 0), MESH.all_gather_s(0, SIZE / 4) + 1e-6 + SIZE / 8 / 1e9),
        ((-1, 0), (0, 0), 1e-6 + SIZE / 8 / 1e9),
    ],
)
def test_resharding(source: tuple[int, int], target: tuple[int, int], seconds: float) -> None:
    assert moved(source, target) == pytest.approx(seconds)


def test_sums_are_reduced_and_scattered_where_they_are_split_afterwards() -> None:
    whole, split = np.array([-1, -1]), np.array([-1, 0])
    along = np.array([False, True])
    assert MESH.move_s(SIZE, whole, whole, along) == pytest.approx(MESH.all_reduce_s(1, SIZE))
    assert MESH.move_s(SIZE, whole, split, along) == pytest.approx(MESH.all_gather_s(1, SIZE))


def test_shards() -> None:
    assert MESH.shards(np.array([[-1, -1], [0, -1], [0, 0], [1, 0]])).tolist() == [1, 2, 8, 8]
