"""What is wanted of a plan, and what is said where it cannot be had."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from meshwright import plan
from meshwright.app.requests.plan import PlanRequest
from meshwright.errors import InfeasibleError, InputError
from meshwright.fields.job import AimFields
from meshwright.planning.objectives import Aim, Offer, admitted, aim_of
from meshwright.specs.failures import NEVER, Failures
from meshwright.specs.workload import Workload

MODEL, BATCH = "llama-3-8b", 64


def offer(step_time_s: float, price: float, peak: float = 0.0) -> Offer[str]:
    return Offer(plan="", step_time_s=step_time_s, price_per_step=price, peak_memory_bytes=peak, on="8 H100")


@pytest.mark.parametrize(
    ("words", "objective"),
    [
        ({}, "time"),
        ({"max_step_time": 4}, "cost"),
        ({"days": 4}, "cost"),
        ({"max_price_per_step": 4}, "time"),
        ({"max_step_time": 4, "max_price_per_step": 1}, "time"),
        ({"objective": "time", "max_step_time": 4}, "time"),
    ],
)
def test_a_limit_alone_says_what_is_wanted_under_it(words: dict[str, object], objective: str) -> None:
    assert aim_of(AimFields(**words)).objective == objective


@pytest.mark.parametrize(("text", "seconds"), [("40", 40), ("40s", 40), ("500 ms", 0.5), ("1.5min", 90), (2.5, 2.5)])
def test_times_have_units_or_are_seconds(text: str | float, seconds: float) -> None:
    asked = PlanRequest.read({"model": MODEL, "gpus": "8xH100", "max_step_time": text})
    assert aim_of(asked.aim).max_step_time_s == pytest.approx(seconds)


def test_what_is_malformed_is_said_together() -> None:
    limits = {"max_step_time": "soon", "max_price_per_step": -1, "days": math.nan, "max_price": "", "tokens": 1e9}
    with pytest.raises(InputError) as wrong:
        PlanRequest.read({"model": MODEL, "gpus": "8xH100", "objective": "sped", **limits})
    said = str(wrong.value)
    for words in ("'sped'", "max_step_time is 'soon'", "max_price_per_step is -1", "days is nan", "max_price is ''"):
        assert words in said


@pytest.mark.parametrize(
    ("aim", "first"),
    [
        (Aim(), 0),
        (Aim(objective="cost"), 2),
        (Aim(objective="memory"), 1),
        (Aim(objective="cost", max_step_time_s=25), 1),
        (Aim(max_price_per_step=2.5), 1),
        (Aim(max_price_per_step=0.5), 2),
        (Aim(objective="cost", max_step_time_s=5), 0),
    ],
)
def test_offers_within_the_limits_come_first_then_the_nearest(aim: Aim, first: int) -> None:
    offers = [offer(10, 3, 3), offer(20, 2, 1), offer(30, 1, 2)]
    assert min(offers, key=aim.rank) is offers[first]


def test_a_plan_keeps_to_its_own_step_and_price() -> None:
    assert Aim(max_step_time_s=10, max_price_per_step=3).excess(offer(10 * (1 + 1e-12), 3)) == 0


@pytest.mark.parametrize(
    ("aim", "words"),
    [
        (Aim(objective="cost", max_step_time_s=5), "the quickest found takes 10 s and costs 3 USD"),
        (Aim(max_price_per_step=0.5), "allow --max-price-per-step 1, or find cheaper devices"),
        (
            Aim(max_step_time_s=15, max_price_per_step=1.5),
            "the cheapest found within the time limit takes 10 s and costs 3 USD",
        ),
    ],
)
def test_the_nearest_that_can_be_had_is_named(aim: Aim, words: str) -> None:
    offers = sorted([offer(10, 3), offer(20, 2), offer(30, 1)], key=aim.rank)
    with pytest.raises(InfeasibleError, match=re.escape(words)):
        admitted(aim, offers, "a model on devices")


def test_a_limit_of_a_run_is_mended_in_its_own_units() -> None:
    workload = Workload(seq_len=1000, global_batch=10, tokens=1e6, failures=NEVER)
    offers = [offer(3600, 2)]
    for aim, words in (
        (Aim(days=2.0), "allow --days 4.17, or add"),
        (Aim(days=2.0, max_step_time_s=60), "allow --days 4.17 and --max-step-time 3600, or add"),
        (Aim(days=20.0, max_step_time_s=60), "allow --max-step-time 3600, or add"),
        (Aim(max_price=50), "allow --max-price 200, or find"),
    ):
        with pytest.raises(InfeasibleError, match=words):
            admitted(aim.of_run(workload, 8), offers, "a model on devices")


def test_limits_of_a_run_are_those_of_its_steps() -> None:
    workload = Workload(seq_len=1000, global_batch=10, tokens=1e6, failures=NEVER)
    aim = Aim(days=2.0, max_price=50.0).of_run(workload, 8)
    assert aim.max_step_time_s == pytest.approx(2 * 86400 / 100)
    assert aim.max_price_per_step == pytest.approx(0.5)
    interrupted = Failures(rate_per_device_hour=0.01)
    assert Aim(days=2.0).of_run(replace(workload, failures=interrupted), 8).max_step_time_s < aim.max_step_time_s
    with pytest.raises(InputError, match="--days without --tokens"):
        Aim(days=2.0).of_run(Workload(seq_len=1000, global_batch=10), 8)


def test_one_kind_of_device_is_rented_by_nodes() -> None:
    few: dict[str, object] = {
        "global_batch": BATCH,
        "gpus": "32xH100",
        "price": 2.0,
        "pin": ("tp=2", "mbs=1"),
        "top": 1,
    }

    def planned(**limits: object) -> tuple[int, float, float]:
        best = plan(MODEL, **few, **limits)[0]
        assert best.estimate.price_per_step is not None
        return best.plan.devices, best.estimate.step_time_s, best.estimate.price_per_step

    quick = planned()
    cheap = planned(objective="cost")
    assert quick[0] == 32
    assert cheap[0] < 32
    assert cheap[2] < quick[2]
    limit_s = 1.7 * quick[1]
    timely = planned(max_step_time=limit_s)
    assert timely[1] <= limit_s
    assert cheap[2] <= timely[2] <= quick[2]
    budget = planned(max_price_per_step=0.5 * (cheap[2] + quick[2]))
    assert budget[2] <= 0.5 * (cheap[2] + quick[2])
    assert quick[1] <= budget[1] <= cheap[1]


def test_one_kind_of_device_that_cannot_keep_to_a_limit() -> None:
    few: dict[str, object] = {"global_batch": BATCH, "gpus": "8xH100", "pin": ("tp=2", "mbs=1")}
    with pytest.raises(InfeasibleError, match=r"the quickest found takes .* a step, on 8 H100") as late:
        plan(MODEL, max_step_time="1ms", **few)
    assert "USD" not in str(late.value)
    with pytest.raises(InputError, match="no price is known for H100"):
        plan(MODEL, max_price_per_step=1, **few)
    with pytest.raises(InfeasibleError, match="2 days for the run"):
        plan(MODEL, days=2, tokens="15T", **few)


def test_fewer_devices_may_be_better_where_money_or_energy_counts() -> None:
    assert [Aim(objective=name).rents for name in ("time", "memory", "cost", "energy")] == [False, False, True, True]
    assert Aim(max_price_per_step=5.0).rents
    assert not Aim(max_step_time_s=5.0).rents
