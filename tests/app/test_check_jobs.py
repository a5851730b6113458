"""`check` of scripts that start several jobs: listed, and one chosen by number or name."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright
from meshwright.errors import InputError

TWO_SIZES = """#!/bin/bash
for layers in 16 32; do
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $layers --hidden-size 2048 --num-attention-heads 16 \\
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --vocab-size 50304 \\
    --tensor-model-parallel-size 2 --sequence-parallel --bf16
done
"""
OPTIONS = "--bf16 True --per_device_train_batch_size 2 --fsdp full_shard"
TWO_MODELS = f"""#!/bin/bash
torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B {OPTIONS} --output_dir out/first
torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B {OPTIONS} --output_dir out/second
"""
ONE_AFTER_THE_OTHER = f"""#!/bin/bash
torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B {OPTIONS} --output_dir out/first
torchrun --nproc_per_node 8 train.py --model_name_or_path out/first/checkpoint-final {OPTIONS} --output_dir out/second
"""
SWIFT = """#!/bin/bash
for batch in 1 4; do
  NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full --deepspeed zero3 --max_length 2048 \\
    --per_device_train_batch_size $batch --gradient_accumulation_steps 1
done
"""


def script(tmp_path: Path, text: str) -> Path:
    """A file with this text."""
    path = tmp_path / "run.sh"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        (TWO_SIZES, "1 at run.sh:3 (--num-layers 16); 2 at run.sh:3 (--num-layers 32)"),
        (TWO_MODELS, "(--model_name_or_path meta-llama/Llama-3.1-8B)"),
        (SWIFT, "(--per_device_train_batch_size 1)"),
    ],
)
def test_several_jobs_are_listed_and_none_is_taken(tmp_path: Path, text: str, lists: str) -> None:
    report = meshwright.check(script(tmp_path, text), gpus="8xH100")
    assert [one.what for one in report.violations] == ["the script starts 2 different jobs"]
    assert lists in report.violations[0].why
    assert report.estimate is None


@pytest.mark.parametrize(
    ("text", "job", "option", "value"),
    [
        (TWO_SIZES, 1, "--num-layers", "16"),
        (TWO_SIZES, "2", "--num-layers", "32"),
        (TWO_MODELS, 1, "model_name_or_path", "meta-llama/Llama-3.1-8B"),
        (TWO_MODELS, "Qwen2.5-7B", "model_name_or_path", "Qwen/Qwen2.5-7B"),
        (SWIFT, 1, "per_device_train_batch_size", "1"),
        (SWIFT, 2, "per_device_train_batch_size", "4"),
    ],
)
def test_a_job_is_chosen(tmp_path: Path, text: str, job: int | str, option: str, value: str) -> None:
    report = meshwright.check(script(tmp_path, text), gpus="8xH100", job=job)
    assert report.launch is not None
    assert {one.option: one.value for one in report.launch.said}[option] == value
    assert report.estimate is not None


def test_a_run_that_goes_on_with_what_the_one_before_saved_is_the_same_job(tmp_path: Path) -> None:
    report = meshwright.check("llama-3.1-8b", source=script(tmp_path, ONE_AFTER_THE_OTHER), gpus="8xH100")
    assert report.name == "dp8.fsdp.mbs2.gbs16"


def test_the_edit_is_that_of_the_chosen_job(tmp_path: Path) -> None:
    text = TWO_SIZES.replace("  torchrun", "  echo $layers\n  torchrun")
    report = meshwright.check(script(tmp_path, text), gpus="8xH100", job=1)
    assert report.fix is not None
    assert report.fix.diff or report.fix.why_not
    assert [one.option for one in report.fix.changes if one.option == "--num-layers"] == []


def test_a_job_goes_with_a_script(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="job is given"):
        meshwright.check("llama-3.1-8b", plan="dp8.mbs1", gpus="8xH100", job=2)
    with pytest.raises(InputError, match="from 1"):
        meshwright.check(script(tmp_path, TWO_SIZES), gpus="8xH100", job=0)
    config = tmp_path / "zero.json"
    config.write_text(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'
    )
    with pytest.raises(InputError, match="--job is given"):
        meshwright.check("llama-3.1-8b", source=config, gpus="8xH100", job=2)
