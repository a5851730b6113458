"""The scheduler: within memory, never slower than what it may choose from, near the bound of any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.schedules import BEST_OF, SCHEDULES, Caps, Kind, Scheduled, Times, best_schedule, simulate
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.interleaved import Interleaved
from meshwright.schedules.stage_shares import share_times


def drawn(seed: int, p: int, spread: float = 1.0, chunks: int = 1, transfer_s: float = 0.05) -> Times:
    rng = np.random.default_rng(seed)
    forward_s, input_s, weight_s = (1 + spread * rng.random((p, chunks)) for _ in range(3))
    return Times(forward_s=forward_s, backward_s=input_s + weight_s, weight_s=weight_s, transfer_s=transfer_s)


def live_bytes(found: Scheduled, activation_bytes: float) -> np.ndarray:
    """Of each worker at its fullest, counted along the order that was found."""
    parts = found.v if found.schedule is None else found.schedule.tasks_per_share(found.v)
    return np.array([vectors.sum(axis=1).max() * activation_bytes / parts for vectors in live_vectors(found.table)])


@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(1, 4),
    m=st.integers(1, 6),
    room=st.sampled_from([1.0, 2.0, 3.0, 5.0, 12.0]),
)
@settings(max_examples=4)
def test_memory_is_kept_and_no_named_schedule_that_fits_is_faster(seed: int, p: int, m: int, room: float) -> None:
    times = drawn(seed, p)
    found = best_schedule(times, m, Caps(capacity_bytes=10 + 4 * room, activation_bytes=4.0, weight_bytes=10.0))
    assert (live_bytes(found, 4.0) <= 4 * room * (1 + 1e-9)).all()
    assert (found.peak_bytes <= 10 + 4 * room * (1 + 1e-9)).all()
    assert found.makespan_s == pytest.approx(simulate(found.table, found.times).makespan_s)
    assert found.bound_s <= found.makespan_s
    for name in BEST_OF:
        schedule = SCHEDULES[name]
        for v in (1, 2):
            if schedule.problems(p, m, v) or schedule.kinds & {Kind.R, Kind.X}:
                continue
            parts = schedule.tasks_per_share(v)
            peak = max(float(vectors.sum(axis=1).max()) / parts for vectors in schedule.in_flight(p, m, v))
            if peak <= room:
                own = share_times(times, schedule.placement(p, v), parts)
                assert found.makespan_s <= schedule.end_s(p, m, v, own).max() * (1 + 1e-8)


@pytest.mark.parametrize("room", [None, 4.0])
def test_unequal_stages_gain_over_every_named_schedule_and_come_near_the_bound(room: float | None) -> None:
    caps = None if room is None else Caps(capacity_bytes=room, activation_bytes=1.0)
    found = [best_schedule(drawn(seed, 4), 8, caps) for seed in range(2)]
    assert all(one.gain >= 0 for one in found)
    assert np.mean([one.gain for one in found]) > 0.005
    assert max(one.gap for one in found) < 0.06
    assert all(one.best_named is not None and one.best_named.name in one.verdict for one in found)


def test_equal_stages_reach_the_bound_of_any_order() -> None:
    found = best_schedule(drawn(0, 4, spread=0.0, transfer_s=0.0), 8)
    assert found.makespan_s == pytest.approx(found.bound_s)
    assert found.makespan_s == pytest.approx(8 * 3 + 3 * 0.5)


@given(seed=st.integers(0, 2**32 - 1), p=st.integers(2, 5), m=st.integers(1, 9), v=st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=5)
def test_the_bound_of_any_order_is_below_every_named_schedule(seed: int, p: int, m: int, v: int) -> None:
    times = drawn(seed, p)
    for name in BEST_OF:
        if SCHEDULES[name].problems(p, m, v) or SCHEDULES[name].recomputes_in_tasks:
            continue
        found = best_schedule(times, m, allow=[name], chunks=[v], placements=())
        assert found.name == name
        assert found.bound_s <= found.makespan_s


def test_memory_bounds_the_time_too() -> None:
    """One activation per worker: no two micro-batches overlap, and the bound knows."""
    times = drawn(0, 3, spread=0.0, transfer_s=0.0)
    caps = Caps(capacity_bytes=1.0, activation_bytes=1.0)
    found = best_schedule(times, 6, caps, chunks=[1], split=False, allow=["1f1b", "gpipe"])
    assert found.schedule is None
    assert found.makespan_s == pytest.approx(found.bound_s)
    assert found.makespan_s == pytest.approx(6 * 3 * 3)
    assert {seen.name: seen.why_not for seen in found.candidates}["gpipe"].startswith("worker 0 would need 6 bytes")


def test_the_same_question_has_the_same_answer() -> None:
    one, other = (best_schedule(drawn(3, 3), 5) for _ in range(2))
    assert one.table.entries() == other.table.entries()
    assert one.candidates == other.candidates


def test_whole_backwards_recomputation_and_chunks_of_their_own() -> None:
    whole = best_schedule(drawn(1, 4), 8, split=False, allow=["1f1b"])
    assert set(np.unique(whole.table.kind)) == {Kind.F, Kind.B}
    plain = drawn(1, 4)
    again = Times(forward_s=plain.forward_s, backward_s=plain.backward_s, transfer_s=0.05, recompute_s=plain.forward_s)
    both, alone = (
        best_schedule(again, 8, allow=allow, chunks=[1], placements=()) for allow in (["varuna", "1f1b"], ["1f1b"])
    )
    assert both.makespan_s <= alone.makespan_s
    assert alone.timeline.busy_s.sum() == pytest.approx(8 * (2 * plain.forward_s + plain.backward_s).sum())
    given_chunks = drawn(2, 3, chunks=2)
    found = best_schedule(given_chunks, 6, chunks=[2])
    assert found.times.forward_s.tolist() == given_chunks.forward_s.tolist()


def test_a_schedule_with_parameters_of_its_own_may_be_used() -> None:
    found = best_schedule(drawn(0, 2), 10, allow=[Interleaved(group=5)], placements=())
    assert found.schedule == Interleaved(group=5)
    assert found.gain == 0


def test_a_boundary_takes_the_latency_of_its_link() -> None:
    times = Times(forward_s=np.ones((3, 1)), backward_s=np.ones((3, 1)), transfer_s=np.array([[0.1], [0.2], [0.7]]))
    there_and_back = share_times(times, SCHEDULES["zb-v"].placement(3, 2), 2)
    assert np.asarray(there_and_back.transfer_s).tolist() == [[0.1, 0.0], [0.2, 0.1], [0.7, 0.2]]
    loop = share_times(times, SCHEDULES["interleaved"].placement(3, 2), 2)
    assert np.asarray(loop.transfer_s)[:, 0].tolist() == [0.1, 0.2, 0.7]


def test_everything_wrong_is_named_together() -> None:
    caps = Caps(capacity_bytes=[1.0, 2.0], activation_bytes=-1.0)
    with pytest.raises(InputError) as caught:
        best_schedule(drawn(0, 3), 0, caps, chunks=[0], placements=["ring"])
    fields = [problem.field for problem in caught.value.problems]
    assert fields == ["m", "chunks", "placements", "capacity_bytes", "activation_bytes"]
    with pytest.raises(UnsupportedError, match="did you mean 1f1b"):
        best_schedule(drawn(0, 3), 4, allow=["1f2b"])


def test_nothing_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"worker \d would need \d+ bytes of 5"):
        best_schedule(drawn(0, 3), 4, Caps(capacity_bytes=5.0, activation_bytes=8.0))
