"""One plan of adapters whose question names no framework: priced as a trainer runs it, or said that none can."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check, compare, estimate, plan, size, tune
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import UnsupportedError
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.run_by import ASKED
from meshwright.targets import FINE_TUNING, TARGETS

JOB = {"model": "qwen3-8b", "gpus": "8xA100-40", "lora": "16"}


def priced(line: str, **more: object) -> PlanSet:
    found = estimate(plan=line, **{**JOB, **more})
    assert isinstance(found, PlanSet)
    return found


def trainer_of(answer: PlanSet) -> str:
    """The note on whose software prices a plan."""
    return next((one.value for one in answer.assumptions if one.name == "trainer"), "")


@pytest.mark.parametrize("line", ["dp8.fsdp.mbs1.gbs32", "tp2.dp4.z1.mbs1.gbs32", "pp2.dp4.fsdp-keep.mbs1.gbs32"])
def test_it_is_the_quickest_trainer_that_can_run_the_plan(line: str) -> None:
    answer = priced(line)
    assert [one.trainer for one in answer.trainers] == list(FINE_TUNING)
    able = [one for one in answer.trainers if one.plan is not None]
    assert {one.trainer for one in able} < set(FINE_TUNING)
    assert answer.best.estimate.step_time_s == min(one.step_time_s or 0.0 for one in able)
    for one in able:
        alone = priced(line, target=one.trainer)
        assert (alone.best.estimate.step_time_s, alone.trainers) == (one.step_time_s, ())
    for one in answer.trainers:
        if one.plan is None:
            with pytest.raises(UnsupportedError):
                priced(line, target=one.trainer)
    assert any(f"priced as {TARGETS[one.trainer].title} runs it" in trainer_of(answer) for one in able)


def test_what_fits_under_one_trainer_goes_before_what_is_quicker_and_does_not() -> None:
    answer = priced("dp1.mbs1.gbs16.rc-full", model="llama-3.1-8b", gpus="1xRTX4090")
    assert answer.best.estimate.fits != "no"
    assert any(not one.fits for one in answer.trainers)


def test_a_plan_that_no_trainer_runs_says_what_each_lacks() -> None:
    answer = priced("dp8.z1.mbs1.gbs32", model="t5-base")
    assert all(one.plan is None for one in answer.trainers)
    (said,) = [text for text in answer.warnings if text.startswith("no trainer known here runs this plan")]
    assert all(TARGETS[name].title in said for name in FINE_TUNING)
    assert not trainer_of(answer)


def test_a_framework_that_is_stated_is_not_asked_about() -> None:
    answer = priced("dp8.fsdp.mbs1.gbs32", software="pytorch-eager")
    assert not answer.trainers
    assert answer.workload.software.startswith("pytorch-eager")


def test_a_plan_file_keeps_the_framework_it_was_made_for_until_it_trains_adapters(tmp_path: Path) -> None:
    whole = plan("qwen3-8b", gpus="8xA100-40", global_batch=32, pin=("dp=8", "fsdp"), top=1)
    assert isinstance(whole, PlanSet)
    file = whole.best.save(tmp_path / "whole.json")
    assert not priced(str(file), model=None, gpus=None, lora=None).trainers
    tuned = priced(str(file), model=None, gpus=None)
    assert tuned.trainers
    again = priced(str(tuned.best.save(tmp_path / "tuned.json")), model=None, gpus=None, lora=None)
    assert again.best.estimate.step_time_s == tuned.best.estimate.step_time_s
    assert not again.trainers


def test_plans_of_adapters_are_compared_under_one_trainer() -> None:
    lines = ("dp8.fsdp.mbs1.gbs32", "pp2.dp4.mbs1.gbs32")
    found = compare(*lines, **JOB)
    assert found.first.workload.software == found.second.workload.software
    assert any(note.startswith("both are priced as ") for note in found.notes)


def test_check_names_the_trainer_and_a_better_plan_is_one_that_it_runs() -> None:
    report = check(plan="tp2.dp4.z1.mbs1.gbs32", **JOB)
    assumed = report.to_dict()["inputs"]["assumptions"]
    said = [note["value"] for note in assumed if note["name"] == "trainer"]
    assert said == ["priced as Megatron-Bridge runs it"]
    assert not [text for text in report.warnings if "priced as" in text]
    assert report.better is not None
    better = priced(report.better.name)
    assert next(one for one in better.trainers if one.trainer == "bridge").plan is not None


WHOLE = {"model": "llama-3.1-8b", "gpus": "8xA100-80"}


@pytest.mark.parametrize("line", ["dp8.fsdp.mbs2.gbs128", "dp8.z3.mbs2.gbs128", "tp2.dp4.z1.mbs2.gbs128"])
def test_a_whole_model_on_few_devices_is_priced_as_asked_beside_what_trainers_take(line: str) -> None:
    answer = priced(line, **WHOLE, lora=None)
    stated = priced(line, **WHOLE, lora=None, software="megatron-core")
    assert answer.best.estimate.step_time_s == stated.best.estimate.step_time_s
    assert not stated.trainers
    assert [one.trainer for one in answer.trainers] == list(ASKED)
    for one in answer.trainers:
        if one.plan is None:
            with pytest.raises(UnsupportedError):
                priced(line, **WHOLE, lora=None, target=one.trainer)
        else:
            alone = priced(line, **WHOLE, lora=None, target=one.trainer)
            assert alone.best.estimate.step_time_s == one.step_time_s


def test_the_note_names_who_runs_a_plan_as_it_is_priced_and_what_it_takes_elsewhere() -> None:
    assert trainer_of(priced("dp8.z3.mbs2.gbs128", **WHOLE, lora=None)).startswith(
        "priced as Megatron-LM, Megatron-Bridge run it"
    )
    sharded = trainer_of(priced("dp8.fsdp.mbs2.gbs128", **WHOLE, lora=None))
    assert "no framework known here runs this plan; under torchtitan it takes" in sharded


def test_check_compare_and_tune_say_for_whose_trainers_a_plan_is_priced() -> None:
    report = check(plan="dp8.fsdp.mbs2.gbs128", **WHOLE, search=False)
    assert isinstance(report.inputs, JobInputs)
    assert any(one.name == "trainer" and "torchtitan" in one.value for one in report.inputs.assumptions)
    found = compare("dp8.fsdp.mbs2", "dp8.z3.mbs2", **WHOLE)
    assert [note.partition(":")[0] for note in found.notes[:2]] == ["first plan", "second plan"]
    tuned = tune(model="gpt2", gpus="2xH100", tuners="random", trials=3, optimum=False)
    assert any("priced" in note for note in tuned.notes)


def test_enough_devices_for_a_whole_model_come_with_what_each_trainer_takes() -> None:
    answer = size(model="qwen3-0.6b", device="H100", days=3, tokens="3B")
    assert answer.devices <= 8
    assert [one.trainer for one in answer.plans.trainers] == list(ASKED)
