"""The numbers of one schedule with equal stages, and its own parameters."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.schedules import SCHEDULES
from meshwright.schedules.equal_stages import run_schedule, run_schedules


@pytest.mark.parametrize(
    ("name", "parameters", "makespan_s", "peaks"),
    [
        ("1f1b", {}, 33, (4, 3, 2, 1)),
        ("gpipe", {}, 33, (8, 8, 8, 8)),
        ("zb-h1", {}, 27, (4, 4, 4, 4)),
        ("zb-h2", {}, 27, (7, 7, 7, 7)),
        ("zb-v", {}, 25.5, (8, 8, 8, 8)),
        ("v-half", {"raw": True}, 30, (6, 6, 6, 6)),
        ("seq1f1b", {"segments": 2}, 28.5, (5, 4, 3, 2)),
        ("chimera", {"pairs": 1}, 30, (3, 4, 4, 3)),
        ("dualpipe", {}, 26, (5, 5, 5, 5)),
        ("interleaved", {}, 28.5, (11, 9, 7, 5)),
    ],
)
def test_published_numbers_of_four_workers_and_eight_micro_batches(
    name: str, parameters: dict[str, int | bool], makespan_s: float, peaks: tuple[int, ...]
) -> None:
    run = run_schedule(name, 4, 8, parameters=parameters)
    assert run.timeline.makespan_s == pytest.approx(makespan_s)
    assert run.peak_activations == peaks


def test_waves_set_the_chunks() -> None:
    assert run_schedule("hanayo", 4, 4, parameters={"waves": 2}).v == 4


def test_a_parameter_of_another_schedule_is_refused_with_its_owner() -> None:
    with pytest.raises(InputError, match="hanayo has it"):
        run_schedule("gpipe", 4, 4, parameters={"waves": 3})


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_runs_at_its_fewest_chunks(name: str) -> None:
    run = run_schedule(name, 4, 12)
    assert run.timeline.makespan_s > 0
    assert len(run.to_dict()["workers"]) == 4


def test_each_is_what_it_is_alone() -> None:
    stack = run_schedules(["1f1b", "zb-h1", "hanayo"], 4, 8, weight_s=0.5, transfer_s=0.1)
    alone = [run_schedule(name, 4, 8, weight_s=0.5, transfer_s=0.1) for name in ("1f1b", "zb-h1", "hanayo")]
    assert [run.to_dict() for run in stack] == [run.to_dict() for run in alone]


def test_settings_go_to_the_schedules_that_have_them() -> None:
    stack = run_schedules(["1f1b", "hanayo"], 4, 8, parameters={"waves": 2})
    assert [run.v for run in stack] == [1, 4]


def test_all_problems_are_said_together() -> None:
    with pytest.raises(InputError) as caught:
        run_schedules(["zb-h2", "1f1b", "dualpipe"], 4, 3, parameters={"waves": 2})
    assert [problem.field for problem in caught.value.problems] == ["m", "m", "waves"]
    with pytest.raises(UnsupportedError, match="hanayoo"):
        run_schedules(["hanayoo", "1f1b"], 4, 8)
