"""Jobs of one script that are read alike are one job; others are a question."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright

SIZES = (
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
    " --global-batch-size 64 --vocab-size 50304 --tensor-model-parallel-size 2 --sequence-parallel --bf16"
)
MEGATRON = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}"
TRAINER = "torchrun --nproc_per_node 8 sft.py --bf16 True --fsdp full_shard"


def read(tmp_path: Path, *commands: str) -> meshwright.CheckReport:
    """A script of these commands, checked."""
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\n" + "\n".join(commands) + "\n")
    return meshwright.check(source=script, gpus="8xH100")


def test_runs_over_several_data_sets_are_one_job_and_the_edit_reaches_all_of_a_loop(tmp_path: Path) -> None:
    command = f"  {MEGATRON} --micro-batch-size 1 --data-path /data/$data --wandb-exp-name $data --train-iters 100"
    report = read(tmp_path, "for data in wiki code books; do", command, "done")
    assert report.name.startswith("tp2.dp4.mbs1.gbs64")
    assert "the script starts 3 jobs that differ in nothing that is read: the last represents all" in report.warnings
    assert report.fix is not None
    assert report.fix.diff


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (f"{MEGATRON} --micro-batch-size 1 --load a", f"{MEGATRON} --micro-batch-size 2 --load a", 2),
        (
            f"{TRAINER} --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --train_file a.json",
            f"{TRAINER} --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --train_file b.json",
            2,
        ),
        (f"{TRAINER} --per_device_train_batch_size 1", f"{TRAINER} --per_device_train_batch_size 1 --use_peft", 2),
    ],
)
def test_jobs_that_are_read_differently_are_asked_about(tmp_path: Path, first: str, second: str, count: int) -> None:
    assert [one.what for one in read(tmp_path, first, second).violations] == [
        f"the script starts {count} different jobs"
    ]


def test_jobs_of_which_no_plan_is_read_may_differ_in_their_configurations(tmp_path: Path) -> None:
    for name, more in (("plain", ""), ("narrow", ', "bf16_optimizer_states": true')):
        engine = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true%s}}'
        (tmp_path / f"{name}.json").write_text(engine % more)
    start = "deepspeed --num_gpus=8 train.py --batch_size 4 --deepspeed_config"
    told = [one.what for one in read(tmp_path, f"{start} plain.json", f"{start} narrow.json").violations]
    assert told == ["the script starts 2 different jobs"]


def test_one_model_in_two_folders_is_one_model(tmp_path: Path) -> None:
    words = "--per_device_train_batch_size 1 --max_seq_length 2048"
    report = read(
        tmp_path,
        f"{TRAINER} --model_name_or_path Qwen/Qwen3-4B {words} --train_file a.json",
        f"{TRAINER} --model_name_or_path /models/Qwen3-4B {words} --train_file b.json",
    )
    assert report.name == "dp8.fsdp.mbs1.gbs8"


def test_what_is_open_in_every_job_is_asked_once(tmp_path: Path) -> None:
    words = "--model_name_or_path $MODEL --per_device_train_batch_size 1"
    report = read(tmp_path, f"{TRAINER} {words} --train_file a.json", f"{TRAINER} {words} --train_file b.json")
    assert [one.field for one in report.violations] == ["--model_name_or_path", "model"]
