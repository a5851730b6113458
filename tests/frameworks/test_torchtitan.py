"""Modules written for torchtitan, built by torchtitan itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.targets.test_round_trip import some, written

trainer = pytest.importorskip("torchtitan.trainer", exc_type=ImportError)

from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402


@pytest.mark.parametrize("one", list(some("torchtitan")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_module_is_a_configuration_of_a_trainer(one, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in written("torchtitan", one).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "meshwright_plan", raising=False)
    config = ConfigManager().parse_args(["--module", "meshwright_plan", "--config", "plan"])
    assert isinstance(config, trainer.Trainer.Config)
    dims = ParallelDims.from_config(config.parallelism, one.plan.devices)
    strategy = one.plan.strategies[0]
    assert (dims.tp, dims.cp, dims.pp, dims.ep) == (
        strategy.tp,
        strategy.cp,
        len(one.plan.pipelines[0].workers),
        strategy.expert.ep,
    )
    assert dims.dp_replicate * dims.dp_shard == strategy.dp
    assert config.training.global_batch_size == one.plan.global_batch
    assert len(config.model_spec.model.layers) == one.model.num_layers
    parts = config.parallelism.module_fqns_per_model_part or []
    assert not parts or sum(name.startswith("layers.") for part in parts for name in part) == one.model.num_layers
