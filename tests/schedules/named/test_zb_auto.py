"""The zero-bubble search: within memory, never slower than the named schedules it knows, faster where it can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, makespans
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.zb_auto import ZeroBubbleAuto


def drawn(rng: np.random.Generator, p: int, most_live: int | None) -> ZeroBubbleAuto:
    forward_s, input_s, weight_s = (tuple((1 + rng.random(p)).tolist()) for _ in range(3))
    return ZeroBubbleAuto(forward_s=forward_s, input_s=input_s, weight_s=weight_s, transfer_s=0.05, most_live=most_live)


@given(seed=st.integers(0, 2**32 - 1), p=st.integers(1, 5), m=st.integers(1, 8), most_live=st.integers(1, 8))
@settings(max_examples=25)
def test_keeps_the_limit_and_is_never_slower_than_h1_and_h2_within_it(
    seed: int, p: int, m: int, most_live: int
) -> None:
    schedule = drawn(np.random.default_rng(seed), p, most_live)
    table, times = schedule.table(p, m), schedule.stage_times(p)
    assert max(int(vectors.max()) for vectors in live_vectors(table)) <= most_live
    for name, needs in (("zb-h1", p), ("zb-h2", 2 * p - 1)):
        other = SCHEDULES[name]
        if needs <= most_live and not other.problems(p, m):
            assert makespans(table, times).max() <= makespans(other.table(p, m), times).max()


def test_uses_memory_between_that_of_h1_and_h2() -> None:
    gains = []
    for seed in range(6):
        schedule = drawn(np.random.default_rng(seed), 4, 6)
        times = schedule.stage_times(4)
        h1_s = makespans(SCHEDULES["zb-h1"].table(4, 12), times).max()
        gains.append(1 - makespans(schedule.table(4, 12), times).max() / h1_s)
    assert min(gains) >= 0
    assert np.mean(gains) > 0.01


def test_with_free_memory_little_is_left_above_the_work_of_one_worker_and_its_fill() -> None:
    for seed in range(6):
        schedule = drawn(np.random.default_rng(seed), 4, None)
        times = schedule.stage_times(4)
        forward_s, work_s = times.forward_s[:, 0], (times.forward_s + times.backward_s)[:, 0]
        least_s = max(forward_s[:r].sum() + 12 * work_s[r] for r in range(4))
        assert makespans(schedule.table(4, 12), times).max() <= 1.08 * least_s


def test_more_memory_never_costs_time() -> None:
    by_limit = [
        makespans(schedule.table(4, 8), schedule.stage_times(4)).max()
        for schedule in (ZeroBubbleAuto(most_live=limit) for limit in (1, 2, 3, 4, 7))
    ]
    assert by_limit == sorted(by_limit, reverse=True)
    assert by_limit[0] == pytest.approx(8 * (4 * 2 + 1))
    assert by_limit[-1] == pytest.approx(27)


def test_impossible_times_are_named_together() -> None:
    schedule = ZeroBubbleAuto(forward_s=(1.0, 2.0), weight_s=(1.0, -1.0, 1.0), most_live=0)
    with pytest.raises(InputError):
        schedule.table(3, 4)
    assert [problem.field for problem in schedule.problems(3, 4)] == ["most_live", "forward_s", "weight_s"]
