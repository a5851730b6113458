"""Configurations of users, checked: the diff of their own file holds the better plan and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.targets import TARGETS
from tests.formats.megatron.test_records import NEMO
from tests.targets.cases import job
from tests.targets.test_round_trip import written

PLANS = {
    "deepspeed": "tp2.nosp.dp8.z1.mbs1.rc-full",
    "accelerate": "dp16.fsdp.mbs1.rc-full",
    "automodel": "tp4.dp4.fsdp.mbs1.rc-full",
    "torchtitan": "tp4.dp4.fsdp.mbs1.rc-full",
    "bridge": "tp4.dp4.z1.mbs1.rc-full",
    "maxtext": "tp4.dp4.fsdp.mbs1.rc-full",
    "alpa": "tp4.nosp.dp4.z2.mbs1.rc-full",
    "galvatron": "tp4.dp4.z2.mbs1.rc-full",
}
BRIDGE = """#!/bin/bash
TP=${TP:-4}
torchrun --nproc_per_node=8 run_recipe.py --recipe llama31_8b_pretrain_config \\
  model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=1 \\
  model.context_parallel_size=1 model.sequence_parallel=true \\
  train.global_batch_size=$((16 * 4)) train.micro_batch_size=1 \\
  model.seq_length=4096 mixed_precision=bf16_mixed
