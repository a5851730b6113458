"""Files of a trainer's options: given to `check`, or to the program that a script starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.errors import InputError

LLAMA = "meta-llama/Llama-3.1-8B"
OPTIONS: dict[str, Any] = {
    "model_name_or_path": LLAMA,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "bf16": True,
    "max_seq_length": 2048,
    "lr_scheduler_type": "cosine",
}
ZERO = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
}
SWIFT: dict[str, Any] = {
    "model": LLAMA,
    "template": "llama3",
    "torch_dtype": "bfloat16",
    "train_type": "lora",
    "lora_rank": 8,
    "target_modules": ["all-linear"],
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 16,
    "max_length": 2048,
    "gradient_checkpointing": True,
    "deepspeed": None,
    "llamapro_num_new_blocks": 4,
    "hub_token": "secret",
}


def read(folder: Path, files: dict[str, Any]) -> CheckReport:
    """The first of some files, checked among the others."""
    for name, held in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(held if isinstance(held, str) else json.dumps(held, indent=2))
    return check(folder / next(iter(files)), cluster="8xH100", search=False)


@pytest.mark.parametrize("words", ["args.json", "--train_args_file args.json", "--config args.json"])
def test_a_program_has_the_options_of_the_file_that_it_is_started_with(tmp_path: Path, words: str) -> None:
    command = f"torchrun --nproc_per_node 8 train.py {words}\n"
    engine = {**OPTIONS, "deepspeed": "engines/z3.json"}
    report = read(tmp_path, {"run.sh": command, "args.json": engine, "engines/z3.json": ZERO})
    assert report.name == "dp8.z3.mbs2.gbs64.rc-full.off-og"
    assert report.launch is not None
    assert {one.place for one in report.launch.said if one.option == "max_seq_length"} == {"args.json:7"}


def test_words_of_the_command_stand_over_those_of_the_file(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node 8 train.py --max_seq_length 4096 --config args.yaml --fsdp full_shard\n"
    text = "".join(f"{key}: {value}\n" for key, value in OPTIONS.items())
    report = read(tmp_path, {"run.sh": command, "args.yaml": text})
    assert report.inputs is not None
    assert (report.name, report.inputs.workload.seq_len) == ("dp8.fsdp.mbs2.gbs64.rc-full", 4096)


def test_a_file_of_options_is_checked_by_itself(tmp_path: Path) -> None:
    report = read(tmp_path, {"args.json": {**OPTIONS, "deepspeed": ZERO}})
    assert report.name == "dp8.z3.mbs2.gbs64.rc-full.off-og"
    (asked,) = read(tmp_path, {"args.json": OPTIONS}).violations[:1]
    assert asked.field == "fsdp"


def test_firefly_trains_adapters_beside_four_bits_unless_it_says_otherwise(tmp_path: Path) -> None:
    firefly = {**OPTIONS, "train_file": "data.jsonl", "template_name": "llama3", "lora_rank": 64, "fsdp": "full_shard"}
    found = read(tmp_path, {"args.json": firefly}).inputs
    assert found is not None
    assert found.model.lora is not None
    assert (found.model.lora.rank, found.model.lora.targets, found.model.lora.base) == (64, ("all-linear",), "nf4")
    whole = read(tmp_path, {"args.json": {**firefly, "train_mode": "full", "lora_rank": None}}).inputs
    assert whole is not None
    assert whole.model.lora is None


def test_a_run_of_ms_swift_is_read_from_the_arguments_that_it_leaves(tmp_path: Path) -> None:
    report = read(tmp_path, {"args.json": SWIFT})
    assert (report.name, report.inputs is not None) == ("dp8.mbs1.gbs128.rc-full", True)
    assert not report.violations
    assert report.launch is not None
    assert not any("token" in one.option for one in (*report.launch.said, *report.launch.unpriced))
    engine = read(tmp_path, {"args.json": {**SWIFT, "deepspeed": ZERO}})
    assert engine.name == "dp8.z3.mbs1.gbs128.rc-full.off-og"


def test_settings_of_shards_that_a_run_of_ms_swift_leaves_are_read(tmp_path: Path) -> None:
    config = {"fsdp_version": 2, "reshard_after_forward": False, "activation_checkpointing": True}
    said = {**SWIFT, "fsdp": "full_shard auto_wrap", "fsdp_config": config, "gradient_checkpointing": False}
    assert read(tmp_path, {"args.json": said}).name == "dp8.fsdp-keep.mbs1.gbs128.rc-full"


def test_swift_takes_its_options_from_a_file_and_its_engine_from_another(tmp_path: Path) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in SWIFT.items() if key not in ("deepspeed", "hub_token"))
    command = "NPROC_PER_NODE=8 swift sft sft.yaml --deepspeed z3.json\n"
    found = read(tmp_path, {"run.sh": command, "sft.yaml": text.replace("llamapro", "swanlab"), "z3.json": ZERO})
    assert (found.name, found.violations) == ("dp8.z3.mbs1.gbs128.rc-full.off-og", ())
    (missing,) = read(tmp_path, {"run.sh": command.replace("z3", "z4"), "sft.yaml": text}).violations[:1]
    assert missing.what == "z4.json is not here"


def test_options_of_several_passes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task_type is dpo"):
        read(tmp_path, {"args.json": {**OPTIONS, "train_file": "x", "task_type": "dpo"}})
