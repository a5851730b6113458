"""Configurations written for MaxText, validated by the sections of its own configuration class."""

from __future__ import annotations

import math

import pytest
import yaml

from meshwright.specs.job import Job
from tests.targets.test_round_trip import some, written

types = pytest.importorskip("maxtext.configs.types", exc_type=ImportError)

SECTIONS = (
    *(types.IciParallelism, types.DcnParallelism, types.PipelineParallelism, types.RematAndOffload),
    *(types.DataTypes, types.TrainingLoop, types.HardwareAndMesh, types.RunInfo, types.Rope, types.DatasetGeneral),
)


@pytest.mark.parametrize("one", list(some("maxtext")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_configuration_says_what_the_plan_means(one: Job) -> None:
    keys = yaml.safe_load(written("maxtext", one)["maxtext.yml"])
    assert keys.pop("base_config") == "base.yml"
    assert keys.keys() <= types.MaxTextConfig.model_fields.keys()
    made = {}
    for section in SECTIONS:
        own = {name: value for name, value in keys.items() if name in section.model_fields}
        made |= section.model_validate(own).model_dump()
    strategy = one.plan.strategies[0]
    ici, dcn = (
        {name: made[name] for name in kind.model_fields if name in keys}
        for kind in (types.IciParallelism, types.DcnParallelism)
    )
    assert math.prod(ici.values()) == one.cluster.groups[0].devices_per_node
    assert math.prod(ici.values()) * math.prod(dcn.values()) == one.plan.devices
    assert made["ici_tensor_parallelism"] * made["dcn_tensor_parallelism"] == strategy.tp
    batch = keys["per_device_batch_size"] * one.plan.devices * keys["gradient_accumulation_steps"]
    assert batch == one.plan.global_batch
