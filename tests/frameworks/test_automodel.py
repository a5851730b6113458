"""Recipes written for NeMo Automodel, parsed by its own section parser."""

from __future__ import annotations

import pytest
import yaml

from meshwright.specs.job import Job
from tests.targets.test_round_trip import some, written

pytest.importorskip("nemo_automodel")

from nemo_automodel.components.distributed.config import DDPConfig, FSDP2Config
from nemo_automodel.recipes._dist_utils import parse_distributed_section


@pytest.mark.parametrize("one", list(some("automodel")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_recipe_says_what_the_plan_means(one: Job) -> None:
    keys = yaml.safe_load(written("automodel", one)["automodel.yaml"])
    made = parse_distributed_section(keys["distributed"])
    strategy, pp = one.plan.strategies[0], len(one.plan.pipelines[0].workers)
    assert isinstance(made["strategy_config"], FSDP2Config if strategy.data.zero == 3 else DDPConfig)
    sizes = made["parallelism_sizes"]
    assert (sizes.tp_size, sizes.cp_size, sizes.pp_size) == (strategy.tp, strategy.cp, pp)
    assert (sizes.ep_size, sizes.dp_size) == (strategy.expert.ep, strategy.dp)
    assert bool(made["activation_checkpointing"]) == (strategy.recompute.kind == "full")
    assert keys["step_scheduler"]["global_batch_size"] == one.plan.global_batch
    parts = keys["distributed"].get("pipeline", {}).get("module_fqns_per_model_part", [])
    assert not parts or sum(".layers." in name for part in parts for name in part) == one.model.num_layers