"""


def model_of(target: str) -> str:
    return "llama-2-7b" if target == "galvatron" else "llama-3-8b" if target == "maxtext" else "llama-3.1-8b"


@pytest.mark.parametrize(("target", "line"), PLANS.items())
def test_a_configuration_gets_the_better_plan(target: str, line: str, tmp_path: Path) -> None:
    for name, text in written(target, job(line, model_of(target))).items():
        (tmp_path / name).write_text(text)
    name = next(one.name for one in tmp_path.iterdir() if is_of(target, one))
    better = tmp_path / "better" / name
    asked: dict[str, Any] = {"cluster": "16xH100", "seq_len": 4096, "source_format": target}
    better.parent.mkdir()
    report = mw.check(model_of(target), source=tmp_path / name, fix=True, output=better, **asked)
    assert report.ok
    assert report.better is not None
    assert report.fix is not None
    assert report.fix.diff.startswith("--- a/"), report.fix.why_not
    for beside in tmp_path.glob("*.json"):
        if not (better.parent / beside.name).exists():
            (better.parent / beside.name).write_text(beside.read_text())
    again = mw.check(model_of(target), source=better, search=False, **asked)
    assert again.name == report.better.name


BROKEN = {
    "megatron": ("tp8.dp2.mbs1.rc-full", "--tensor-model-parallel-size 8", "--tensor-model-parallel-size 6"),
    "bridge": ("tp4.dp4.z1.mbs1.rc-full", "tensor_model_parallel_size=4", "tensor_model_parallel_size=3"),
    "automodel": ("tp4.dp4.fsdp.mbs1.rc-full", "global_batch_size: 64", "global_batch_size: 63"),
    "torchtitan": ("tp4.dp4.fsdp.mbs1.rc-full", "tensor_parallel_degree=4", "tensor_parallel_degree=3"),
    "maxtext": ("tp4.dp4.fsdp.mbs1.rc-full", "ici_tensor_parallelism: 4", "ici_tensor_parallelism: 3"),
    "run": ("tp2.dp8.z1.mbs1.rc-full", "tp2.dp8", "tp2.dp4"),
}


@pytest.mark.parametrize(("target", "broken"), BROKEN.items())
def test_a_file_that_says_no_plan_is_mended_in_place(target: str, broken: tuple[str, str, str], tmp_path: Path) -> None:
    line, old, new = broken
    texts = written(target, job(line, model_of(target)))
    name = next(one for one in texts if TARGETS[target].recognised(one, texts[one]) or one.endswith(".sh"))
    for beside, text in texts.items():
        (tmp_path / beside).write_text(text)
    # Behind the first line, which a script needs where it is.
    mine = texts[name].replace("\n", "\n# mine\n", 1) if not name.endswith(".txt") else texts[name]
    assert old in mine
    (tmp_path / name).write_text(mine.replace(old, new))
    better = tmp_path / "better" / name
    better.parent.mkdir()
    asked: dict[str, Any] = {"cluster": "16xH100", "seq_len": 4096, "source_format": target}
    report = mw.check(model_of(target), source=tmp_path / name, fix=True, output=better, **asked)
    assert not report.ok
    assert report.fix is not None
    assert report.fix.diff, report.fix.why_not
    kept = [one for one in mine.split("\n") if one in better.read_text().split("\n")]
    assert len(kept) >= len(mine.split("\n")) - len(report.fix.changes) - 1
    assert ("# mine" in better.read_text()) is not name.endswith(".txt")
    again = mw.check(model_of(target), source=better, search=False, **asked)
    assert again.ok
    assert again.name == report.fix.plan


def test_a_plan_that_needs_a_file_less_is_exported_anew(tmp_path: Path) -> None:
    for name, text in written("accelerate", job("tp2.nosp.dp8.fsdp.mbs1.rc-full", "llama-3.1-8b")).items():
        (tmp_path / name).write_text(text)
    report = mw.check("llama-3.1-8b", source=tmp_path / "accelerate.yaml", cluster="16xH100", seq_len=4096)
    assert report.fix is not None
    assert report.fix.diff == ""
    why = "the plan has no distributed_config.json: take its files from `export --to accelerate`"
    assert report.fix.why_not == why


def is_of(target: str, path: Path) -> bool:
    return TARGETS[target].recognised(path.name, path.read_text())


def test_overrides_in_a_script_are_read_and_edited_in_it(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(BRIDGE)
    report = mw.check("llama-3.1-8b", source=script, cluster="16xH100")
    assert report.launch is not None
    said = {one.option: (one.value, one.place) for one in report.launch.said}
    assert said["model.tensor_model_parallel_size"] == ("4", "start.sh:2")
    assert said["train.global_batch_size"] == ("64", "start.sh:6")
    assert report.fix is not None
    assert "+  ddp." in report.fix.diff
    script.write_text(BRIDGE.replace("model.context_parallel_size=1", ""))
    asked = mw.check("llama-3.1-8b", source=script, cluster="16xH100")
    assert asked.exit_code == 2
    assert "the recipe llama31_8b_pretrain_config sets it" in asked.violations[0].why


def test_a_configuration_that_a_script_names_is_told_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": true},\n'
        ' "zero_optimization": {"stage": 3}}\n'
    )
    script = tmp_path / "tune.sh"
    script.write_text("deepspeed --num_gpus 8 train.py --deepspeed ds.json --per_device_train_batch_size 1\n")
    report = mw.check("llama-3.1-8b", source=script, cluster="8xH100", seq_len=4096)
    assert report.name == "dp8.z3.mbs1.gbs8"
    assert report.launch is not None
    assert ("per_device_train_batch_size", "tune.sh:1") in {(one.option, one.place) for one in report.launch.said}


def test_a_module_is_read_by_its_values_and_asks_for_what_it_does_not_hold(tmp_path: Path) -> None:
    module = tmp_path / "plan.py"
    text = written("torchtitan", job("tp4.dp4.fsdp.mbs2.rc-full", "llama-3.1-8b"))["meshwright_plan.py"]
    known = text.replace("tensor_parallel_degree=4", "tensor_parallel_degree=2 * TP").replace(
        "def plan", "TP = 2\n\n\ndef plan"
    )
    module.write_text(known)
    asked: dict[str, Any] = {"cluster": "16xH100", "source": module, "search": False}
    assert mw.check("llama-3.1-8b", **asked).name == "tp4.dp4.fsdp.mbs2.gbs64.rc-full"
    module.write_text(known.replace("TP = 2", "TP = int(input())"))
    report = mw.check("llama-3.1-8b", **asked)
    assert [found.what for found in report.violations] == ["parallelism.tensor_parallel_degree is not known"]


@pytest.mark.parametrize("version", ["0.0.2", "0.1"])
def test_toml_of_earlier_versions_is_edited_under_its_own_names(tmp_path: Path, version: str) -> None:
    """torchtitan 0.1 moved degrees from `[training]` and `[experimental]` to `[parallelism]`, and renamed the batch."""
    old, batch = tmp_path / "train.toml", "batch_size" if version == "0.0.2" else "local_batch_size"
    degrees = "tensor_parallel_degree = 8\n"
    old.write_text(
        f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\n{batch} = 1\n'
        "seq_len = 8192  # tokens\ncompile = true\n"
        + (f"{degrees}[experimental]\n" if version == "0.0.2" else f"[parallelism]\n{degrees}")
        + "[activation_checkpoint]\nmode = 'full'  # or none\n"
    )
    report = mw.check(cluster="8xH100", source=old)
    assert report.name == "tp8.dp1.mbs1.gbs1.rc-full"
    assert report.better is not None
    assert report.fix is not None
    assert not report.fix.why_not
    text = report.fix.text
    assert 'mode = "none"  # or none' in text
    assert f"{batch} = 1\nseq_len = 8192  # tokens" in text
    old.write_text(text)
    again = mw.check(cluster="8xH100", source=old, search=False)
    assert not again.violations
    assert again.name == report.fix.plan


def test_a_batch_smaller_than_its_data_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}')
    report = mw.check("llama-3-8b", cluster="8xH100", source=path, source_format="deepspeed", search=False)
    found = report.to_dict()["violations"]
    assert any("micro-batch 4 x accumulation 1 x data ranks 8" in one["why"] for one in found), found


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("fast-swiglu", "geglu", "model.activation"),
        ("megatron_amp_O2: true", "fsdp: true", "model.fsdp"),
        ("megatron_amp_O2: true", "megatron_amp_O2: false", "model.megatron_amp_O2"),
        ("distributed_fused_adam", "lamb", "model.optim.name"),
        ("megatron_amp_O2: true", "virtual_prompt_style: p-tuning", "model.virtual_prompt_style"),
    ],
)
def test_settings_of_nemo_that_no_option_says_are_refused(tmp_path: Path, old: str, new: str, field: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(NEMO.replace(old, new))
    report = mw.check(source=file, source_format="hydra", cluster="16xH100", search=False, settings="vocab-size=32000")
    assert [one.field for one in report.violations] == [field]


def test_adapters_of_nemo_are_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        NEMO + "  peft: {peft_scheme: lora, lora_tuning: {target_modules: [attention_qkv], adapter_dim: 16}}\n"
    )
    report = mw.check(source=file, source_format="hydra", cluster="16xH100", search=False, settings="vocab-size=32000")
    assert report.inputs is not None
    assert report.inputs.model.tuning is not None


def test_the_batch_of_a_step_goes_where_devices_share_one(tmp_path: Path) -> None:
    """The trainer compares it with what all devices would take, sequence ranks among them."""
    path = tmp_path / "ds.json"
    path.write_text(
        '{\n  "train_batch_size": 64,\n  "train_micro_batch_size_per_gpu": 1,\n  "gradient_accumulation_steps": 8,\n'
        '  "bf16": {"enabled": true},\n  "zero_optimization": {"stage": 3}\n}\n'
    )
    fix = mw.check("llama-3.1-8b", cluster="8xH100", source=path, seq_len=131072).fix
    assert fix is not None
    assert '"sequence_parallel_size": 8' in fix.text
    assert "train_batch_size" not in fix.text
    short = mw.check("llama-3.1-8b", cluster="8xH100", source=path, seq_len=2048).fix
    assert short is not None
    assert '"train_batch_size": 64' in short.text
