"""What each schedule declares, measured: closed form, bound, activations in flight, fast simulation, constraints."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.schedules import (
    DEFAULT_SCHEDULES,
    SCHEDULES,
    Kind,
    Schedule,
    Times,
    makespans,
    schedule_named,
    simulate,
)
from meshwright.schedules.base import _cached_program
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.interleaved import Interleaved
from meshwright.schedules.timeline import Timeline
from tests.schedules.cases import CASES, ONE_BY_ONE, Case, name, unequal
from tests.schedules.naive import naive_ends, worker_ends_of

Shape = tuple[int, int, int]
each_shape = pytest.mark.parametrize(("case", "shape"), ONE_BY_ONE, ids=name)


def test_every_schedule_has_cases() -> None:
    assert {case.schedule.name for case in CASES} == set(SCHEDULES)
    assert all(schedule.name == key and schedule.source for key, schedule in SCHEDULES.items())


def test_chains_are_those_of_the_placement_and_every_legal_shape_has_the_chunks_it_says() -> None:
    for case, (p, m, v) in ONE_BY_ONE:
        placement = case.schedule.placement(p, v)
        assert placement.chains == case.schedule.chains
        assert (placement.p, placement.v) == (p, v * placement.chains)
        assert case.schedule.fewest_chunks(p, m) <= v


def test_names_aliases_and_near_names() -> None:
    assert schedule_named("dapple") is SCHEDULES["1f1b"]
    with pytest.raises(UnsupportedError, match="did you mean interleaved"):
        schedule_named("interleafed")


@each_shape
def test_closed_form_and_bound_are_the_simulated_time_for_equal_stages(case: Case, shape: Shape) -> None:
    p, m, v = shape
    for forward_s, backward_s in ((1.0, 2.0), (1.0, 1.0), (3.0, 4.0)):
        times = case.schedule.equal_times(
            p, v, forward_s=forward_s, backward_s=backward_s, weight_s=backward_s / 2, recompute_s=forward_s
        )
        makespan = simulate(case.schedule.table(p, m, v), times).makespan_s
        bound = case.schedule.lower_bound_s(
            times.forward_s, times.backward_s, 0.0, m, weight_s=times.weight_s, recompute_s=times.recompute_s
        )
        declared = case.schedule.closed_form_s(p, m, v, forward_s, backward_s)
        if case.closed_form and declared is not None:
            assert declared == pytest.approx(makespan, rel=1e-12)
            assert bound == pytest.approx(makespan, rel=1e-11)
        assert bound <= makespan


@pytest.mark.parametrize("case", CASES, ids=name)
@given(
    seconds=st.tuples(*(st.sampled_from([0.5, 1.0, 1.25, 2.0]) for _ in range(3))),
    p=st.integers(1, 8),
    m=st.integers(1, 24),
    v=st.integers(1, 3),
)
@settings(max_examples=30)
def test_closed_form_is_the_simulated_time_wherever_there_is_one(
    case: Case, seconds: tuple[float, float, float], p: int, m: int, v: int
) -> None:
    schedule = case.schedule
    forward_s, input_s, weight_s = seconds
    if schedule.problems(p, m, v) or not case.closed_form:
        return
    declared = schedule.split_closed_form_s(p, m, v, forward_s, input_s, weight_s)
    if declared is None:
        return
    times = schedule.equal_times(
        p, v, forward_s=forward_s, backward_s=input_s + weight_s, weight_s=weight_s, recompute_s=forward_s
    )
    assert declared == pytest.approx(simulate(schedule.table(p, m, v), times).makespan_s, rel=1e-11)


@each_shape
@given(data=st.data())
@settings(max_examples=8)
def test_simulation_is_the_naive_one_of_every_set_of_durations_and_no_bound_is_above_it(
    case: Case, shape: Shape, data: st.DataObject
) -> None:
    p, m, v = shape
    table = case.schedule.table(p, m, v)
    rows = data.draw(unequal(p, table.v, rows=8))
    together = case.schedule.end_s(p, m, v, rows)
    alone = each_of(rows)[:4]
    timelines = [simulate(table, one) for one in alone]
    for ends, timeline in zip(together, timelines, strict=False):
        np.testing.assert_allclose(ends, timeline.worker_end_s, rtol=1e-9)
    check_naive(case, shape, alone[0], timelines[0])
    durations = (rows.forward_s, rows.backward_s, rows.transfer_s, m, rows.weight_s, rows.recompute_s)
    assert (case.schedule.end_lower_bound_s(*durations) <= together).all()
    assert (case.schedule.lower_bound_s(*durations) <= together.max(axis=-1)).all()


def each_of(rows: Times) -> list[Times]:
    """Sets of durations one by one."""
    return [
        Times(
            forward_s=rows.forward_s[row],
            backward_s=rows.backward_s[row],
            transfer_s=rows.transfer_s[row],
            weight_s=rows.weight_s[row],
            recompute_s=rows.recompute_s[row],
        )
        for row in range(len(rows.forward_s))
    ]


def check_naive(case: Case, shape: Shape, times: Times, timeline: Timeline) -> None:
    """Hold ends of tasks and workers to those of the naive simulation, and busy seconds to the sum of their tasks."""
    p, m, v = shape
    table = case.schedule.table(p, m, v)
    expected = naive_ends(table, times)
    columns = (table.kind.tolist(), table.stage.tolist(), table.micro_batch.tolist())
    ends = [expected[Kind(kind).name, stage, unit] for kind, stage, unit in zip(*columns, strict=True)]
    np.testing.assert_allclose(timeline.end_s, ends, rtol=1e-11)
    last = worker_ends_of(table, expected)
    np.testing.assert_allclose(makespans(table, times), last, rtol=1e-9)
    np.testing.assert_allclose(case.schedule.end_s(p, m, v, times), last, rtol=1e-9)
    units = np.zeros((p, table.v))
    placement = table.placement
    units[placement.worker, placement.chunk] = np.asarray(table.micro_batches)[placement.chain]
    recomputed = np.zeros((p, table.v))
    again = np.isin(table.kind, (Kind.R, Kind.X))
    np.add.at(recomputed, (table.worker[again], table.chunk[again]), 1)
    busy = (units * (times.forward_s + times.backward_s) + recomputed * times.recompute_s).sum(axis=1)
    np.testing.assert_allclose(timeline.busy_s, busy)


@each_shape
def test_bound_is_within_a_quarter_for_stages_that_differ_by_up_to_two(case: Case, shape: Shape) -> None:
    p, m, v = shape
    rng = np.random.default_rng(1)
    drawn = (40, p, case.schedule.table(p, m, v).v)
    backward_s = 2.0 * (1 + rng.random(drawn))
    times = Times(
        forward_s=1 + rng.random(drawn),
        backward_s=backward_s,
        weight_s=backward_s * (0.35 + 0.3 * rng.random(drawn)),
        transfer_s=0.2 * rng.random(drawn),
        recompute_s=1 + rng.random(drawn),
    )
    simulated = case.schedule.end_s(p, m, v, times).max(axis=-1)
    bound = case.schedule.lower_bound_s(
        times.forward_s, times.backward_s, times.transfer_s, m, times.weight_s, times.recompute_s
    )
    assert (bound >= 0.75 * simulated).all(), (bound / simulated).min()


@pytest.mark.parametrize(
    ("case", "shape"), [one for one in ONE_BY_ONE if one[0].closed_form and one[0].tight], ids=name
)
def test_bound_is_near_the_simulated_time_with_transfers_and_small_spread(case: Case, shape: Shape) -> None:
    p, m, v = shape
    rng = np.random.default_rng(0)
    forward_s, backward_s = ((1 + 0.02 * rng.random((20, p, v))) * seconds / v for seconds in (1.0, 2.0))
    transfer_s = np.full((20, p, v), 0.02 * 3.0 / v)
    times = Times(forward_s=forward_s, backward_s=backward_s, transfer_s=transfer_s)
    simulated = case.schedule.end_s(p, m, v, times).max(axis=-1)
    bound = case.schedule.lower_bound_s(forward_s, backward_s, transfer_s, m)
    assert (bound >= simulated * (1 - 0.02)).all(), (1 - bound / simulated).max()


@each_shape
def test_activations_in_flight_are_those_of_the_whole_table(case: Case, shape: Shape) -> None:
    p, m, v = shape
    declared = case.schedule.in_flight(p, m, v)
    measured = live_vectors(case.schedule.table(p, m, v))
    assert len(declared) == p
    for given_vectors, counted in zip(declared, measured, strict=True):
        assert {tuple(vector) for vector in given_vectors.tolist()} == {tuple(vector) for vector in counted.tolist()}


@pytest.mark.parametrize("case", CASES, ids=name)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_in_flight_vectors_give_the_peak_for_any_bytes_per_chunk(case: Case, seed: int) -> None:
    p, m, v = case.shapes[-1]
    table = case.schedule.table(p, m, v)
    bytes_of = np.random.default_rng(seed).random((p, table.v))
    freed = (table.kind == Kind.B) | (table.kind == Kind.W)
    change = np.where(table.kind == Kind.F, 1.0, np.where(freed, -1.0, 0.0)) * bytes_of[table.worker, table.chunk]
    for worker, vectors in enumerate(case.schedule.in_flight(p, m, v)):
        over_time = np.cumsum(change[table.first[worker] : table.first[worker + 1]])
        assert (vectors @ bytes_of[worker]).max() == pytest.approx(over_time.max())


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        (SCHEDULES["1f1b"], (8, 301, 1)),
        (SCHEDULES["1f1b"], (16, 256, 1)),
        (SCHEDULES["gpipe"], (8, 301, 1)),
        (SCHEDULES["interleaved"], (8, 128, 2)),
        (SCHEDULES["interleaved"], (4, 256, 5)),
        (Interleaved(group=6), (4, 184, 2)),
    ],
    ids=lambda value: getattr(value, "name", None) or name(value),
)
@given(data=st.data())
@settings(max_examples=12)
def test_skipping_the_steady_phase_changes_nothing(schedule: object, shape: Shape, data: st.DataObject) -> None:
    p, m, v = shape
    rows = data.draw(unequal(p, v, rows=2))
    table = schedule.table(p, m, v)
    fast, same_table = schedule.end_s(p, m, v, rows), makespans(table, rows)
    for row in range(2):
        one = Times(forward_s=rows.forward_s[row], backward_s=rows.backward_s[row], transfer_s=rows.transfer_s[row])
        exact = simulate(table, one).worker_end_s
        np.testing.assert_allclose(fast[row], exact, rtol=1e-9)
        np.testing.assert_allclose(same_table[row], exact, rtol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=name)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=2)
def test_a_long_step_is_a_shorter_one_stretched(case: Case, seed: int) -> None:
    """Where a schedule declares a period, ends and live activations of a long step come from a short one."""
    schedule = case.schedule
    legal = [(p, m, v) for p in (3, 4) for v in (1, 2) for m in (96, 95) if not schedule.problems(p, m, v)]
    legal = [shape for shape in legal if schedule.period(shape[0], shape[2]) is not None]
    if not legal:
        return
    p, m, v = legal[seed % len(legal)]
    if type(schedule).end_s is Schedule.end_s:
        assert _cached_program(schedule, p, m, v)[3] is not None
    rng = np.random.default_rng(seed)
    whole = schedule.table(p, m, v)
    forward_s, backward_s = np.exp(rng.standard_normal((2, p, whole.v)))
    times = Times(
        forward_s=forward_s,
        backward_s=backward_s,
        weight_s=backward_s * rng.random((p, whole.v)),
        transfer_s=0.5 * rng.random((p, whole.v)),
        recompute_s=forward_s,
    )
    np.testing.assert_allclose(schedule.end_s(p, m, v, times), makespans(whole, times), rtol=1e-9)
    for declared, counted in zip(schedule.in_flight(p, m, v), live_vectors(whole), strict=True):
        assert sorted(map(tuple, declared.tolist())) == sorted(map(tuple, counted.tolist()))


@pytest.mark.parametrize("case", CASES, ids=name)
def test_what_is_not_legal_names_a_nearest_legal_value(case: Case) -> None:
    """Whoever follows the remedies of one field after the other gets a legal schedule."""
    schedule = case.schedule
    for p, m, v in ((0, 8, 1), (4, 0, 2), (1, 1, 1), (3, 5, 1), (4, 7, 2), (5, 11, 3), (6, 4, 5)):
        shape = {"p": p, "m": m, "v": v}
        for _ in range(6):
            problems = schedule.problems(**shape)
            if not problems:
                break
            assert all(problem.what and problem.why and problem.fix for problem in problems)
            assert all(problem.what.startswith(f"{schedule.name}: ") for problem in problems)
            for problem in problems:
                mend = re.search(rf"\b{problem.field} = (\d+)", problem.fix)
                if problem.field in shape and mend:
                    shape[problem.field] = int(mend[1])
        fields = {problem.field for problem in schedule.problems(**shape)}
        assert not fields & set(shape), (shape, fields)


@pytest.mark.parametrize(
    ("schedule", "shape", "fields", "fix"),
    [
        ("1f1b", (4, 8, 2), {"v"}, "v = 1"),
        ("gpipe", (0, -1, 1), {"p", "m"}, "1 or more"),
        ("interleaved", (4, 10, 2), {"m"}, "m = 8 or 12, or group = 5"),
        ("interleaved", (4, 3, 2), {"m"}, "m = 4"),
        ("interleaved", (1, 8, 1), {"p", "v"}, "schedule 1f1b"),
        ("interleaved-zb", (4, 10, 2), {"m"}, "m = 8 or 12"),
        ("zb-h1", (4, 8, 2), {"v"}, "v = 1"),
        ("zb-h2", (4, 6, 1), {"m"}, "m = 7 or more"),
        ("zb-v", (4, 8, 1), {"v"}, "v = 2"),
        ("v-min", (4, 8, 3), {"v"}, "v = 2"),
        ("dualpipe", (5, 20, 1), {"p"}, "p = 4 or 6"),
        ("dualpipe", (4, 11, 1), {"m"}, "m = 10 or 12"),
        ("dualpipe", (1, 1, 2), {"p", "m", "v"}, "v = 1"),
        ("dualpipev", (4, 7, 2), {"m"}, "m = 8 or more"),
        ("seq1f1b", (4, 8, 2), {"v"}, "v = 1"),
    ],
)
def test_constraints_name_all_problems_and_legal_values(
    schedule: str, shape: Shape, fields: set[str], fix: str
) -> None:
    problems = SCHEDULES[schedule].problems(*shape)
    assert {problem.field for problem in problems} == fields
    assert fix in problems[0].fix
    for ask in (SCHEDULES[schedule].table, SCHEDULES[schedule].path_bound, SCHEDULES[schedule].in_flight):
        with pytest.raises(InputError):
            ask(*shape)
    with pytest.raises(InputError):
        SCHEDULES[schedule].end_s(*shape, Times.equal(max(shape[0], 1), shape[2]))


def test_an_odd_pipeline_of_both_directions_names_the_micro_batches_of_the_even_ones() -> None:
    workers, micro_batches = SCHEDULES["dualpipe"].problems(5, 7)
    assert workers.fix == "p = 4 or 6"
    assert micro_batches.fix == "m = 8 or more with p = 4 or m = 12 or more with p = 6"
    assert [problem.field for problem in SCHEDULES["dualpipe"].problems(5, 12)] == ["p"]


def test_group_smaller_than_the_pipeline_is_refused() -> None:
    assert [problem.field for problem in Interleaved(group=2).problems(4, 8, 2)] == ["group"]
    assert "group = 2" in Interleaved().problems(4, 2, 2)[0].fix
    assert not Interleaved(group=2).problems(4, 2, 2)


def test_the_table_of_the_same_shape_is_the_same_object() -> None:
    assert SCHEDULES["1f1b"].table(4, 8) is SCHEDULES["1f1b"].table(4, 8, 1)
    assert SCHEDULES["1f1b"].path_bound(4, 100) is SCHEDULES["1f1b"].path_bound(4, 1000)


def test_those_searched_by_default_say_so_themselves() -> None:
    assert [name for name, schedule in SCHEDULES.items() if schedule.searched_by_default] == list(DEFAULT_SCHEDULES)
