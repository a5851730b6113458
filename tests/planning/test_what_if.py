"""What if: a plan with settings, workload or numbers changed is the plan that `estimate` prices."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.estimate.price import estimate_plan
from meshwright.planning.what_if import (
    MEMORY,
    changed_job,
    describe_change,
    describe_conditions,
    quantities_of,
    varied_settings,
)
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy

PLAN = "tp4.pp4.vpp2.dp4.z1.mbs1.gbs512"


@pytest.fixture(scope="module")
def job() -> Job:
    found = mw.estimate("llama-3.1-70b", PLAN, gpus="64xH100").best.job
    assert isinstance(found, Job)
    return found


def row(job: Job) -> PlanRow | None:
    return row_of(job.plan, job.model)


def step_s(job: Job) -> float:
    return estimate_plan(job.plan, job.model, job.cluster, job.workload).step_time_s


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ({"tp": 8}, "tp8.pp4.vpp2.dp2.z1.mbs1.gbs512"),
        ({"recompute": "full", "mbs": 2}, "tp4.pp4.vpp2.dp4.z1.mbs2.gbs512.rc-full"),
        ({"recompute": "sel-mlp-layernorm"}, "tp4.pp4.vpp2.dp4.z1.mbs1.gbs512.rc-sel-mlp-layernorm"),
        ({"schedule": "zb-h1"}, "tp4.pp4.dp4.z1.mbs1.gbs512.zb-h1"),
        ({"global_batch": 1024}, "tp4.pp4.vpp2.dp4.z1.mbs1.gbs1024"),
        ({"row": "tp8.pp2.dp4.fsdp.mbs2.gbs512"}, "tp8.pp2.dp4.fsdp.mbs2.gbs512"),
        ({"row": "tp8.pp2.dp4.mbs2", "mbs": 1}, "tp8.pp2.dp4.mbs1.gbs512"),
    ],
)
def test_a_changed_plan_is_the_one_that_estimate_prices(job: Job, changes: dict[str, object], plan: str) -> None:
    changed = changed_job(job, changes)
    assert changed.name == plan
    expected = mw.estimate("llama-3.1-70b", plan, gpus="64xH100").best.estimate.step_time_s
    assert step_s(changed) == pytest.approx(expected)


def test_sequence_price_and_numbers_change_what_they_say(job: Job) -> None:
    longer = changed_job(job, {"seq_len": 8192, "price": "2.5"})
    assert (longer.workload.seq_len, longer.cluster.groups[0].price_per_hour) == (8192, 2.5)
    assert longer.plan == job.plan
    names = [one.name for one in quantities_of(job)]
    slower = changed_job(job, {"numbers": {"NVLink4 bandwidth": 0.5}})
    assert "NVLink4 bandwidth" in names
    assert step_s(slower) > step_s(job)
    smaller = changed_job(job, {"numbers": {MEMORY: 0.5}})
    assert smaller.cluster.groups[0].device.memory_bytes == job.cluster.groups[0].device.memory_bytes / 2
    assert step_s(smaller) == step_s(job)


def test_experts_that_get_more_tokens_take_longer() -> None:
    even = mw.estimate("mixtral-8x7b", "tp2.pp2.ep4.dp4.z1.mbs1.gbs64", gpus="16xH100").best.job
    assert isinstance(even, Job)
    assert step_s(changed_job(even, {"expert_load": 1.5})) > step_s(even)
    hot = (8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    for load, stated in (("zipf:1.2", "zipf:1.2"), ([list(hot)], ExpertLoad(counts=(hot,)))):
        changed = changed_job(even, {"expert_load": load})
        found = mw.estimate("mixtral-8x7b", "tp2.pp2.ep4.dp4.z1.mbs1.gbs64", gpus="16xH100", expert_load=stated)
        assert step_s(changed) == pytest.approx(found.best.estimate.step_time_s)
        assert step_s(changed_job(changed, {"expert_load": "balanced"})) == pytest.approx(step_s(even))
    said = {"expert_load": load, "numbers": {"NVLink4 bandwidth": 0.5}}
    assert describe_conditions(even, changed, said) == [
        "expert load counted on 1 layer",
        "NVLink4 bandwidth x 0.5",
    ]


@pytest.mark.parametrize("load", [0.5, "loads.csv", "/etc/passwd", "zipf:-1", [[1, 2]], [], [["x"] * 8], [[0] * 8]])
def test_a_load_that_is_none_is_refused_and_no_file_is_read(load: object) -> None:
    even = mw.estimate("mixtral-8x7b", "tp2.pp2.ep4.dp4.z1.mbs1.gbs64", gpus="16xH100").best.job
    assert isinstance(even, Job)
    with pytest.raises(InputError) as refused:
        changed_job(even, {"expert_load": load})
    assert "cannot be read" not in str(refused.value)


def test_what_follows_is_said(job: Job) -> None:
    assert describe_change(row(job), row(changed_job(job, {"tp": 8}))) == "tp 4 -> 8 (dp 4 -> 2)"
    assert describe_change(row(job), row(changed_job(job, {"seq_len": 8192}))) == ""


def test_settings_have_legal_values_and_the_rule_of_the_others(job: Job) -> None:
    settings = {one.name: one for one in varied_settings(job, row(job))}
    assert settings["tp"].value == 4
    legal = [one.value for one in settings["tp"].values if one.problem is None]
    assert legal == [1, 2, 4, 8, 16]
    (too_large,) = [one.problem for one in settings["tp"].values if one.value == 64]
    assert too_large is not None
    assert "64 devices" in too_large.what
    for setting in settings.values():
        for one in setting.values:
            if one.problem is None and one.value != setting.value:
                assert changed_job(job, {setting.name: one.value}).plan != job.plan


def test_all_that_is_wrong_is_refused_together(job: Job) -> None:
    with pytest.raises(InputError) as refused:
        changed_job(job, {"colour": 1, "seq_len": -1, "numbers": {"NVLink9 bandwidth": 2}})
    assert {problem.field for problem in refused.value.problems} == {"colour", "seq_len", "NVLink9 bandwidth"}
    with pytest.raises(InputError, match="not a multiple"):
        changed_job(job, {"global_batch": 1001})
    with pytest.raises(InputError, match="unknown recompute 'most'"):
        changed_job(job, {"recompute": "most"})
    with pytest.raises(InputError, match="unknown sharding 'z9'"):
        changed_job(job, {"sharding": "z9"})
    with pytest.raises(InputError, match="tp is 'x'"):
        changed_job(job, {"tp": "x"})


def test_a_plan_whose_stages_differ_keeps_its_settings() -> None:
    mixed = mw.plan("llama-3-8b", gpus="8xH100,8xA100-80", top=1)[0].job
    assert isinstance(mixed, Job)
    with pytest.raises(InputError, match="stages differ"):
        changed_job(mixed, {"tp": 2})
    assert step_s(changed_job(mixed, {"seq_len": mixed.workload.seq_len * 2})) > step_s(mixed)
    name = quantities_of(mixed)[0].name
    assert step_s(changed_job(mixed, {"numbers": {name: 0.5}})) > step_s(mixed)


@pytest.fixture(scope="module")
def two_kinds() -> Job:
    found = mw.plan("llama-3.1-70b", gpus="32xH100,32xA100-80", top=1)[0].job
    assert isinstance(found, Job)
    return found


def stages_on(job: Job, first_device: int) -> list[LayerStrategy]:
    """Strategies of the stages whose devices begin there or behind."""
    workers = [one for pipeline in job.plan.pipelines for one in pipeline.workers if one.devices[0][0] >= first_device]
    return [job.plan.strategies[run.strategy] for one in workers for chunk in one.chunks for run in chunk.runs]


def test_stages_of_one_group_have_settings_of_their_own(two_kinds: Job) -> None:
    offered = {one.name: one for one in varied_settings(two_kinds, None)}
    assert {"H100: tp", "A100-80: tp", "A100-80: recompute", "mbs", "schedule"} <= offered.keys()
    changed = changed_job(two_kinds, {"A100-80: recompute": "full"})
    assert {one.recompute.kind for one in stages_on(changed, 32)} == {"full"}
    held = [one for one in stages_on(changed, 0) if one not in stages_on(changed, 32)]
    assert {one.recompute.kind for one in held} == {"none"}
    assert step_s(changed) > step_s(two_kinds)
    asked = {"A100-80: recompute": "full"}
    assert describe_conditions(two_kinds, changed, asked) == ["A100-80: recompute none -> full"]


def test_every_value_that_is_offered_without_a_problem_is_priced(two_kinds: Job) -> None:
    for setting in varied_settings(two_kinds, None):
        for value in setting.values:
            if setting.name != "schedule" and value.problem is None:
                changed = changed_job(two_kinds, {setting.name: value.value})
                assert step_s(changed) > 0
                assert changed.workload == two_kinds.workload
                assert changed.plan.devices == two_kinds.plan.devices
                batch = sum(
                    one.num_micro_batches * one.micro_batch * changed.plan.data_degree(one)
                    for one in changed.plan.pipelines
                )
                assert batch == two_kinds.workload.global_batch


def test_the_batch_of_a_plan_of_stages_is_its_micro_batches(two_kinds: Job) -> None:
    batch = two_kinds.workload.global_batch
    assert batch is not None
    half = changed_job(two_kinds, {"global_batch": batch // 2})
    assert step_s(half) < 0.7 * step_s(two_kinds)
    with pytest.raises(InputError, match="whole micro-batches"):
        changed_job(two_kinds, {"global_batch": batch // 2 + 1})


def test_degrees_that_a_stage_has_no_room_for_say_their_rule(two_kinds: Job) -> None:
    with pytest.raises(InputError, match="divide its devices"):
        changed_job(two_kinds, {"H100: tp": 3})
    with pytest.raises(InputError, match="nothing of a plan is called so"):
        changed_job(two_kinds, {"B200: tp": 2})
    with pytest.raises(InputError, match="sharding"):
        changed_job(two_kinds, {"H100: sharding": "z9"})


def test_kinds_have_prices_of_their_own() -> None:
    mixed = mw.plan("gpt2", gpus="4xH100,4xA100-80", global_batch=32, top=1)[0].job
    asked: dict[str, object] = {"price": {"A100-80": 1.5}}
    changed = changed_job(mixed, asked)
    before = {group.device.name: group.price_per_hour for group in mixed.cluster.groups}
    after = {group.device.name: group.price_per_hour for group in changed.cluster.groups}
    assert after == {**before, "A100-80": 1.5}
    assert describe_conditions(mixed, changed, asked) == ["A100-80 1.5 USD per GPU and hour"]
    with pytest.raises(InputError, match="a price of 'B200'") as refused:
        changed_job(mixed, {"price": {"B200": 1, "H100": "cheap"}})
    assert len(refused.value.problems) == 2
