"""Arguments that a run prints or stores, checked as the script that gave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check

_PRINTED = """\
------------------------ arguments ------------------------
  bf16 ............................................ True
  deepspeed ....................................... True
  ds_sequence_parallel_size ....................... 1
  encoder_num_layers .............................. 28
  global_batch_size ............................... 16
  hidden_size ..................................... 3584
  micro_batch_size ................................ 1
  no_pipeline_parallel ............................ False
  num_attention_heads ............................. 28
  num_experts ..................................... [1]
  num_key_value_heads ............................. 4
  num_layers ...................................... 28
  pipeline_model_parallel_size .................... 4
  retriever_report_topk_accuracies ................ []
  seq_length ...................................... 2048
  tensor_model_parallel_size ...................... 1
  topk ............................................ 1
  vision_backbone_type ............................ vit
  world_size ...................................... 16
  zero_stage ...................................... 1.0
"""


def test_a_run_of_megatron_deepspeed_is_read_as_its_script_is(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "run.log"
    file.write_text(_PRINTED)
    report = check(source=file, gpus="16xH100", search=False, settings="vocab-size=32000")
    assert report.name == "pp4.dp4.z1.mbs1.gbs16.nodpov"
    keys = {line.split(" ")[2]: line.rpartition(" ")[2] for line in file.read_text().splitlines()[1:]}
    stored = tmp_path / "config.yaml"
    stored.write_text("wandb_version: 1\n" + "".join(f"{key}:\n  desc: null\n  value: {keys[key]}\n" for key in keys))
    again = check(source=stored, gpus="16xH100", search=False, settings="vocab-size=32000")
    assert (again.name, again.violations) == (report.name, report.violations)
