"""Configurations written for Accelerate, read by its own classes, and the trainer's arguments by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from meshwright.specs.job import Job
from tests.targets.test_round_trip import some, written

pytest.importorskip("accelerate")

from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

PREFIX = "parallelism_config_"


@pytest.mark.parametrize("one", list(some("accelerate")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_configuration_says_what_the_plan_means(one: Job, tmp_path: Path) -> None:
    files = written("accelerate", one)
    path = tmp_path / "accelerate.yaml"
    path.write_text(files["accelerate.yaml"])
    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig)
    assert config.num_processes == one.plan.devices
    strategy = one.plan.strategies[0]
    sizes = {name.removeprefix(PREFIX): value for name, value in config.parallelism_config.items()}
    degrees = {name: size for name, size in sizes.items() if name.endswith("_size")}
    if degrees:
        made = ParallelismConfig(**degrees)
        assert made.total_size == one.plan.devices
        assert (made.tp_size, made.cp_size) == (strategy.tp, strategy.cp)
        assert made.dp_shard_size == strategy.data.shard
    if strategy.data.zero == 3 and strategy.tp == 1:  # with tp the model is divided as it is loaded
        assert config.fsdp_config["fsdp_version"] == 2
        assert config.fsdp_config["fsdp_reshard_after_forward"] == strategy.data.reshard


@pytest.mark.parametrize("one", list(some("accelerate"))[::3], ids=lambda one: f"{one.model.name}-{one.name}")
def test_a_launch_passes_the_plan_to_its_processes(one: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(written("accelerate", one)["accelerate.yaml"])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    given = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    passed = prepare_multi_gpu_env(_validate_launch_command(given)[0])
    monkeypatch.setattr("os.environ", dict(passed))
    strategy = one.plan.strategies[0]
    if strategy.data.zero == 3 and strategy.tp == 1:  # with tp the model is divided as it is loaded
        made = FullyShardedDataParallelPlugin()
        assert (made.fsdp_version, made.reshard_after_forward) == (2, strategy.data.reshard)
        assert made.activation_checkpointing == (strategy.recompute.kind == "full")
        assert (type(made.cpu_offload).__name__ == "CPUOffloadPolicy") == bool(strategy.offload.weights)
    if passed.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
        sizes = ParallelismConfig()
        assert (sizes.tp_size, sizes.cp_size, sizes.dp_shard_size) == (strategy.tp, strategy.cp, strategy.data.shard)
        assert sizes.dp_replicate_size == strategy.data.replicate


def test_the_trainer_takes_its_arguments(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    one = next(one for one in some("accelerate") if one.plan.strategies[0].recompute.kind == "full")
    path = tmp_path / "training_args.json"
    path.write_text(written("accelerate", one)["training_args.json"].replace('"bf16": true', '"bf16": false'))
    (arguments,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_json_file(str(path))
    assert arguments.per_device_train_batch_size == one.plan.pipelines[0].micro_batch
    assert yaml.safe_load(written("accelerate", one)["accelerate.yaml"])["num_machines"] == 2
