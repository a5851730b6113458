"""Modules written for torchtitan, built by torchtitan itself."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from tests.targets.test_round_trip import some, written

trainer = pytest.importorskip("torchtitan.trainer", exc_type=ImportError)

from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.models.common.linear import Linear  # noqa: E402
from torchtitan.models.common.moe import GroupedExperts  # noqa: E402


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


@pytest.mark.parametrize(
    ("model", "dtype", "kinds"),
    [
        ("llama-3.1-8b", "fp8", {"Float8Linear": 5 * 32, "Linear": 1}),
        ("llama-3.1-8b", "mxfp8", {"MXFP8Linear": 5 * 32 + 1}),
        ("qwen3-30b-a3b", "fp8", {"Float8Linear": 2 * 48, "Float8GroupedExperts": 48}),
    ],
)
def test_products_run_in_the_format_that_a_plan_names(
    model: str, dtype: str, kinds: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchao")
    for part in ("float8", "mx"):
        monkeypatch.setattr(f"torchtitan.components.quantization.{part}.has_cuda_capability", lambda *version: True)
    fields = JobFields(model=model, gpus="8xB200", seq_len=2048, dtype=dtype)
    for name, text in written("torchtitan", plan_question("dp8.fsdp.mbs2", fields).job).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "meshwright_plan", raising=False)
    config = ConfigManager().parse_args(["--module", "meshwright_plan", "--config", "plan"])
    found = [one for kind in (Linear, GroupedExperts) for _, one, *_ in config.model_spec.model.traverse(kind.Config)]
    made = Counter(type(one)._owner.__name__ for one in found)
    assert {kind: made[kind] for kind in kinds} == kinds


def test_adapters_stand_beside_the_products_that_a_plan_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = "r=16,targets=qkv_proj,o_proj,mlp.down_proj"
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core")
    job = plan_question("dp8.fsdp.mbs2.rc-full", fields).job
    for name, text in written("torchtitan", job).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "meshwright_plan", raising=False)
    config = ConfigManager().parse_args(["--module", "meshwright_plan", "--config", "plan"])
    found = [
        (fqn, one.rank) for fqn, one, *_ in config.model_spec.model.traverse(Linear.Config) if hasattr(one, "rank")
    ]
    assert len(found) == 3 * 32
    assert {fqn.rpartition(".")[2] for fqn, _ in found} == {"wqkv", "wo", "w2"}
    assert {rank for _, rank in found} == {16}
    assert config.training.dtype == "bfloat16"
