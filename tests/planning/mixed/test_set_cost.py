"""What a set promises to cost, against what the plan of it pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import with_whole_micro_batches
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.set_cost import price_per_step
from meshwright.planning.objectives import Aim
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.search.space import Space
from meshwright.units import HOUR_S

REGIONS = """
[[group]]
name = "east"
device = "H100"
nodes = 1
devices_per_node = 4
zone = "us-east"
price_per_device_hour = {hour}
[[group]]
name = "west"
device = "A100-80"
nodes = 1
devices_per_node = 4
zone = "us-west"
price_per_device_hour = {hour}
[[link]]
between = ["us-east", "us-west"]
gb_s = 10
latency_us = 1000
price_per_gb = 0.02
"""
PINNED = Space(pins=(("tp", (1, 2)), ("cp", (1,)), ("sharding", ("z0",)), ("schedule", ("1f1b",))))


@pytest.mark.parametrize("hour", [0.0, 3.0])
def test_a_set_promises_what_its_plan_pays(hour: float, tmp_path: Path) -> None:
    cluster = tmp_path / "regions.toml"
    cluster.write_text(REGIONS.format(hour=hour))
    asked = job_inputs(JobFields(model="llama-3-8b", cluster=str(cluster), global_batch=16, seq_len=512))
    (run,) = asked.model.runs
    short = replace(asked, model=replace(asked.model, runs=(replace(run, repeats=6),)))
    source = NativeSource(short, lambda part: PINNED)
    aim = Aim(objective="cost")
    crossing = beside = 0
    for one in source.composer.sets([IslandPart(0, 4), IslandPart(1, 4)], 40):
        whole = with_whole_micro_batches(one, 16)
        paid = None if whole is None else source.priced(native_plan(whole, source.cluster))
        if whole is None or paid is None:
            continue
        estimate = paid.estimate
        assert estimate.price_per_step is not None
        own = price_per_step(whole, source.model, source.cluster, source.workload, aim)
        energy_wh = price_per_step(whole, source.model, source.cluster, source.workload, Aim(objective="energy"))
        assert estimate.energy_j is not None
        assert energy_wh * HOUR_S / whole.step_s == pytest.approx(estimate.energy_j / estimate.step_time_s)
        hours = estimate.price_per_step - estimate.traffic_price_per_step
        # The seconds of devices are those of the closed form.
        links = own - hours * whole.step_s / estimate.step_time_s
        assert links == pytest.approx(estimate.traffic_price_per_step, rel=1e-6, abs=1e-9)
        crossing += links > 1e-9 and len(whole.pipelines) == 1
        beside += links > 1e-9 and len(whole.pipelines) > 1
    assert crossing
    assert beside
