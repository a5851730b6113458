from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.hetero_measured import job_of, usable
from benchmarks.measured_rule import FIXED_BYTES, measured_peak_bytes, measured_step
from benchmarks.sailor_rule import Replica, UniformStage, uniform_step
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from tests.planning.compose.cases import SHELF, kind, shelf_profiles, tiny_profiles

MOST_ERROR = {"clariden/OPT-350": 0.07, "clariden/GPT-NEO": 0.08, "mit": 0.09}
MOST_MEMORY_ERROR = {"clariden/OPT-350": 0.05}


def records() -> list[dict[str, Any]]:
    file = SHELF / "data" / "measured_iterations.json"
    return usable(json.loads(file.read_text())["records"]) if file.is_file() else []


@pytest.mark.skipif(not records(), reason="needs the measured iterations")
@pytest.mark.parametrize("cluster", MOST_ERROR)
def test_measured_iterations_are_predicted(cluster: str) -> None:
    time_errors, memory_errors = [], []
    for record in records():
        if record["cluster"] == cluster:
            job = job_of(shelf_profiles(), record)
            time_errors.append(abs(measured_step(*job).step_time_s / record["measured_iteration_s"] - 1))
            memory_errors.append(abs(measured_peak_bytes(*job) / record["measured_peak_mem_bytes"] - 1))
    assert len(time_errors) >= 8
    assert np.mean(time_errors) < MOST_ERROR[cluster]
    assert np.mean(memory_errors) < MOST_MEMORY_ERROR.get(cluster, np.inf)


def test_one_replica_of_one_device_per_stage_is_sailors_rule() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 2), kind("Beta-12", 2)])
    stages = (UniformStage(0, 2, (Replica("Beta-12", 1),)), UniformStage(2, 4, (Replica("Alpha-32", 1),)))
    assert measured_step(costs, stages, 1, 16) == uniform_step(costs, stages, 1, 16)


def test_tensor_ranks_share_the_interface() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 4)])
    stages = (UniformStage(0, 6, (Replica("Alpha-32", 2),) * 2),)
    payload = 4 * float(costs.parameters[-1]) / 2
    pair = ("Alpha-32", 2)
    assert payload < 500e6
    assert measured_step(costs, stages, 1, 16).sync_s == pytest.approx(
        2 * 2 * costs.transfer_s(payload / 2, pair, pair)
    )


def test_no_more_micro_batches_are_kept_than_there_are() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 2)])
    stages = (UniformStage(0, 4, (Replica("Alpha-32", 1),)), UniformStage(4, 2, (Replica("Alpha-32", 1),)))
    one, many = (measured_peak_bytes(costs, stages, 1, batch) for batch in (1, 8))
    saved = costs.saved_bytes(1)
    assert many - one == pytest.approx(saved[4] - saved[0])
    largest = np.diff(saved)[:4].max()
    assert one == pytest.approx(FIXED_BYTES + costs.state_bytes(1)[4] + saved[4] + 2 * largest)
