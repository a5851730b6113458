"""Exposed communication: hand-computed cases, and what must hold for any two streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernels.overlap import exposed_s

times = st.floats(0, 1e3)
slowdowns = st.floats(1, 2)


@pytest.mark.parametrize(
    ("comm_s", "compute_s", "slowdown", "expected_s"),
    [
        (1.0, 4.0, 1.0, 0.0),  # hidden, and free
        (1.0, 4.0, 1.25, 0.2),  # hidden, while compute loses a fifth of a second
        (5.0, 4.0, 1.25, 1.0),  # both end together
        (6.0, 4.0, 1.25, 2.0),  # two seconds left over
        (3.0, 0.0, 1.25, 3.0),  # nothing to hide behind
        (0.0, 3.0, 1.25, 0.0),
    ],
)
def test_hand_computed(comm_s: float, compute_s: float, slowdown: float, expected_s: float) -> None:
    assert exposed_s(comm_s, compute_s, slowdown) == pytest.approx(expected_s)


@given(times, times, slowdowns)
def test_equals_running_both_step_by_step(comm_s: float, compute_s: float, slowdown: float) -> None:
    together_s = min(comm_s, compute_s * slowdown)
    compute_left_s = compute_s - together_s / slowdown
    comm_left_s = comm_s - together_s
    end_s = together_s + compute_left_s + comm_left_s
    assert compute_s + exposed_s(comm_s, compute_s, slowdown) == pytest.approx(end_s, abs=1e-9)


@given(times, times, times, slowdowns)
def test_the_end_moves_with_either_stream(comm_s: float, compute_s: float, more_s: float, slowdown: float) -> None:
    end_s = compute_s + exposed_s(comm_s, compute_s, slowdown)
    assert exposed_s(comm_s, compute_s, slowdown) >= 0
    assert end_s >= max(comm_s, compute_s) - 1e-9
    assert compute_s + exposed_s(comm_s + more_s, compute_s, slowdown) >= end_s - 1e-9
    assert compute_s + more_s + exposed_s(comm_s, compute_s + more_s, slowdown) >= end_s - 1e-9
    assert exposed_s(comm_s, compute_s, slowdown + 0.1) >= exposed_s(comm_s, compute_s, slowdown)


def test_rows() -> None:
    comm_s, compute_s = np.array([1.0, 6.0]), np.array([4.0, 4.0])
    assert exposed_s(comm_s, compute_s, 1.25) == pytest.approx([0.2, 2.0])
