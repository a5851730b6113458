"""Modules written for Alpa, run against its classes: their parameters as facts, since its wheel needs a jax of 2023.

Parameters are those of alpa/parallel_method.py, pipeline_parallel/stage_construction.py and layer_construction.py and
shard_parallel/auto_sharding.py of commit b8078a9f, 2023-12.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from math import prod
from types import ModuleType

import pytest

from meshwright.specs.job import Job
from tests.targets.test_round_trip import row_of, some, written

CLASSES = {
    "PipeshardParallel": (
        "devices num_micro_batches default_auto_sharding_option pipeline_schedule layer_option stage_option",
        (None, 1, None, "1f1b", None, None),
    ),
    "ManualStageOption": (
        "forward_stage_layer_ids submesh_physical_shapes submesh_logical_shapes submesh_autosharding_option_dicts",
        (),
    ),
    "ManualLayerOption": ("remat_layer static_argnums", (False, ())),
    "AutoShardingOption": (
        "enable_auto_sharding allow_all_gather allow_all_to_all allow_replicated_parameters force_data_parallel "
        "force_batch_dim_to_mesh_dim force_zero_stage_3 force_zero_stage_3_all_gather_threshold "
        "prefer_reduce_scatter allow_mixed_mesh_shape allow_recompute_heavy_op force_simple_heuristic "
        "all_reduce_threshold",
        (True, True, True, True, False, None, False, 1 << 25, False, False, False, "", 1 << 60),
    ),
}


@pytest.fixture(autouse=True)
def alpa(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("alpa")
    for name, (parameters, defaults) in CLASSES.items():
        setattr(module, name, namedtuple(name, parameters, defaults=defaults))
    monkeypatch.setitem(sys.modules, "alpa", module)


@pytest.mark.parametrize("one", list(some("alpa")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_module_makes_the_method_of_the_plan(one: Job) -> None:
    made: dict[str, object] = {}
    exec(compile(written("alpa", one)["alpa_plan.py"], "alpa_plan.py", "exec"), made)
    method, row = made["method"], row_of(one)
    stages = method.stage_option
    layers = [layer for stage in stages.forward_stage_layer_ids for layer in stage]
    assert layers == list(range(one.model.num_layers))
    assert method.num_micro_batches == row.micro_batches
    assert made["GLOBAL_BATCH"] == row.gbs
    assert method.pipeline_schedule in ("1f1b", "gpipe")
    node = one.cluster.groups[0].devices_per_node
    for physical, logical, options in zip(
        stages.submesh_physical_shapes,
        stages.submesh_logical_shapes,
        stages.submesh_autosharding_option_dicts,
        strict=True,
    ):
        # Part of a node, a power of two, or whole nodes: get_submesh_choices.
        assert physical[1] == node or (physical[0] == 1 and physical[1] & (physical[1] - 1) == 0)
        assert tuple(logical) == (row.dp, row.tp)
        assert prod(physical) == prod(logical)
        assert set(options) <= set(CLASSES["AutoShardingOption"][0].split())
    assert prod(stages.submesh_physical_shapes[0]) * row.pp == one.plan.devices
    sharding = method.default_auto_sharding_option
    assert (sharding.prefer_reduce_scatter, sharding.force_zero_stage_3) == (row.sharding == "z2", row.sharding == "z3")
    assert method.layer_option.remat_layer is (row.recompute == "full")
