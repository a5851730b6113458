"""Two regions, from the cluster file to the price of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import estimate, plan
from meshwright.app.explain import explain
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InfeasibleError
from meshwright.estimate.price import estimate_plan
from meshwright.planning.mixed import search
from meshwright.planning.mixed.search import offer_of
from meshwright.planning.mixed.source import PricedPlan

REGIONS = """
[[group]]
name = "east"
device = "H100"
nodes = 1
zone = "us-east"
price_per_device_hour = 2.5
[[group]]
name = "west"
device = "A100-80"
nodes = 1
zone = "us-west"
price_per_device_hour = 1.2
[[link]]
between = ["us-east", "us-west"]
gb_s = 10
latency_us = 1000
price_per_gb = 0.02
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("regions")
    (where / "regions.toml").write_text(REGIONS)
    return where


def planned(folder: Path, **limits: object) -> PlanSet:
    where = folder / "regions.toml"
    return plan("llama-3-8b", cluster=where, global_batch=64, pin=("tp=2", "cp=1"), top=2, **limits)


@pytest.fixture(scope="module")
def quick(folder: Path) -> PlanSet:
    return planned(folder)


def price(plans: PlanSet) -> float:
    found = plans[0].estimate.price_per_step
    assert found is not None
    return found


def test_a_plan_over_both_regions_pays_for_what_crosses(quick: PlanSet, tmp_path: Path) -> None:
    estimate_ = quick[0].estimate
    (link,) = estimate_.traffic
    used = {stage.group: stage.devices for stage in estimate_.stages}
    assert set(used) == set(link.between) == {"east", "west"}
    assert link.price_per_step > 0
    said = " ".join(quick.verdict.why)
    assert "link east - west: activations" in said
    assert "at 0.02 USD/GB" in said
    assert any("link east - west: activations" in note for note in explain(quick[0]).notes)
    again = estimate(None, str(quick[0].save(tmp_path / "plan.json")))
    assert price(again) == price(quick)


def test_the_cheapest_plan_counts_devices_and_links(folder: Path, quick: PlanSet) -> None:
    cheap = planned(folder, objective="cost")
    assert price(cheap) < price(quick)
    assert cheap[0].estimate.step_time_s > quick[0].estimate.step_time_s
    assert all(price(cheap) <= (entry.estimate.price_per_step or 0.0) for entry in cheap)
    idle = cheap.cluster.devices - cheap[0].plan.devices
    assert idle
    assert any("not rented" in warning for warning in cheap.warnings)


def test_a_time_and_a_budget_are_kept(folder: Path, quick: PlanSet) -> None:
    timely = planned(folder, max_step_time=1.1 * quick[0].estimate.step_time_s)
    assert timely[0].estimate.step_time_s <= 1.1 * quick[0].estimate.step_time_s
    assert price(timely) <= price(quick)
    limit = 0.5 * price(quick)
    budget = planned(folder, max_price_per_step=limit)
    assert all((entry.estimate.price_per_step or 0.0) <= limit for entry in budget)
    with pytest.raises(InfeasibleError, match="the cheapest found takes") as dear:
        planned(folder, max_price_per_step=1e-4)
    assert "allow --max-price-per-step" in str(dear.value)


def test_a_price_changes_no_time(quick: PlanSet) -> None:
    job, paid = quick[0].job, quick[0].estimate
    free = replace(job.cluster, links=tuple(replace(link, price_per_gb=0.0) for link in job.cluster.links))
    found = estimate_plan(job.plan, job.model, free, job.workload)
    assert found.step_time_s == paid.step_time_s
    assert found.price_per_step == pytest.approx(price(quick) - paid.traffic_price_per_step)


def test_the_plan_of_least_energy_takes_no_more_than_the_quickest_at_full_power() -> None:
    question = {"model": "gpt2-xl", "gpus": "4xH100,4xA100-80", "global_batch": 32, "seq_len": 1024}
    frugal, quick = plan(**question, objective="energy", top=1), plan(**question, top=1)
    power_w = {group.name: group.busy_power_w for group in quick[0].job.cluster.groups}
    stages = quick[0].estimate.stages
    most_j = quick[0].estimate.step_time_s * sum((power_w[stage.group] or 0.0) * stage.devices for stage in stages)
    (energy,) = (reason for reason in frugal.to_dict()["verdict"]["reasons"] if reason["kind"] == "energy")
    assert energy["energy_j"] <= most_j
    offered = offer_of(PricedPlan(job=quick[0].job, estimate=quick[0].estimate, row=None))
    assert offered.energy_j == quick[0].estimate.energy_j > 0
    assert frugal[0].estimate.step_time_s >= quick[0].estimate.step_time_s


def test_of_two_kinds_none_is_left_out_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of them the other is planned alone, which is done anyway."""
    left_out: list[object] = []
    monkeypatch.setattr(search, "_without", lambda source, part, every, alone: left_out.append(part.group))
    for gpus, groups in (("1xH100,1xA100-80", []), ("1xH100,1xA100-80,1xL40S", [0, 1, 2])):
        left_out.clear()
        plan("gpt2", gpus=gpus, global_batch=12, seq_len=512, top=1)
        assert left_out == groups
