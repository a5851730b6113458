"""The numbers of one schedule with equal stages, and its own parameters."""

from __future__ import annotations

import pytest

from meshwright.app.schedule import run_schedule
from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES


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
    assert len(run.to_dict()["workers"]) == 4  # type: ignore[arg-type]
