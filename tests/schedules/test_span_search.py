"""The shortest span: as short as public heuristics make it, within memory, and what steps take among others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.schedules import Caps, Scheduled, Times, best_schedule, span_search
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.order_search import ordered_by
from tests.schedules.test_order_search import options_of, work_of

PUBLIC = [
    # p, m, chunks, room, f, i, w and latency of a chunk (the last three by profiles of 1.5B to 28B models), span.
    (4, 8, 1, 4, 6, 4, 4, 1, 142),
    (4, 8, 1, 6, 6, 4, 4, 1, 128),
    (4, 8, 1, 8, 6, 4, 4, 1, 120),
    (4, 8, 2, 4, 6, 4, 4, 1, 244),
    (8, 24, 1, 8, 18522, 18086, 9337, 601, 1310405),
    (8, 24, 1, 12, 29718, 29444, 19927, 527, 2100451),
    (8, 24, 1, 16, 29718, 29444, 19927, 527, 2020743),
    (8, 24, 2, 8, 18522, 18086, 9337, 601, 2346803),
    (8, 24, 2, 8, 29444, 29718, 19927, 527, 3937428),
]
"""Spans that the heuristics of sail-sg/zero-bubble-pipeline-parallelism (39f2c18, run on 2026-11-27) find, where an
activation lives until its weight gradient has run; cases are its authors' own, of v_schedule.py."""


RELEASED = [
    # p, m, room, share of an activation that the input gradient frees, f, i, w, latency, span; one chunk.
    (4, 12, 5, 0.5, 5, 6, 4, 0, 193),
    (4, 12, 16, 0.5, 5478, 5806, 3534, 200, 178898),
    (8, 24, 16, 688 / 1240, 10484, 11266, 7106, 281, 701952),
    (8, 32, 16, 2048 / 3720, 29850, 29767, 18868, 466, 2517463),
    (16, 48, 32, 1 - 32 / 74, 14407, 14380, 9676, 1610, 1888960),
]
"""As `PUBLIC`, from zb.py and v_schedule.py, run on 2026-11-28 with the memory of its authors."""


def shortest(
    p: int, m: int, v: int, room: float, f: float, i: float, w: float, latency: float, released: float = 0.0
) -> Scheduled:
    whole = np.full((p, 1), float(v))
    times = Times(forward_s=f * whole, backward_s=(i + w) * whole, weight_s=w * whole, transfer_s=latency)
    caps = Caps(capacity_bytes=room, activation_bytes=1.0, released_by_input=released)
    placements = ("linear",) if v == 1 else ("v",)
    return best_schedule(times, m, caps, chunks=(v,), placements=placements, objective="span")


@pytest.mark.parametrize("case", PUBLIC, ids=str)
def test_spans_are_as_short_as_those_of_public_heuristics(case: tuple[float, ...]) -> None:
    p, m, v, room, *rest, span_s = case
    found = shortest(int(p), int(m), int(v), room, *rest)
    assert found.bound_s <= found.span_s <= span_s * (1 + 1e-6)
    assert max(vectors.sum(axis=1).max() for vectors in live_vectors(found.table)) <= room * v


@pytest.mark.parametrize("case", RELEASED, ids=str)
def test_memory_that_input_gradients_free_is_used(case: tuple[float, ...]) -> None:
    p, m, room, released, *rest, span_s = case
    found = shortest(int(p), int(m), 1, room, *rest, released)
    assert found.bound_s <= found.span_s <= span_s * (1 + 1e-6)
    for row in found.table.entries():
        changes = [{"F": 1.0, "I": -released, "W": released - 1.0}[entry[0]] for entry in row]
        assert np.cumsum(changes).max() <= room * (1 + 1e-9)
    assert found.peak_bytes.max() <= room * (1 + 1e-9)


def test_a_share_released_early_makes_no_order_longer_and_is_one_of_all() -> None:
    spans = [shortest(4, 8, 1, 4, 6, 4, 4, 1, share).span_s for share in (0.0, 0.5, 1.0)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > spans[-1]
    with pytest.raises(InputError, match="released_by_input"):
        shortest(4, 8, 1, 4, 6, 4, 4, 1, 1.5)


def test_steps_without_a_barrier_follow_each_other_at_the_span() -> None:
    found = shortest(4, 6, 1, 5, 6, 4, 4, 1)
    table, times = found.table, found.times
    ends: dict[tuple[int, str, int, int], float] = {}
    start_s = np.zeros((3, 4))
    free_s = np.zeros(4)
    f, b, w = (np.asarray(seconds)[:, 0] for seconds in (times.forward_s, times.backward_s, times.weight_s))
    seconds = {"F": f, "I": b - w, "W": w}
    orders = [[(entry[0], int(entry.split(".")[1])) for entry in row] for row in table.entries()]
    for step in range(3):
        left = [list(order) for order in orders]
        while any(left):
            for r, own in enumerate(left):
                while own:
                    kind, unit = own[0]
                    before = {"F": ("F", r - 1), "I": ("I", r + 1), "W": ("I", r)}[kind]
                    if before[1] == 4:
                        before = ("F", r)
                    ready_s = 0.0 if before[1] < 0 else ends.get((step, before[0], before[1], unit))
                    if ready_s is None:
                        break
                    begin_s = max(free_s[r], ready_s + (1.0 if 0 <= before[1] != r else 0.0))
                    start_s[step, r] = begin_s if len(own) == len(orders[r]) else start_s[step, r]
                    free_s[r] = ends[step, kind, r, unit] = begin_s + seconds[kind][r]
                    own.pop(0)
    assert np.diff(start_s, axis=0).max() == pytest.approx(found.span_s)
    assert found.span_s < found.makespan_s


def test_no_named_schedule_has_a_shorter_span_and_whole_backwards_may_be_asked_for() -> None:
    rng = np.random.default_rng(0)
    forward_s, input_s, weight_s = (1 + rng.random((3, 1)) for _ in range(3))
    times = Times(forward_s=forward_s, backward_s=input_s + weight_s, weight_s=weight_s, transfer_s=0.05)
    found = best_schedule(times, 6, objective="span")
    spans = [seen.span_s for seen in found.candidates if seen.named and seen.span_s is not None]
    assert found.bound_s <= found.span_s <= min(spans)
    whole = best_schedule(times, 6, objective="span", split=False, allow=["1f1b"])
    assert {entry[0] for row in whole.table.entries() for entry in row} == {"F", "B"}


def test_another_objective_is_refused() -> None:
    with pytest.raises(InputError, match="makespan or span"):
        best_schedule(Times(forward_s=np.ones((2, 1)), backward_s=np.ones((2, 1)), transfer_s=0.0), 2, objective="time")


def test_an_order_is_asked_to_end_sooner_by_shares_of_what_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked for is left to weight gradients: both add up to the time that idles."""
    asked: list[list[float]] = []

    def latest(start: object, ends_s: list[float]) -> dict[tuple[object, int, int], float]:
        asked.append(list(ends_s))
        return {}

    monkeypatch.setattr(span_search, "latest_starts", latest)
    work = work_of([1.0, 1.0], split=True)
    found = ordered_by(work, options_of(work)[0].rule(), "")
    start = replace(found, span_s=100.0, starts_s=(0.0, 2.0))
    rests = [rest for _, rest in span_search._slack_rules(start, 30.0)]
    assert asked == [[100.0 - sooner * 30.0, 102.0 - sooner * 30.0] for sooner in (0.0, 0.025, 0.1)]
    assert [rest.most_s for rest in rests] == pytest.approx([30.0, 29.25, 27.0])
