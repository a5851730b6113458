"""Breadth-first: few micro-batches, gathers, constraints."""

from __future__ import annotations

import numpy as np

from meshwright.schedules import SCHEDULES


def test_bubble_of_interleaving_with_every_activation_kept() -> None:
    bfs = SCHEDULES["breadth-first"]
    assert bfs.closed_form_s(4, 8, 2, 1.0, 2.0) == SCHEDULES["interleaved"].closed_form_s(4, 8, 2, 1.0, 2.0) == 28.5
    assert [live.tolist() for live in bfs.in_flight(4, 8, 2)] == [[[8, 8]]] * 4


def test_a_chunk_is_used_in_one_stretch_per_direction() -> None:
    table = SCHEDULES["breadth-first"].table(4, 6, 3)
    own = slice(table.first[1], table.first[2])
    used = np.stack([table.kind[own], table.chunk[own]])
    assert int((used[:, 1:] != used[:, :-1]).any(axis=0).sum()) + 1 == 2 * 3


def test_one_chunk_is_gpipe() -> None:
    assert [found.fix for found in SCHEDULES["breadth-first"].problems(4, 8, 1)] == ["v = 2, or schedule gpipe"]
