"""`estimate --schedule`: one plan under many schedules."""

from __future__ import annotations

import pytest

from meshwright import estimate, plan
from meshwright.app.estimate import ScheduleComparison
from meshwright.errors import InfeasibleError, InputError
from meshwright.schedules import SCHEDULES


def compared(schedules: str) -> ScheduleComparison:
    text = "tp2.pp2.mbs1.z1"
    return estimate("llama-3.1-8b", text, gpus="8xH100", global_batch=16, seq_len=2048, schedule=schedules)


def test_every_schedule_has_a_row_and_refusals_say_why() -> None:
    found = compared("all").to_dict()
    assert {entry["schedule"] for entry in found["schedules"]} == set(SCHEDULES)
    refused = {entry["schedule"]: entry["refused"] for entry in found["schedules"] if entry["refused"]}
    assert set(refused) == {"mobius"}
    assert "paged" in refused["mobius"]
    times = [entry["step_time_s"] for entry in found["schedules"] if not entry["refused"]]
    assert times == sorted(times)
    by_name = {entry["schedule"]: entry for entry in found["schedules"]}
    assert not by_name["pipedream"]["exact_semantics"]
    assert by_name["zb-v"]["plan"].startswith("tp2.pp2.vpp2.")
    assert by_name["varuna"]["plan"].endswith("rc-full")


def test_a_setting_that_bounds_do_not_know_is_compared_but_not_searched() -> None:
    found = compared("zb-h2,zb-h2-post").to_dict()["schedules"]
    assert [entry["schedule"] for entry in found][:2] == ["zb-h2-post", "zb-h2"]
    with pytest.raises(InputError, match=r"zb-h2-post.* in a search"):
        plan("llama-3.1-8b", gpus="8xH100", global_batch=16, seq_len=2048, schedule="zb-h2-post")


def test_a_row_is_the_estimate_of_its_plan() -> None:
    entry = next(entry for entry in compared("zb-v").to_dict()["schedules"] if entry["schedule"] == "zb-v")
    one = estimate("llama-3.1-8b", entry["plan"], gpus="8xH100", seq_len=2048).plans[0].estimate
    assert entry["step_time_s"] == one.step_time_s
    assert entry["peak_memory_bytes"] == one.fullest.peak_memory_bytes


def test_the_plans_own_schedule_is_always_there() -> None:
    assert {entry.schedule for entry in compared("zb-h1,chimera").plans} == {"1f1b", "zb-h1", "chimera"}


def test_one_worker_has_no_schedule_to_choose() -> None:
    with pytest.raises(InputError, match="pp2 or more"):
        estimate("llama-3.1-8b", "tp8.mbs1", gpus="8xH100", schedule="all")


def test_asynchronous_plans_say_that_they_are_not_exact() -> None:
    found = plan("llama-3.1-8b", gpus="8xH100", global_batch=16, pin="pp=2", schedule="pipedream-2bw", top=1)
    assert found[0].row is not None
    assert found[0].row.schedule == "pipedream-2bw"
    assert any("not exact" in warning for warning in found.warnings)


def test_replicas_that_fill_each_others_bubbles_are_found_where_avgpipe_is_named() -> None:
    job = {"gpus": "4x1xA100-80", "global_batch": 8}
    found = plan("gpt2-xl", pin="pp=4", schedule="1f1b,avgpipe", top=1, **job)
    assert found[0].name == "pp4.dp1.mbs1.gbs8.avgpipe-pipelines2"
    assert found.warnings == (
        "avgpipe-pipelines2 is not exact: 2 replicas train on samples of their own and are averaged behind each step",
    )
    alone, two = (
        estimate("gpt2-xl", f"pp4.dp1.mbs1.{name}", **job)[0].estimate for name in ("1f1b", "avgpipe-pipelines2")
    )
    assert two.step_time_s == found[0].estimate.step_time_s < alone.step_time_s
    # Half of the samples each, and nothing to wait for between steps but updates of both.
    assert dict(two.breakdown_s)["bubble"] < 1e-9 < dict(alone.breakdown_s)["bubble"]


def test_a_target_keeps_to_the_schedules_it_runs() -> None:
    found = plan("llama-3.1-8b", gpus="8xH100", global_batch=16, pin="pp=2", schedule="all", target="megatron", top=1)
    assert found[0].row is not None
    assert found[0].row.schedule in ("1f1b", "interleaved", "pipedream-flush")


def test_a_plan_held_to_an_inexact_schedule_has_a_pipeline() -> None:
    held = plan("gpt2", gpus="4xH100", global_batch=8, schedule="avgpipe,pipedream")
    assert {one.row.schedule.partition("-")[0] for one in held if one.row is not None} <= {"avgpipe", "pipedream"}
    # Beside an exact schedule, a plan of one worker is one of its plans.
    beside = plan("gpt2", gpus="4xH100", global_batch=8, schedule="avgpipe,1f1b", top=20)
    assert any(one.row is not None and one.row.pp == 1 for one in beside)
    with pytest.raises(InfeasibleError, match="asks for pp of 2 or more") as refused:
        plan("gpt2", gpus="1xH100", global_batch=8, schedule="avgpipe")
    assert "the one device" in str(refused.value)
