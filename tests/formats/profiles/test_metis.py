from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright import plan as plan_measured
from meshwright.errors import InputError
from meshwright.formats.profiles import Point, read_profiles

LAYERS = 8
PARAMETERS = [80e6, *[50e6] * (LAYERS - 2), 80e6]
"""Bytes."""
CLUSTER = {
    "10.0.0.1": {"instance_type": "A100", "inter_bandwidth": 10, "intra_bandwidth": 46, "memory": 40},
    "10.0.0.2": {"instance_type": "A100", "inter_bandwidth": 8, "intra_bandwidth": 46, "memory": 40},
    "10.0.0.3": {"instance_type": "V100", "inter_bandwidth": 5, "intra_bandwidth": 30, "memory": 16},
}


def profile(slower: float, tp: int, batch: int, **changed: Any) -> dict[str, Any]:
    block_ms = 10.0 * slower * batch / tp
    return {
        "model": {
            "model_name": "GPT",
            "num_layers": LAYERS,
            "parameters": {"total_parameters_bytes": sum(PARAMETERS), "parameters_per_layer_bytes": PARAMETERS},
        },
        "execution_time": {
            "optimizer_time_ms": 20.0,
            "batch_generator_time_ms": 1.0,
            "layer_compute_total_ms": [1.0, *[block_ms] * (LAYERS - 2), 2.0],
        },
        "execution_memory": {"total_memory": 0, "layer_memory_total_mb": [600 + 17 * 8 * batch / tp] * LAYERS},
    } | changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clusterfile.json").write_text(json.dumps(CLUSTER))
    for device, slower in (("A100", 1.0), ("V100", 2.5)):
        for tp in (1, 2):
            for batch in (1, 2, 4):
                file = tmp_path / f"DeviceType.{device}_tp{tp}_bs{batch}.json"
                file.write_text(json.dumps(profile(slower, tp, batch)))
    return tmp_path


def test_points_sizes_and_links_are_read(folder: Path) -> None:
    profiles = read_profiles(folder)
    model = profiles.models["GPT"]
    assert (model.num_layers, model.devices) == (LAYERS, ("A100", "V100"))
    times = model.times[Point("V100", 2, 4)]
    assert times.forward_s[1] + times.backward_s[1] == pytest.approx(0.05)
    assert model.sizes[1].parameters[0] == 20e6
    assert model.sizes[2].parameters[1] == 6.25e6
    # One more sequence adds 17 x 8 MiB, of which a transformer layer passes on a 17th.
    assert model.sizes[1].saved_elements[1] == pytest.approx(17 * 8 * 1024**2 / 4)
    assert model.sizes[2].output_elements[1] == pytest.approx(8 * 1024**2 / 4)
    slow, quick = (
        next(fit for route, fit in profiles.links.items() if (route.source.device, route.target.device) == pair)
        for pair in (("A100", "V100"), ("A100", "A100"))
    )
    assert (slow.seconds(5e9), quick.seconds(8e9)) == (pytest.approx(1.0), pytest.approx(1.0))


def test_a_mixed_cluster_is_planned_from_them(folder: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    groups = [("A100", 40), ("V100", 16)]
    cluster.write_text(
        "".join(
            f'[[group]]\nname = "{name}"\ndevice = "{name}"\nnodes = 1\ndevices_per_node = 4\nmemory_gib = {gib}\n'
            for name, gib in groups
        )
    )
    plan = plan_measured("GPT", profiles=folder, global_batch=64, cluster=cluster)
    assert plan.mixing is not None
    alone = [one.step_time_s for one in plan.mixing.alone if one.step_time_s is not None]
    assert plan.best.estimate.step_time_s < min(alone)


def test_a_memory_list_that_is_too_short_is_passed_over(folder: Path) -> None:
    short = profile(1.0, 1, 1, execution_memory={"layer_memory_total_mb": [600.0] * (LAYERS - 1)})
    (folder / "DeviceType.A100_tp1_bs1.json").write_text(json.dumps(short))
    assert read_profiles(folder).models["GPT"].sizes[1].saved_elements[1] == pytest.approx(17 * 8 * 1024**2 / 4)


def test_everything_wrong_is_told_at_once(folder: Path) -> None:
    (folder / "DeviceType.T4_tp1_bs1.json").write_text(json.dumps(profile(4.0, 1, 1)))
    (folder / "DeviceType.A100_tp2_bs1.json").write_text(json.dumps(profile(1.0, 2, 1, execution_time={})))
    (folder / "DeviceType.A100_tp2_bs2.json").write_text("{")
    with pytest.raises(InputError) as error:
        read_profiles(folder)
    text = str(error.value)
    assert "clusterfile.json has no node of T4" in text
    assert "bs1.json: layer_compute_total_ms" in text
    assert "bs2.json is not JSON" in text
