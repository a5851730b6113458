"""Sentences of plans over several groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import UnsupportedError
from meshwright.planning.mixed.mixing import HeldLayers
from meshwright.report.words.mixed import held_line
from meshwright.specs.job import Job
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.targets import TARGETS

TWO_ZONES = """
[[group]]
name = "dear"
device = "H100"
nodes = 1
devices_per_node = 2
price_per_device_hour = 4.0
[[group]]
name = "spot"
device = "H100"
nodes = 1
devices_per_node = 2
price_per_device_hour = 1.5
[[link]]
between = ["dear", "spot"]
gb_s = 1
price_per_gb = 0.01
"""


def test_a_plan_that_rents_one_group_says_so_and_tells_no_gap_of_all(tmp_path: Path) -> None:
    path = tmp_path / "zones.toml"
    path.write_text(TWO_ZONES)
    verdict = mw.plan("gpt2", cluster=path, global_batch=512, objective="cost").verdict
    assert "One group by itself makes the cheapest step found" in verdict.text
    lines = "\n".join(verdict.why)
    assert "no step is below" in lines
    assert "(gap" not in lines
    assert "0% above the mean" not in lines
    quick = mw.plan("gpt2", cluster=path, global_batch=512)
    assert "nodes" not in quick.verdict.text  # both groups have nodes of 2: what differs is their zone
    assert "(gap" in "\n".join(quick.verdict.why)


SPOT = """
[[group]]
name = "own"
device = "H100"
nodes = 2
price_per_device_hour = 2.5
[[group]]
name = "spot"
device = "A100-80"
nodes = 4
price_per_device_hour = 0.6
preemptions_per_hour = {}
"""


def test_what_mixing_is_worth_counts_what_preemptions_take(tmp_path: Path) -> None:
    path = tmp_path / "spot.toml"
    path.write_text(SPOT.format(0.3))
    found = mw.plan("llama-3.1-8b", cluster=path, seq_len=4096, global_batch=768)
    mixing = found.mixing
    assert mixing is not None
    assert mixing.kept < 1.0
    alone = {one.devices: one for one in mixing.alone}
    own, spot = alone["16 own"], alone["32 spot"]
    assert own.step_time_s is not None
    assert spot.step_time_s is not None
    assert (own.kept, own.amount) == (1.0, own.step_time_s)
    assert spot.amount == pytest.approx(spot.step_time_s / spot.kept)
    assert mixing.gain == pytest.approx(1 - mixing.step_time_s / mixing.kept / own.step_time_s)
    assert "preemptions counted" in found.verdict.text
    assert any("32 spot alone" in line and "with preemptions" in line for line in found.verdict.why)


@pytest.mark.parametrize(
    ("objective", "amount", "unit"),
    [("time", "step_time_s", "s"), ("cost", "price_per_step", "usd"), ("energy", "energy_j", "j")],
)
def test_mixing_is_compared_by_what_is_asked_for(tmp_path: Path, objective: str, amount: str, unit: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(SPOT.format(0.0))
    found = mw.plan("llama-3.1-8b", cluster=path, seq_len=4096, global_batch=768, objective=objective)
    mixing = found.mixing
    assert mixing is not None
    assert mixing.best_alone is not None
    assert mixing.amount == getattr(found.best.estimate, amount)
    assert mixing.best_alone.amount == min(one.amount for one in mixing.alone if one.amount is not None)
    assert mixing.amount <= (mixing.best_alone.amount or 0.0) * (1 + 1e-9)
    document = found.to_dict()["mixing"]
    assert document["best_alone"][f"with_preemptions_{unit}"] == mixing.best_alone.amount
    assert [one[f"with_preemptions_{unit}"] for one in document["alone"]] == [one.amount for one in mixing.alone]
    assert not any("amount" in one for one in (*document["alone"], *document["without"]))


def test_links_to_groups_that_no_plan_uses_are_not_listed(tmp_path: Path) -> None:
    def links(rate: float) -> list[str]:
        path = tmp_path / "spot.toml"
        path.write_text(SPOT.format(rate))
        found = mw.plan("llama-3.1-8b", cluster=path, seq_len=4096, global_batch=768, top=1)
        return [one.name for one in found.assumptions if one.name.startswith("link ")]

    assert links(0.01) == ["link own - spot"]
    assert links(3.0) == []


def test_pipelines_of_unequal_shape_are_said_to_be_for_no_framework() -> None:
    plans = mw.plan("llama-3.1-8b", gpus="31x1xH100", top=2)
    best = plans.plans[0]
    assert best.name is None
    assert any("no framework known here runs them" in line for line in plans.verdict.why)
    assert isinstance(best.job, Job)
    assert all(target.refused(best.job) for target in TARGETS.values() if target.suggested)


def test_a_plan_of_one_shape_over_unequal_nodes_is_told_how_it_can_be_priced() -> None:
    with pytest.raises(UnsupportedError, match=r"--gpus 31x1xH100 prices them by the fabric alone"):
        mw.estimate("llama-3.1-8b", "dp31.fsdp.mbs1", gpus="31xH100")
    assert mw.estimate("llama-3.1-8b", "dp31.fsdp.mbs1", gpus="31x1xH100").plans[0].estimate.fits == "yes"
    with pytest.raises(UnsupportedError) as unlike:
        mw.estimate("llama-3.1-8b", "dp16.fsdp.mbs1", gpus="8xH100,8xA100-80")
    assert "x1x" not in unlike.value.problems[0].fix


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((30, 29), "pipeline 0: 59 layers (30+29) on 2 stages of 4 H100"),
        ((2,), "pipeline 0: 2 layers on 1 stage of 4 H100"),
        ((1,), "pipeline 0: 1 layer on 1 stage of 4 H100"),
    ],
)
def test_layers_are_given_stage_by_stage_where_there_are_several(layers: tuple[int, ...], text: str) -> None:
    one = HeldLayers(
        pipelines=(0, 0),
        group="H100",
        devices=4,
        layers=layers,
        strategy=LayerStrategy(tensor=Tensor1D(degree=4)),
        micro_batches=8,
        mbs=1,
    )
    assert held_line(one) == f"{text}, tp4, 8 x mbs1"
    chunked = replace(one, schedule="interleaved-group8", chunks=3)
    assert held_line(chunked) == f"{text}, tp4, 8 x mbs1, interleaved-group8 in 3 chunks"
    assert "interleaved" not in held_line(chunked, follows=True)
