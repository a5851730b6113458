"""Repairs on few devices are priced as a framework runs them that can."""

from __future__ import annotations

import pytest

from meshwright import estimate, plan
from meshwright.app.plan_set import PlanSet
from meshwright.planning.repair.no_plan import NoPlanError

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
