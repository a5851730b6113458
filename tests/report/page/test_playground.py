"""The playground's data: the schedule that the command line draws, memory as it counts it, sizes within bounds."""

from __future__ import annotations

import pytest

from meshwright import estimate, plan
from meshwright.app.pages.source import source_of
from meshwright.errors import InputError, UnsupportedError
from meshwright.report.page.views.playground import live_data, schedule_data, view_data
from meshwright.report.page.views.timeline import view_data as timeline_data
from meshwright.schedules.equal_stages import run_schedule
from tests.report.page.sources import source

ASKED = {"name": "zb-h1", "p": 4, "m": 8, "v": None, "forward_s": 1.0, "input_s": 2.0, "weight_s": 0.5}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved", "dualpipe", "v-half", "gpipe"])
def test_times_and_memory_are_those_of_the_schedule(name: str) -> None:
    data = schedule_data({**ASKED, "name": name, "transfer_s": 0.25})
    run = run_schedule(name, 4, 8, forward_s=1.0, input_s=2.0, weight_s=0.5, transfer_s=0.25)
    assert data["makespan_s"] == data["end_s"] == pytest.approx(run.timeline.makespan_s)
    assert data["tasks"]["count"] == run.timeline.table.tasks
    assert [row["peak_bytes"] for row in data["memory"]["workers"]] == list(run.peak_activations)
    assert [sum(worker["shares"].values()) for worker in data["workers"]] == pytest.approx([1.0] * 4)


def test_the_first_schedule_is_the_plans_own() -> None:
    answer = source("mixed")
    data = view_data(answer.plans[0], answer)
    pipeline = answer.plans[0].job.plan.pipelines[0]
    assert (data["asked"]["name"], data["asked"]["p"]) == ("1f1b", len(pipeline.workers))
    drawn = live_data(answer.plans[0], answer, data["asked"])
    busy_s = answer.plans[0].picture().timeline.busy_s.mean() / pipeline.num_micro_batches
    assert sum(data["asked"][name] for name in ("forward_s", "input_s", "weight_s")) == pytest.approx(busy_s)
    assert len(drawn["workers"]) == data["asked"]["p"]


def test_tasks_that_run_together_count_once() -> None:
    answer = source_of(estimate("llama-3-8b", "tp2.pp4.dualpipe.dp2.z1.mbs1.gbs32", gpus="16xH100"))
    asked = view_data(answer.plans[0], answer)["asked"]
    busy_s = answer.plans[0].picture().timeline.busy_s.mean() / answer.plans[0].job.plan.pipelines[0].num_micro_batches
    assert asked["name"] == "dualpipe"
    assert sum(asked[name] for name in ("forward_s", "input_s", "weight_s")) == pytest.approx(busy_s)


def test_a_step_that_is_priced_but_not_drawn_leaves_the_playground_to_others() -> None:
    lengths = "histogram:512=.6,8192=.4"
    answer = source_of(
        plan("llama-3.1-8b", gpus="16xH100", global_batch=64, lengths=lengths, packing="dynapipe", pin=("pp=4",), top=1)
    )
    asked = view_data(answer.plans[0], answer)["asked"]
    assert (asked["name"], asked["p"]) == ("1f1b", 4)
    assert "packing dynapipe" in timeline_data(answer.plans[0], answer)["absent"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"p": 0}, "p"),
        ({"p": 2.5}, "p"),
        ({"m": True}, "m"),
        ({"v": 99}, "v"),
        ({"forward_s": -1}, "forward_s"),
        ({"weight_s": float("nan")}, "weight_s"),
        ({"input_s": "1"}, "input_s"),
        ({"p": 128, "m": 512}, "m"),
        ({"name": "dualpipe", "p": 3}, "p"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_rule(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        schedule_data({**ASKED, **wrong})
    assert field in [problem.field for problem in refused.value.problems]
    with pytest.raises(UnsupportedError, match="2f2b"):
        schedule_data({**ASKED, "name": "2f2b"})
