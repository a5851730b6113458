"""Energy and prices of steps and runs: watts by phase, dated prices, carbon, and the search for the least energy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import estimate, plan
from meshwright.errors import InputError, MeshwrightError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.kinds import CarbonIntensity, Watts
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.library.devices import device
from meshwright.library.prices import PUBLIC, prices_of

MODEL, PLAN, GPUS = "llama-3-8b", "tp2.pp2.z1.mbs1.gbs128", "8xH100"
WH = 3600.0


def energy_j(**asked: object) -> float:
    found = estimate(MODEL, PLAN, gpus=GPUS, **asked).plans[0].estimate
    assert found.energy_j is not None
    return found.energy_j


def test_the_limit_of_the_devices_bounds_the_energy() -> None:
    found = estimate(MODEL, PLAN, gpus=GPUS)[0].estimate
    assert energy_j() == pytest.approx(8 * 700 * found.step_time_s)
    assert energy_j(power="600W") == pytest.approx(8 * 600 * found.step_time_s)
    assert energy_j(power=600, pue=1.5) == pytest.approx(1.5 * 8 * 600 * found.step_time_s)


def test_waiting_takes_the_power_that_was_measured_for_it() -> None:
    job = estimate(MODEL, PLAN, gpus=GPUS)[0].job
    group = job.cluster.groups[0]
    idle = replace(job.cluster, groups=(replace(group, device=replace(group.device, idle_power_w=100.0)),))
    found = estimate_plan(job.plan, job.model, idle, job.workload)
    waits_s = [found.step_time_s - stage.busy_s for stage in found.stages]
    expected = sum(s.devices * (700 * s.busy_s + 100 * wait_s) for s, wait_s in zip(found.stages, waits_s, strict=True))
    assert found.energy_j == pytest.approx(expected)
    assert found.energy_j < energy_j()


def test_a_run_states_energy_and_carbon() -> None:
    """Llama 3.1 8B as its model card counts it: 1.46 M hours of H100 at 700 W are 1.02 GWh, 420 t at .411 kg/kWh."""
    asked = {"tokens": "15T", "carbon_intensity": "411g/kWh", "failures": "none"}
    run = estimate(MODEL, PLAN, gpus=GPUS, **asked).run
    assert run is not None
    assert run.energy_kwh == pytest.approx(0.7 * run.device_hours)
    assert run.carbon_kg == pytest.approx(0.411 * run.energy_kwh)
    assert pytest.approx(420e3, rel=0.01) == 0.7 * 1.46e6 * 0.411
    text = estimate(MODEL, PLAN, gpus=GPUS, **asked).verdict.text
    assert "at most " in text
    assert "t CO2e" in text


def test_the_least_energy_is_searched_as_the_least_price_is() -> None:
    """At one power an hour of a device costs what it takes, so both choose the same; dearer devices are left out."""
    question = {"gpus": "32xH100", "global_batch": 64, "top": 2}
    energy, cost = (plan(MODEL, objective=name, **question) for name in ("energy", "cost"))
    assert [one.name for one in energy] == [one.name for one in cost]
    assert energy[0].plan.devices < 32
    assert any(reason.kind == "energy" for reason in energy.verdict.reasons)
    quick = plan(MODEL, **question)[0].estimate
    assert (energy[0].estimate.energy_j or 0) < (quick.energy_j or 0)
    assert energy.verdict.runner_up is None or "energy" in energy.verdict.runner_up.loses_because


def test_devices_of_unknown_power_are_refused() -> None:
    with pytest.raises(InputError, match="no power is known for TPU-v5p"):
        plan(MODEL, gpus="8xTPU-v5p", objective="energy")
    assert plan(MODEL, gpus="8xTPU-v5p", objective="energy", power="300W", top=1)[0].estimate.energy_j


def test_a_cluster_file_states_power_and_site() -> None:
    table = {"pue": 1.1, "carbon_kg_per_kwh": 0.05, "group": [{"device": "H100", "nodes": 1, "power_w": 610.0}]}
    found = cluster_from_table(table, device)
    assert (found.pue, found.carbon_kg_per_kwh, found.groups[0].busy_power_w) == (1.1, 0.05, 610.0)
    with pytest.raises(InputError, match="pue"):
        cluster_from_table({**table, "pue": 0.9}, device)


@pytest.mark.parametrize(("text", "kg"), [("380g/kWh", 0.38), ("0.38 kg/kWh", 0.38), ("410 kg/MWh", 0.41), (0.2, 0.2)])
def test_carbon_has_its_unit(text: object, kg: float) -> None:
    assert CarbonIntensity().read("--carbon-intensity", text) == pytest.approx(kg)


@pytest.mark.parametrize("text", ["380", "380kg/kWh", "-1g/kWh", "0.4", 380, True, "4t/GWh"])
def test_carbon_without_a_unit_or_beyond_any_grid_is_refused(text: object) -> None:
    with pytest.raises(InputError):
        CarbonIntensity().read("--carbon-intensity", text)


def test_power_is_in_watts() -> None:
    assert Watts().read("--power", "1.2kW") == 1200
    for wrong in ("0W", "30kW", "600VA", "", 0):
        with pytest.raises(InputError):
            Watts().read("--power", wrong)


def test_public_prices_have_dates_and_sources_and_are_used_where_asked_for() -> None:
    found = prices_of(PUBLIC)
    assert all(price.usd > 0 and price.date and price.source for price in found.values())
    answer = estimate(MODEL, PLAN, gpus=GPUS, prices=PUBLIC)
    assert answer[0].estimate.price_per_step == pytest.approx(
        found["H100"].usd * 8 * answer[0].estimate.step_time_s / 3600
    )
    assert any(note.name == "price" and found["H100"].date in note.value for note in answer.assumptions)
    assert estimate(MODEL, PLAN, gpus=GPUS)[0].estimate.price_per_step is None


ENTRY = '[[price]]\ndevice = "{}"\nusd_per_device_hour = {}\n{}\n'
DATED = 'date = "2026-05"\nsource = "an offer"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.format("H100", 2, 'source = "an offer"'), "price 1 has no date"),
        (ENTRY.format("H100", 2, 'date = "2026-05"'), "price 1 has no source"),
        (ENTRY.format("H100", 2, 'date = "May"\nsource = "an offer"'), "date is 'May'"),
        (ENTRY.format("H100", -2, DATED), "usd_per_device_hour is '-2'"),
        (ENTRY.format("H100", 2, DATED) + ENTRY.format("H100-80", 3, DATED), "H100 has two prices, 2 and 3"),
        (ENTRY.format("H100x", 2, DATED), "H100x"),
        ("price = 3", "has no prices"),
        (ENTRY.format("H100", 2, DATED + '\ncurrency = "EUR"'), "unknown key 'currency'"),
    ],
)
def test_prices_that_say_too_little_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(MeshwrightError, match=said):
        prices_of(path)


def test_one_price_or_a_file_of_them() -> None:
    with pytest.raises(InputError, match="both --price and --prices"):
        estimate(MODEL, PLAN, gpus=GPUS, price=2, prices=PUBLIC)
