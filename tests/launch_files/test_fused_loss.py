"""Logits that Liger makes in pieces, by whatever switch a trainer has for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check

FACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
TRAINER = (
    "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 --max_length 4096 "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --use_liger_kernel {}\n"
)


@pytest.mark.parametrize(
    ("name", "text", "switch"),
    [
        ("train.yaml", FACTORY + "enable_liger_kernel: true\n", "enable_liger_kernel"),
        ("train.sh", TRAINER.format("True"), "use_liger_kernel"),
    ],
)
def test_a_switch_is_honoured_and_told(tmp_path: Path, name: str, text: str, switch: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    report = check(path, cluster="8xH200", search=False)
    assert report.inputs is not None
    assert report.inputs.workload.loss_tiles == 32
    assert switch in [one.option for one in report.launch.said]
    assert any("32 pieces" in note for note in report.warnings)
    path.write_text(FACTORY if name == "train.yaml" else TRAINER.format("False"))
    assert check(path, cluster="8xH200", search=False).inputs.workload.loss_tiles == 1
    path.write_text(text)
    said = check(path, cluster="8xH200", search=False, loss_tiles=8)
    assert said.inputs.workload.loss_tiles == 8


def test_a_file_with_pieces_is_compared_with_other_plans_and_edited(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(FACTORY + "enable_liger_kernel: true\n")
    report = check(path, cluster="8xH200")
    assert report.better is not None
    assert report.fix is not None
    assert report.fix.text
    assert "enable_liger_kernel: true" in report.fix.text
