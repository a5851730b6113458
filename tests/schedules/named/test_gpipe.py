"""GPipe's closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Times, simulate


@given(seed=st.integers(0, 2**32 - 1), p=st.integers(1, 9), m=st.integers(1, 30))
def test_gpipe_bound_is_exact_for_any_durations(seed: int, p: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    forward_s, backward_s, transfer_s = rng.random((3, p, 1))
    gpipe = SCHEDULES["gpipe"]
    times = Times(forward_s=forward_s, backward_s=backward_s, transfer_s=transfer_s)
    exact = simulate(gpipe.table(p, m), times).makespan_s
    assert gpipe.lower_bound_s(forward_s, backward_s, transfer_s, m) == pytest.approx(exact, rel=1e-9)


@given(seed=st.integers(0, 2**32 - 1), p=st.integers(1, 9), m=st.integers(1, 30))
def test_workers_end_when_a_simulation_says(seed: int, p: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    forward_s, backward_s, transfer_s = rng.random((3, p, 1))
    gpipe = SCHEDULES["gpipe"]
    times = Times(forward_s=forward_s, backward_s=backward_s, transfer_s=transfer_s)
    assert gpipe.end_s(p, m, 1, times).max() == pytest.approx(simulate(gpipe.table(p, m), times).makespan_s)
