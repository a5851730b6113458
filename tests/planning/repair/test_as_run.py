"""Repairs on few devices are priced as a framework runs them that can."""

from __future__ import annotations

import pytest

from meshwright import estimate, plan
from meshwright.app.plans.plan_set import PlanSet
from meshwright.planning.repair.no_plan import NoPlanError
from meshwright.targets import TARGETS

QUESTIONS = [
    {"model": "llama-3.1-8b", "gpus": "1xA100-40"},
    {"model": "qwen3-8b", "gpus": "2xRTX4090"},
    {"model": "qwen2.5-7b", "gpus": "2xRTX4090"},
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: " on ".join(one.values()))
def test_a_repair_costs_what_the_frameworks_take_that_it_names(question: dict[str, str]) -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(**question)
    offloads = [one for one in raised.value.repairs if one.option.startswith("--offload") and one.run_by]
    assert offloads
    for one in offloads:
        for name in one.run_by or ():
            own = estimate(plan=one.plan, **question, target=name)
            assert isinstance(own, PlanSet)
            assert own.best.estimate.fits != "no"
            assert own.best.estimate.step_time_s == one.step_time_s


def test_a_stated_framework_prices_repairs_too() -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(model="llama-3.1-8b", gpus="1xA100-40", software="megatron-core")
    (first, *_) = raised.value.repairs
    assert first.option == "--offload optimizer"
    own = estimate("llama-3.1-8b", first.plan, gpus="1xA100-40", software="megatron-core")
    assert isinstance(own, PlanSet)
    assert own.best.estimate.step_time_s == first.step_time_s


def test_what_no_framework_runs_is_not_offered_where_another_change_is() -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(model="mistral-7b", gpus="1xRTX4090")
    assert all(one.run_by for one in raised.value.repairs)
    assert not [one.option for one in raised.value.repairs if "tiles" in one.option]


def test_repairs_on_many_devices_name_who_runs_their_plan() -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(model="llama-3.1-70b", gpus="16xA100-40")
    named = [one for one in raised.value.repairs if one.devices > 8 and one.run_by]
    assert named
    assert all(f"; {TARGETS[one.run_by[0]].title}" in one.line() for one in named if one.run_by)


def test_where_no_framework_has_the_memory_for_a_smaller_optimizer_16_bits_are_offered() -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(model="qwen3-1.7b", gpus="1xRTX3090", global_batch=8)
    (one,) = (one for one in raised.value.repairs if one.option.startswith("--main-copy"))
    assert one.run_by == ("axolotl", "llamafactory")


def test_an_optimizer_with_formats_of_its_own_is_offered_no_other() -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(model="phi-4", gpus="1xA100-80", optimizer="adafactor")
    assert not [one.option for one in raised.value.repairs if "--moment-dtype" in one.option]
    with pytest.raises(NoPlanError):
        plan(model="phi-4", gpus="1xA100-80", optimizer="adamw-8bit")
