"""No plan of a count is quicker than its bound, whichever way tokens take to their experts."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.fields.job import JobFields
from meshwright.library.devices import device as library_device
from meshwright.planning.count_bound import least_of_any_count, least_of_count_s
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.size import nodes_of
from meshwright.search.bound import RowBounds
from meshwright.search.legal_rows import build_grid
from meshwright.search.space import Space


@pytest.mark.parametrize("question", [{"lora": "16"}, {}, {"expert_load": "zipf:1"}], ids=["adapters", "all", "load"])
def test_the_bound_of_a_count_is_that_of_its_best_row_in_its_best_way(question: dict[str, str]) -> None:
    inputs = job_inputs(JobFields(model="qwen3-30b-a3b", gpus="16xH100", global_batch=64, **question))
    group, space = inputs.cluster.groups[0], Space()

    hardware = hardware_of(group, inputs.workload)
    rows = build_grid(inputs.model, inputs.workload, inputs.cluster.devices, space)
    each = RowBounds(rows, inputs.model, hardware, inputs.workload)
    best_s = each.time_s[each.peak_bytes <= hardware.memory_bytes].min()

    assert len(set(rows.way.tolist())) > 1
    least_s = least_of_count_s(inputs.model, group, inputs.workload, space)
    assert least_s is not None
    assert 0.98 * best_s <= least_s <= best_s * (1.0 + 1e-12)


@pytest.mark.parametrize("device", ["H100", "GB200", "L40S", "TPU-v5p"])
@pytest.mark.parametrize(
    "question",
    [{"model": "qwen3-30b-a3b", "lora": "16"}, {"model": "llama-3.1-8b"}, {"model": "mixtral-8x7b", "seq_len": 3072}],
    ids=["adapters", "dense", "experts"],
)
def test_what_holds_of_any_count_is_above_the_bound_of_none(question: dict[str, Any], device: str) -> None:
    inputs = job_inputs(JobFields(cluster=nodes_of(library_device(device), 1), global_batch=48, **question))
    most, space = nodes_of(library_device(device), 512).groups[0], Space()
    pairs = least_of_any_count(inputs.model, most, inputs.workload, space)

    shares = []
    for nodes in (2, 3, 12, 512):
        group = nodes_of(library_device(device), nodes).groups[0]
        least_s = least_of_count_s(inputs.model, group, inputs.workload, space)
        if least_s is not None:  # some counts divide neither batch nor sequence
            shares.append(min(max(device_s / group.devices, once_s) for device_s, once_s in pairs) / least_s)
    assert max(shares) <= 1.0 + 1e-9
    assert max(shares) > 0.6
