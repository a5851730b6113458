"""Parts of DeepSpeed's configuration that no plan holds: refused by name, or said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import read_script
from meshwright.targets import TARGETS

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
