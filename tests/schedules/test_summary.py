"""The published numbers of four workers and eight micro-batches, schedule by schedule: time, span, peak, weights."""

from __future__ import annotations

import pytest

from meshwright.schedules import SCHEDULES, Schedule, simulate
from meshwright.schedules.named.seq1f1b import Seq1F1B

P, M = 4, 8


@pytest.mark.parametrize(
    ("schedule", "v", "makespan_s", "span_s", "peaks", "copies"),
    [
        (SCHEDULES["gpipe"], 1, 33, 33, [8, 8, 8, 8], 1),
        (SCHEDULES["1f1b"], 1, 33, 33, [4, 3, 2, 1], 1),
        (SCHEDULES["pipedream-flush"], 1, 33, 33, [4, 3, 2, 1], 1),
        (SCHEDULES["interleaved"], 2, 28.5, 28.5, [11, 9, 7, 5], 1),
        (SCHEDULES["interleaved"], 4, 26.25, 26.25, [19, 17, 15, 13], 1),
        (SCHEDULES["breadth-first"], 2, 28.5, 28.5, [16, 16, 16, 16], 1),
        (SCHEDULES["zb-h1"], 1, 27, 27, [4, 4, 4, 4], 1),
        (SCHEDULES["zb-h2"], 1, 27, 24, [7, 7, 7, 7], 1),
        (SCHEDULES["zb-v"], 2, 25.5, 24, [8, 8, 8, 8], 1),
        (SCHEDULES["v-half"], 2, None, 26.5, [6, 6, 6, 6], 1),
        (SCHEDULES["v-min"], 2, None, 29.5, [4, 4, 4, 4], 1),
        (SCHEDULES["interleaved-zb"], 2, 25.5, None, [8, 8, 8, 8], 1),
        (SCHEDULES["interleaved-zb"], 4, 24.75, None, [16, 16, 16, 16], 1),
        (SCHEDULES["chimera"], 1, 30, None, [3, 4, 4, 3], 2),
        (SCHEDULES["dualpipe"], 1, 26, None, [5, 5, 5, 5], 2),
        (SCHEDULES["dualpipev"], 2, 27, None, [9, 9, 9, 9], 1),
        (Seq1F1B(segments=2), 1, 28.5, None, [5, 4, 3, 2], 1),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_summary_of_four_workers(
    schedule: Schedule, v: int, makespan_s: float | None, span_s: float | None, peaks: list[int], copies: int
) -> None:
    timeline = simulate(schedule.table(P, M, v), schedule.equal_times(P, v))
    if makespan_s is not None:
        assert timeline.makespan_s == pytest.approx(makespan_s)
        assert timeline.bubble_makespan == pytest.approx(1 - M * 3 / makespan_s)
    if span_s is not None:
        assert timeline.span_s == pytest.approx(span_s)
        assert timeline.bubble_span == pytest.approx(1 - M * 3 / span_s)
    assert [int(live.sum(axis=1).max()) for live in schedule.in_flight(P, M, v)] == peaks
    assert schedule.worker_weight_copies(P, M, v) == (copies,) * P


@pytest.mark.parametrize(("p", "m", "half_s", "min_s"), [(4, 8, 26.5, 29.5), (8, 24, 80.5, 84.5)])
def test_spans_of_the_v_shapes(p: int, m: int, half_s: float, min_s: float) -> None:
    for name, span_s in (("v-half", half_s), ("v-min", min_s)):
        schedule = SCHEDULES[name]
        assert simulate(schedule.table(p, m, 2), schedule.equal_times(p, 2)).span_s == pytest.approx(span_s)


@pytest.mark.parametrize(("p", "m", "makespan_s"), [(4, 4, 16.0), (4, 8, 30.0), (8, 16, 66.0), (8, 32, 126.0)])
def test_times_of_chimera(p: int, m: int, makespan_s: float) -> None:
    """Its concatenation loses to 1F1B's 117 s on eight workers and 32 micro-batches."""
    chimera = SCHEDULES["chimera"]
    assert simulate(chimera.table(p, m), chimera.equal_times(p)).makespan_s == pytest.approx(makespan_s)


@pytest.mark.parametrize(("p", "m", "v", "boundaries"), [(4, 8, 2, 7), (2, 4, 3, 5)])
def test_chunks_multiply_the_boundaries(p: int, m: int, v: int, boundaries: int) -> None:
    assert SCHEDULES["interleaved"].boundaries(p, v) == boundaries
    assert SCHEDULES["1f1b"].boundaries(p) == p - 1
    assert SCHEDULES["zb-v"].boundaries(p, 2) == 2 * (p - 1)
    assert SCHEDULES["hanayo"].boundaries(p, 4) == 4 * (p - 1)
    assert SCHEDULES["dualpipe"].boundaries(p) == p - 1
    assert Seq1F1B(segments=3).boundaries(p) == p - 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_sent_besides_one_boundary_per_neighbour_is_said(name: str) -> None:
    schedule = SCHEDULES[name]
    v = min(v for v in (1, 2) if not schedule.problems(4, 12, v))
    more = schedule.boundaries(4, v) > 3 or schedule.sections() > 1
    if more or (schedule.weight_copies > 1 and schedule.exact_semantics):
        assert schedule.traffic
