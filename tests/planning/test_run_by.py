"""Which frameworks run a plan, and what is offered where nothing fits."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import InfeasibleError, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.planning.for_target import TIE
from meshwright.planning.plan_source import plan_question
from meshwright.planning.run_by import ASKED, ON_MANY, run_and_hold, run_by
from meshwright.specs.software import DEFAULT_SOFTWARE
from meshwright.targets import TARGETS


def runners(plan: str, gpus: str, **more: object) -> tuple[str, ...]:
    job = JobFields(model="llama-3.2-1b", gpus=gpus, seq_len=1024, **more)
    return run_by(plan_question(plan, job).job)


def test_a_plan_of_one_device_runs_under_all() -> None:
    assert runners("dp1.mbs1.gbs16", "1xRTX4090") == ASKED


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        ("dp1.mbs1.gbs16.rc-full.off-og", ("axolotl", "llamafactory", "deepspeed")),
        ("dp1.mbs1.gbs16.rc-full.off-wog", ("llamafactory", "deepspeed")),
        ("dp1.mbs1.gbs16.off-o", ("megatron", "bridge")),
    ],
)
def test_states_of_one_device_go_to_the_host_without_anything_to_shard(plan: str, names: tuple[str, ...]) -> None:
    assert runners(plan, "1xRTX4090") == names


@pytest.mark.parametrize(("plan", "stage"), [("off-og", 2), ("off-wog", 3)])
def test_deepspeed_shards_over_one_device_to_offload(plan: str, stage: int) -> None:
    asked = mw.estimate("llama-3.2-1b", f"dp1.mbs1.gbs16.rc-full.{plan}", gpus="1xRTX4090", seq_len=1024)
    (ranked,) = asked.plans
    text = dict(TARGETS["deepspeed"].written(ranked.job, ranked.estimate).files)["ds_config.json"]
    assert f'"stage": {stage}' in text


def test_an_answer_of_a_stated_framework_for_a_few_devices_names_frameworks() -> None:
    asked = {"gpus": "4xRTX4090", "global_batch": 16, "seq_len": 1024, "software": "megatron-core"}
    answer = mw.plan("llama-3.2-1b", **asked)
    (reason,) = [one for one in answer.verdict.reasons if one.kind == "run by"]
    best = answer.plans[reason.facts["rank"] - 1]
    assert reason.facts["targets"] == run_by(best.job) != ()
    assert set(reason.facts["targets"]) | set(reason.facts["others"]) == set(ASKED)
    own = mw.plan("gemma-4-e2b", **asked).verdict.reasons
    (reason,) = [one for one in own if one.kind == "run by"]
    assert "megatron" not in (*reason.facts["targets"], *reason.facts["others"]), "it has no such layers"


@pytest.mark.parametrize(
    ("gpus", "among"),
    [("16xH100", ON_MANY), ("8xTPU-v5p", ("maxtext",)), ("16xTPU-v5p", ("maxtext",)), ("16xTrainium2", ())],
)
def test_only_frameworks_that_drive_the_devices_are_named(gpus: str, among: tuple[str, ...]) -> None:
    answer = mw.plan("llama-3.1-8b", gpus=gpus, global_batch=16, seq_len=1024)
    (reason,) = [one for one in answer.verdict.reasons if one.kind == "run by"]
    assert set(reason.facts["targets"]) | set(reason.facts["others"]) == set(among)


def test_a_target_refuses_devices_that_it_does_not_drive_before_any_plan() -> None:
    with pytest.raises(UnsupportedError, match="TPU-v5p is made by Google"):
        mw.plan("llama-3.1-8b", gpus="8xTPU-v5p", target="megatron")
    assert mw.plan("llama-3.1-8b", gpus="8xTPU-v5p", target="maxtext", top=1)


@pytest.mark.parametrize(("gpus", "software"), [("8xTPU-v5p", "xla"), ("8xMI300X", DEFAULT_SOFTWARE)])
def test_devices_are_priced_under_what_they_are_usually_trained_with(gpus: str, software: str) -> None:
    job = JobFields(model="llama-3.2-1b", gpus=gpus, seq_len=1024)
    assert plan_question("dp8.mbs1.gbs16", job).job.workload.software == software
    named = JobFields(model="llama-3.2-1b", gpus=gpus, seq_len=1024, software="torchtitan")
    assert plan_question("dp8.mbs1.gbs16", named).job.workload.software == "torchtitan"


def test_repairs_of_a_few_devices_say_who_runs_them() -> None:
    with pytest.raises(InfeasibleError) as caught:
        mw.plan("llama-3.2-1b", gpus="1xRTX4090")
    repairs = {one["option"]: one for one in caught.value.to_dict()["repairs"]}
    assert repairs["--offload optimizer"]["run_by"] == ["axolotl", "llamafactory", "deepspeed"]
    assert "Axolotl, LLaMA-Factory, DeepSpeed" in caught.value.problems[0].fix
    assert "megatron" in repairs["--gpus 2xRTX-4090 --gbs 16"]["run_by"]


def test_pipelines_of_two_devices_are_left_to_frameworks_that_have_them() -> None:
    answer = mw.plan("llama-3.2-1b", gpus="2xA100-80", global_batch=16, target="accelerate")
    assert {plan.row.pp for plan in answer.plans if plan.row is not None} == {1}


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "qwen3-32b", "gpus": "2x8xH100", "seq_len": 32768},
        {"model": "llama-3.1-8b", "gpus": "3x8xA100-40", "global_batch": 96, "seq_len": 8192},
        {"model": "gemma-2-9b", "gpus": "16xL40S", "global_batch": 64, "seq_len": 4096},
        {"model": "qwen3-30b-a3b", "gpus": "2x8xH100", "global_batch": 256, "seq_len": 8192, "dtype": "fp8"},
    ],
)
def test_an_answer_that_no_framework_runs_is_quicker_than_any_that_one_runs(asked: dict[str, object]) -> None:
    answer = mw.plan(**asked)
    best = answer.plans[0]
    (reason,) = [one for one in answer.verdict.reasons if one.kind == "run by"]
    if run_by(best.job):
        assert reason.facts["rank"] == 1
    else:
        found = reason.facts["best"]
        assert found["step_time_s"] > best.estimate.step_time_s * (1 + min(TIE, best.estimate.tie))
        assert any(line.endswith(f"({found['plan']}), see --target {found['trainer']}") for line in answer.verdict.why)


def test_a_plan_of_a_stated_framework_is_left_as_it_is() -> None:
    asked = {"gpus": "2x8xH100", "seq_len": 32768, "software": DEFAULT_SOFTWARE}
    quickest, launched = mw.plan("qwen3-32b", **asked), mw.plan("qwen3-32b", gpus="2x8xH100", seq_len=32768)
    limit = 1 + min(TIE, quickest.plans[0].estimate.tie)
    assert quickest.plans[0].estimate.step_time_s <= launched.plans[0].estimate.step_time_s * 1.0001
    if quickest.plans[0].name != launched.plans[0].name:
        assert launched.plans[0].estimate.step_time_s <= quickest.plans[0].estimate.step_time_s * limit
        (chosen,) = [one for one in launched.assumptions if one.name == "chosen"]
        assert "runs it as it is" in chosen.value


def test_a_framework_in_whose_memory_a_plan_does_not_fit_does_not_run_it() -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "2xA100-80", "seq_len": 8192, "global_batch": 32}
    job = plan_question("cp2.dp1.fsdp.mbs1.gbs32.rc-full", JobFields(**asked)).job
    assert run_by(job) == ("accelerate",)
    assert run_and_hold(job) == ()
    assert mw.estimate(plan="cp2.dp1.fsdp.mbs1.gbs32.rc-full", **asked, target="accelerate").best.estimate.fits == "no"
