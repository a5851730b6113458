"""The simulator against one that goes task by task, for any table, durations and messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, Kind, ScheduleTable, Times, makespans, simulate, with_communication
from meshwright.schedules.memory import Footprint
from meshwright.schedules.simulate import Jitter, events_of
from tests.schedules.drawn import Drawn, durations, tables
from tests.schedules.naive_messages import naive_peak, naive_run

SEEDS = st.integers(0, 2**16)


@settings(max_examples=60, deadline=None)
@given(drawn=tables(), seed=SEEDS, overlap=st.booleans(), sending=st.sampled_from([0.0, 0.3, 3.0]), by=st.booleans())
def test_every_start_end_and_message(drawn: Drawn, seed: int, overlap: bool, sending: float, by: bool) -> None:
    table = drawn.table()
    times = durations(table, seed, by_micro_batch=by, sending=sending)
    timeline = simulate(table, times, overlap=overlap)
    naive = naive_run(table, times, overlap=overlap)
    names = [
        (Kind(kind).name, int(stage), int(unit))
        for kind, stage, unit in zip(table.kind, table.stage, table.micro_batch, strict=True)
    ]
    np.testing.assert_allclose(timeline.end_s, [naive.end[name] for name in names], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(timeline.start_s, [naive.start[name] for name in names], rtol=1e-11, atol=1e-11)
    moved = timeline.transfers()
    assert len(moved.consumer) == len(naive.messages) == int(table.crosses.sum())
    if len(moved.consumer):
        found = np.stack([moved.start_s, moved.end_s], axis=1)
        expected = np.array([naive.messages[names[task]] for task in moved.consumer])
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
        assert (table.worker[moved.producer] == moved.from_worker).all()
        assert (moved.gradient == (table.kind[moved.consumer] != Kind.F)).all()
        assert (table.needs[moved.consumer, 0] == moved.producer).all()


@settings(max_examples=25, deadline=None)
@given(drawn=tables(), seed=SEEDS, overlap=st.booleans(), sending=st.sampled_from([0.0, 0.3]), by=st.booleans())
def test_many_sets_at_once_are_the_same_recurrence(
    drawn: Drawn, seed: int, overlap: bool, sending: float, by: bool
) -> None:
    table = drawn.table()
    times = durations(table, seed, rows=3, by_micro_batch=by, sending=sending)
    together = makespans(table, times, overlap=overlap)
    for row in range(3):
        one = _row(times, row)
        np.testing.assert_allclose(
            together[row], simulate(table, one, overlap=overlap).worker_end_s, rtol=1e-10, atol=1e-12
        )


@settings(max_examples=60, deadline=None)
@given(drawn=tables(), seed=SEEDS, overlap=st.booleans(), sending=st.sampled_from([0.0, 0.5]))
def test_a_table_that_spells_its_messages_out_runs_the_same(
    drawn: Drawn, seed: int, overlap: bool, sending: float
) -> None:
    table = drawn.table()
    times = durations(table, seed, sending=sending)
    spelt = with_communication(table)
    plain, explicit = (simulate(one, times, overlap=overlap) for one in (table, spelt))
    own = spelt.kind <= Kind.X
    np.testing.assert_allclose(explicit.end_s[own], plain.end_s, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(explicit.busy_s, plain.busy_s, rtol=1e-12)
    np.testing.assert_allclose(makespans(spelt, times, overlap=overlap), plain.worker_end_s, rtol=1e-10, atol=1e-12)
    a, b = plain.transfers(), explicit.transfers()
    assert (np.nonzero(own)[0][a.consumer] == b.consumer).all()
    assert (np.nonzero(own)[0][a.producer] == b.producer).all()
    np.testing.assert_allclose(a.end_s, b.end_s, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(drawn=tables(), seed=SEEDS, overlap=st.booleans(), sending=st.sampled_from([0.0, 0.5]))
def test_the_critical_path_adds_up_to_the_makespan(drawn: Drawn, seed: int, overlap: bool, sending: float) -> None:
    table = drawn.table()
    timeline = simulate(table, durations(table, seed, sending=sending), overlap=overlap)
    path = timeline.critical_path()
    lasting = timeline.end_s[path.tasks] - timeline.start_s[path.tasks]
    assert timeline.makespan_s == pytest.approx(lasting.sum() + path.wait_s.sum(), rel=1e-11)
    assert path.wait_s.min() >= -1e-12
    assert (np.diff(timeline.start_s[path.tasks]) >= -1e-12).all()
    # Whoever waits on the path waits for a message, and only between workers or while it holds the worker.
    waits = path.wait_s[1:] > 1e-12
    changes = table.worker[path.tasks][1:] != table.worker[path.tasks][:-1]
    assert overlap is False or not (waits & ~changes & (sending == 0)).any()


@settings(max_examples=60, deadline=None)
@given(drawn=tables(), seed=SEEDS, share=st.sampled_from([0.0, 0.25, 1.0]))
def test_peak_memory_is_counted_task_by_task(drawn: Drawn, seed: int, share: float) -> None:
    table = drawn.table()
    activation = np.random.default_rng(seed).integers(1, 100, (table.p, table.v)).astype(float) * 4
    timeline = simulate(table, durations(table, seed))
    used = timeline.memory(Footprint(activation_bytes=activation, released_by_input=share, static_bytes=7.0))
    assert (used.peak_bytes - 7.0).tolist() == naive_peak(table, activation, share)
    ends = np.append(used.first[1:] - 1, [])
    assert (used.live_bytes[ends.astype(int)] == 7.0).all()
    assert (used.peak_s == timeline.start_s[used.peak_task]).all()
    assert (table.kind[used.peak_task] == Kind.F).all()


def test_peak_of_1f1b_is_p_minus_r() -> None:
    timeline = simulate(SCHEDULES["1f1b"].table(4, 8), Times.equal(4))
    used = timeline.memory(Footprint(activation_bytes=1.0))
    assert used.peak_bytes.tolist() == [4, 3, 2, 1]
    assert [timeline.table.name(task) for task in used.peak_task.tolist()] == ["F0.3", "F0.2", "F0.1", "F0.0"]
    assert used.peak_s.tolist() == [3, 3, 3, 3]


def test_receive_buffers_live_from_the_send_to_the_end_of_the_consumer() -> None:
    table = ScheduleTable.from_entries([["F0.0", "B0.0"], ["F0.0", "B0.0"]])
    timeline = simulate(table, Times.equal(2, transfer_s=0.5))
    used = timeline.memory(Footprint(activation_bytes=10.0, receive_bytes=1.0))
    own = slice(used.first[1], used.first[2])
    # Worker 1: the activation leaves worker 0 at 1, F runs from 1.5 to 2.5, B to 4.5.
    assert used.time_s[own].tolist() == [1.0, 1.5, 2.5, 4.5]
    assert used.live_bytes[own].tolist() == [1.0, 11.0, 10.0, 0.0]
    assert used.peak_bytes.tolist() == [11.0, 11.0]


def test_messages_of_a_channel_follow_each_other() -> None:
    table = SCHEDULES["gpipe"].table(2, 3)
    times = Times(forward_s=np.array([[1.0], [0.1]]), backward_s=np.ones((2, 1)), transfer_s=0.5, sending_s=3.0)
    moved = simulate(table, times).transfers()
    forwards = ~moved.gradient
    assert moved.start_s[forwards].tolist() == [1.0, 4.0, 7.0]
    assert moved.end_s[forwards].tolist() == [4.5, 7.5, 10.5]


def test_without_overlap_messages_hold_both_workers() -> None:
    table = ScheduleTable.from_entries([["F0.0", "F0.1", "B0.0", "B0.1"], ["F0.0", "B0.0", "F0.1", "B0.1"]])
    times = Times.equal(2, transfer_s=0.25)
    timeline = simulate(table, times, overlap=False)
    # Worker 0: F0 0-1, send 1-1.25, F1 1.25-2.25, send 2.25-2.5.
    assert timeline.start_s[:2].tolist() == [0.0, 1.25]
    assert timeline.start_s[4] == 1.25
    assert simulate(table, times).start_s[1] == 1.0
    assert timeline.exposed_s[0] >= 4 * 0.25
    free = simulate(table, Times.equal(2))
    assert free.exposed_s.tolist() == [0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(drawn=tables(), seed=SEEDS, overlap=st.booleans(), sending=st.sampled_from([0.0, 0.5]))
def test_exposed_time_is_idle_time(drawn: Drawn, seed: int, overlap: bool, sending: float) -> None:
    table = drawn.table()
    timeline = simulate(table, durations(table, seed, sending=sending), overlap=overlap)
    lasting = max(timeline.worker_end_s.max(), timeline.solution.end_s.max())
    assert (timeline.exposed_s >= 0).all()
    assert (timeline.exposed_s + timeline.busy_s <= lasting + 1e-9).all()


@pytest.mark.parametrize(
    "name", ["1f1b", "interleaved", "zb-h1", "zb-v", "gpipe", "dualpipev", "chimera", "hanayo", "varuna"]
)
@pytest.mark.parametrize("sending", [0.0, 0.2])
def test_what_repeats_is_found_as_if_every_task_were_looked_at(name: str, sending: float) -> None:
    v = 2 if any(one.field == "v" for one in SCHEDULES[name].problems(4, 96, 1)) else 1
    made = SCHEDULES[name].table(4, 96, v)
    for seed in range(4):
        times = durations(made, seed, sending=sending, by_micro_batch=seed == 3)
        short = simulate(made, times)
        assert short.solution.events.phases or sending
        table = SCHEDULES[name].table(4, 96, v)
        whole_table = ScheduleTable.from_dict(table.to_dict()) if table is made else table
        events_of(whole_table, times).__dict__["phases"] = ()
        whole = simulate(whole_table, times)
        np.testing.assert_allclose(short.end_s, whole.end_s, rtol=1e-11)
        np.testing.assert_allclose(short.start_s, whole.start_s, rtol=1e-11)
        path = short.critical_path()
        lasting = short.end_s[path.tasks] - short.start_s[path.tasks]
        assert short.makespan_s == pytest.approx(lasting.sum() + path.wait_s.sum(), rel=1e-11)


def test_jitter_is_reproducible_and_has_mean_one() -> None:
    table = SCHEDULES["1f1b"].table(4, 64)
    times = Times.equal(4)
    first, again, other = (simulate(table, times, jitter=Jitter(sigma=0.1, seed=seed)).makespan_s for seed in (1, 1, 2))
    assert first == again != other
    assert simulate(table, times, jitter=Jitter(sigma=0.0)).makespan_s == simulate(table, times).makespan_s
    busy = simulate(table, times, jitter=Jitter(sigma=0.1, seed=3)).busy_s.mean()
    assert busy == pytest.approx(64 * 3, rel=0.02)


def _row(times: Times, row: int) -> Times:
    fields = {name: getattr(times, name) for name in times.__slots__}
    return Times(**{name: value[row] if isinstance(value, np.ndarray) else value for name, value in fields.items()})


def test_more_sets_than_run_together() -> None:
    seconds = 1.0 + np.arange(1300.0)
    share = np.broadcast_to(seconds[:, None, None], (1300, 2, 1))
    times = Times(forward_s=share, backward_s=2.0 * share)
    np.testing.assert_allclose(
        makespans(SCHEDULES["1f1b"].table(2, 40), times).max(axis=1), (40 + 1) * 3 * seconds, rtol=1e-12
    )


def test_several_sets_of_durations_are_no_timeline() -> None:
    times = Times(forward_s=np.ones((3, 2, 1)), backward_s=np.ones((3, 2, 1)))
    with pytest.raises(InputError, match="3 sets of durations for one timeline"):
        simulate(SCHEDULES["gpipe"].table(2, 4), times)
