"""OLMo's trainer: sizes of the published models, what shards and recomputes, and what no plan says."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.targets import target_of_file

SEVEN = """
run_name: seven
model:
  d_model: 4096
  n_heads: 32
  n_layers: 32
  mlp_hidden_size: 22016
  weight_tying: false
  rope: true
  rope_theta: 500000
  flash_attention: true
  attention_dropout: 0.0
  residual_dropout: 0.0
  embedding_dropout: 0.0
  include_bias: false
  block_type: sequential
  layer_norm_type: rms
  attention_layer_norm: true
  norm_after: true
  activation_type: swiglu
  max_sequence_length: 4096
  vocab_size: 100278
  embedding_size: 100352
optimizer:
  name: adamw
global_train_batch_size: 1024
device_train_microbatch_size: 2
precision: amp_bf16
fsdp:
  wrapping_strategy: by_block_and_size
  precision: mixed
"""


def checked(tmp_path: Path, text: str = SEVEN, **more: object) -> CheckReport:
    file = tmp_path / "olmo.yaml"
    file.write_text(text)
    return check(source=file, gpus="64xH100", **{"search": False, **more})


def test_a_published_model_is_the_size_it_is(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report.ok
    assert report.name == "dp64.fsdp.mbs2.gbs1024"
    assert report.inputs is not None
    assert report.inputs.model.parameters == 7_298_617_344  # OLMo 2 7B, on its page of Hugging Face
    assert report.inputs.workload.precision.reduce == "fp32"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("activation_checkpointing: whole_layer", "dp64.fsdp.mbs2.gbs1024.rc-full"),
        ("activation_checkpointing: one_in_two", "dp64.fsdp.mbs2.gbs1024.rc-block16"),
        ("distributed_strategy: ddp", "dp64.mbs2.gbs1024"),
        ("  sharding_strategy: SHARD_GRAD_OP", "dp64.fsdp-keep.mbs2.gbs1024"),
        (
            "  sharding_strategy: HYBRID_SHARD\n  hybrid_sharding_num_model_replicas: 8",
            "dp64.hsdp8.mbs2.gbs1024",
        ),
    ],
)
def test_what_shards_and_recomputes(tmp_path: Path, line: str, name: str) -> None:
    assert checked(tmp_path, SEVEN + line + "\n").name == name


@pytest.mark.parametrize(
    ("was", "now", "field"),
    [
        ("by_block_and_size", "null", "fsdp.wrapping_strategy"),
        ("rope: true", "alibi: true", "model.alibi"),
        ("swiglu", "gelu", "model.activation_type"),
        ("residual_dropout: 0.0", "residual_dropout: 0.1", "model.residual_dropout"),
        ("layer_norm_type: rms", "layer_norm_type: default", "model.layer_norm_with_affine"),
        ("device_train_microbatch_size: 2", "activation_checkpointing: fine_grained", "activation_checkpointing"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, was: str, now: str, field: str) -> None:
    assert field in [one.field for one in checked(tmp_path, SEVEN.replace(was, now)).violations]


def test_a_better_plan_is_written_into_the_file(tmp_path: Path) -> None:
    report = checked(tmp_path, SEVEN.replace("microbatch_size: 2", "microbatch_size: 1"), search=True)
    assert report.fix is not None
    assert "+device_train_microbatch_size: 2" in report.fix.diff or "+  sharding_strategy" in report.fix.diff


def test_files_of_llm_foundry_are_not_its_own() -> None:
    foundry = "model:\n  name: mpt_causal_lm\n  d_model: 4096\nglobal_train_batch_size: 8\nmax_duration: 1ba\n"
    assert target_of_file("a.yaml", SEVEN) == "olmo"
    assert target_of_file("a.yaml", foundry + "train_loader: {}\n") == "foundry"
