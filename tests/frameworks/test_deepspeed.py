"""Configurations written for DeepSpeed, read by DeepSpeed's own classes."""

from __future__ import annotations

import json
import os

import pytest

from meshwright.specs.job import Job
from tests.targets.test_round_trip import some, written

os.environ["DS_ACCELERATOR"] = "cpu"
pytest.importorskip("deepspeed")

from deepspeed.module_inject.auto_ep_config import parse_autoep_config
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.tensor_parallel.config import get_tensor_parallel_config
from deepspeed.runtime.zero.config import get_zero_config


class Ranks:
    """As DeepSpeed asks a model-parallel unit how many data ranks there are."""

    def __init__(self, dp: int) -> None:
        self.dp = dp

    def get_data_parallel_world_size(self) -> int:
        return self.dp


@pytest.mark.parametrize("one", list(some("deepspeed")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_configuration_says_what_the_plan_means(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepspeed.runtime.config.dist.get_rank", lambda: 0)
    monkeypatch.setattr("deepspeed.runtime.config.dist.get_world_size", lambda: one.plan.devices)
    keys = json.loads(written("deepspeed", one)["ds_config.json"])
    strategy, pipeline = one.plan.strategies[0], one.plan.pipelines[0]
    # DeepSpeed itself asserts that the batch is what micro-batch, accumulation and data ranks make.
    config = DeepSpeedConfig(keys, mpu=Ranks(strategy.dp) if strategy.tp > 1 else None)
    assert config.world_size == strategy.dp
    assert config.train_batch_size == one.plan.global_batch
    assert config.train_micro_batch_size_per_gpu == pipeline.micro_batch
    zero = get_zero_config(keys)
    assert int(zero.stage) == strategy.data.zero
    assert (zero.offload_optimizer is not None) == bool(strategy.offload.optimizer)
    assert (zero.offload_param is not None) == bool(strategy.offload.weights)
    assert max(1, get_tensor_parallel_config(keys).autotp_size) == strategy.tp
    experts = parse_autoep_config(keys.get("expert_parallel", {}))
    assert experts.autoep_size == strategy.expert.ep
