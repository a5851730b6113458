"""DeepSpeed's configuration: parts that no plan holds, refused by name or said, and the languages it is written in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright import check
from meshwright.errors import InputError
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import read_script
from meshwright.targets import TARGETS, target_of_file

CONFIG: dict[str, Any] = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}


def read(**more: Any) -> LaunchFile:
    target = TARGETS["deepspeed"]
    assert target.read is not None
    return target.read({"ds_config.json": json.dumps({**CONFIG, **more})}, 8)


@pytest.mark.parametrize(
    ("key", "table", "field"),
    [
        ("progressive_layer_drop", {"enabled": True, "theta": 0.5}, "progressive_layer_drop.enabled"),
        (
            "data_efficiency",
            {"enabled": True, "data_routing": {"enabled": True, "random_ltd": {"enabled": True}}},
            "data_efficiency.data_routing.random_ltd.enabled",
        ),
        ("elasticity", {"enabled": "true", "max_train_batch_size": 16}, "elasticity.enabled"),
        ("amp", {"enabled": True, "opt_level": "O1"}, "amp.enabled"),
        ("torch_autocast", {"enabled": True, "dtype": "bfloat16"}, "torch_autocast.enabled"),
        (
            "compression_training",
            {"layer_reduction": {"enabled": True, "keep_number_layer": 5}},
            "compression_training.layer_reduction.enabled",
        ),
        ("sparse_attention", {"mode": "bigbird", "block": 16}, "sparse_attention"),
    ],
)
def test_what_changes_the_model_or_its_steps_is_refused(key: str, table: dict[str, Any], field: str) -> None:
    assert [problem.field for problem in read(**{key: table}).problems] == [field]


def test_what_is_off_or_left_to_the_trainer_changes_nothing() -> None:
    off = {key: {"enabled": False} for key in ("amp", "elasticity", "progressive_layer_drop", "torch_autocast")}
    found = read(**off, sparse_attention={"mode": "dense"}, curriculum_learning={"enabled": False})
    assert (found.problems, found.notes) == (read().problems, read().notes) == ((), found.notes)


def test_a_table_of_which_only_a_word_is_there_is_said_to_be_a_table() -> None:
    (problem,) = read(zero_optimization={"stage": 3, "offload_param": False}).problems
    assert (problem.what, "takes a table" in problem.why) == ("zero_optimization.offload_param is False", True)
    assert not read(zero_optimization={"stage": 3, "offload_param": None}).problems


def test_a_curriculum_is_planned_at_its_full_length() -> None:
    table = {"enabled": True, "curriculum_type": "seqlen", "min_difficulty": 80, "max_difficulty": 2048}
    found = read(curriculum_learning=table)
    assert found.problems == ()
    (note,) = set(found.notes) - set(read().notes)
    assert "from 80 to 2048" in note


def test_a_script_of_megatron_deepspeed_has_them_in_the_file_that_it_names() -> None:
    target = TARGETS["megatron-deepspeed"]
    assert target.script is not None
    config = json.dumps({**CONFIG, "progressive_layer_drop": {"enabled": True}})
    text = f"""#!/bin/bash
cat <<EOT > ds.json
{config}
EOT
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --bf16 \\
  --micro-batch-size 2 --global-batch-size 16 --seq-length 128 --max-position-embeddings 128 --vocab-size 512 \\
  --zero-stage 2 --no-pipeline-parallel --deepspeed --deepspeed_config ds.json"""
    found = target.script(read_script(text), 8)
    assert "progressive_layer_drop.enabled" in [problem.field for problem in found.problems]


HJSON = """
// the engine of every run
{
  # shards of everything
  zero_optimization: {
    stage: 3
    offload_optimizer: { device: "cpu" }
  }
  train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 4
  bf16: { enabled: true }
}
"""
YAML = """
train_batch_size: 64
train_micro_batch_size_per_gpu: 2
zero_optimization:
  stage: 3
  offload_optimizer:
    device: cpu
bf16:
  enabled: true
"""


@pytest.mark.parametrize(("name", "text"), [("ds.hjson", HJSON), ("ds.json", HJSON), ("ds.yaml", YAML)])
def test_a_configuration_in_hjson_or_yaml_is_read(name: str, text: str) -> None:
    assert target_of_file(name, text) == "deepspeed"
    target = TARGETS["deepspeed"]
    assert target.read is not None
    found = target.read({name: text}, 8)
    assert found.row is not None
    assert (found.problems, found.row.format()) == ((), "dp8.z3.mbs2.gbs64.off-og")


def test_keys_of_deepspeed_in_a_file_of_another_program_are_not_taken_for_its_own() -> None:
    assert target_of_file("run.yaml", "model:\n  name: llama\n" + YAML) is None


def test_what_is_wrong_in_hjson_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "ds.hjson"
    file.write_text(HJSON.replace('{ device: "cpu" }', "{ device: cpu }"))  # a word goes on to the end of its line
    with pytest.raises(InputError, match="is missing"):
        check("gpt2", source=file, cluster="8xH100")
