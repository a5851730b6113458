"""`size`: the fewest devices that are enough, and fewer are not."""

from __future__ import annotations

import json
from functools import cache

import pytest

from meshwright import plan, size
from meshwright.app.size import SizeAnswer
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.targets import FINE_TUNING
from tests.app.questions import MODEL

EASY = {"pin": ("sharding=z1", "recompute=none", "tp=1"), "forbid": ("vpp", "cp"), "global_batch": 256}


@cache
def quick_enough() -> SizeAnswer:
    """For 3 seconds a step."""
    return size(MODEL, "H100", step_time=3.0, **EASY)


def test_enough_and_no_fewer() -> None:
    answer = quick_enough()
    times = {point.devices: point.step_time_s for point in answer.curve}
    chosen = times[answer.devices]
    assert chosen is not None
    assert chosen <= 3.0
    for devices, time_s in times.items():
        assert (time_s is not None and time_s <= 3.0) == (devices >= answer.devices)


def test_the_plan_is_that_of_plan() -> None:
    answer = quick_enough()
    direct = plan(MODEL, gpus=f"{answer.devices}xH100", **EASY)
    assert answer.plans[0].plan == direct[0].plan
    assert answer.plans[0].estimate == direct[0].estimate


def test_the_curve_says_of_a_count_what_plan_says() -> None:
    """Where recompute is chosen per layer after the search, a search for one plan alone refines another."""
    answer = size(MODEL, "RTX4090", step_time=32.5, global_batch=1024, pin=["pp=5", "vpp=1"])
    assert answer.devices == 80
    assert "recompute per layer" in answer.plans[0].title
    assert answer.curve[-1].step_time_s == answer.plans[0].estimate.step_time_s


def test_a_deadline_counts_the_tokens() -> None:
    answer = size(MODEL, "H100", days=60, tokens="1T", **EASY)
    point = next(point for point in answer.curve if point.devices == answer.devices)
    assert point.days is not None
    assert point.days <= 60
    assert "60 days" in answer.text


def test_a_budget() -> None:
    answer = size(MODEL, "H100", max_price=100_000, tokens="1T", price=2.0, **EASY)
    point = next(point for point in answer.curve if point.devices == answer.devices)
    assert point.price is not None
    assert point.price <= 100_000
    with pytest.raises(InfeasibleError, match="cheapest"):
        size(MODEL, "H100", max_price=1_000, tokens="1T", price=2.0, **EASY)


def test_goals_out_of_reach_say_what_is_reached() -> None:
    with pytest.raises(InfeasibleError, match="peak speed"):
        size(MODEL, "H100", step_time=1e-5, **EASY)


def test_the_document() -> None:
    document = quick_enough().to_dict()
    assert document["schema"] == "meshwright.size/1"
    assert document["plan_set"]["schema"] == "meshwright.plan-set/1"
    json.dumps(document, allow_nan=False)


def test_problems_come_together() -> None:
    with pytest.raises(InputError, match="max_price is missing"):
        size(MODEL, "H100")
    with pytest.raises(InputError) as caught:
        size(MODEL, "H100", days=-1, max_price=float("nan"))
    assert [problem.field for problem in caught.value.problems] == ["days", "max_price", "tokens"]
    with pytest.raises(InputError, match="no price"):
        size(MODEL, "RTX-3090", max_price=1e9, tokens="1B")
    with pytest.raises(UnsupportedError, match="H1000"):
        size(MODEL, "H1000", step_time=1)


def test_a_count_that_divides_badly_does_not_hide_a_lower_one() -> None:
    """560 devices are slower than 512 and than 576."""
    answer = size(
        "llama-3.1-70b", "H100", days=40, tokens="2T", global_batch=1024, pin=("mbs=1", "recompute=none,sel,full")
    )
    assert answer.devices == 576
    assert [point.meets for point in answer.curve] == [False] * (len(answer.curve) - 1) + [True]
    assert "2, 3, 5 and 7" in answer.considered
    assert "excluded" in answer.considered


@pytest.mark.parametrize("goal", [5, "5s", "5000ms"])
def test_a_step_time_is_in_seconds_or_has_its_unit(goal: float | str) -> None:
    assert size("gpt2", "H100", step_time=goal, global_batch=64).to_dict()["goal"]["step_time_s"] == 5.0


def test_adapters_take_the_fewest_devices_of_any_trainer() -> None:
    question = {"lora": "16", "tokens": 1e9, "days": 7}
    answer = size("qwen3-8b", "RTX4090", **question)
    assert [one.trainer for one in answer.plans.trainers] == list(FINE_TUNING)
    able = [one for one in answer.plans.trainers if one.fits]
    assert answer.plans.best.estimate.step_time_s == min(one.step_time_s or 0.0 for one in able)
    assert answer.plans.run is not None
    assert answer.plans.run.days <= 7
    assert answer.plans.workload.global_batch * answer.plans.workload.seq_len == 8 * 65_536
    for fewer in [point for point in answer.curve if point.devices < answer.devices]:
        assert not fewer.meets


def test_adapters_that_no_trainer_has_are_sized_and_it_says_so() -> None:
    answer = size("t5-base", "A100-40", lora="8", step_time=2)
    assert any("no trainer known here" in warning for warning in answer.plans.warnings)
    with pytest.raises(InfeasibleError, match="no number of RTX-4090 meets"):
        size("qwen3-0.6b", "RTX4090", lora="8", step_time=1e-4)


def test_adapters_at_a_limit_are_answered_with_the_plan_that_met_the_goal() -> None:
    asked = {"device": "A100-80", "global_batch": 64, "step_time": 10, "lora": "r=16,base=nf4,dora"}
    answer = size("mixtral-8x7b", **asked, time_limit=0.01)
    assert answer.stopped == "time limit"
    assert answer.plans.best.estimate.step_time_s <= 10
    assert answer.devices == answer.plans.cluster.devices
