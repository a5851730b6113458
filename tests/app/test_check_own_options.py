"""Options that a program calls otherwise than the trainer inside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport

LAUNCHER = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"


def read(tmp_path: Path, options: str, **settings: object) -> CheckReport:
    """Checks a program of one's own under Accelerate."""
    (tmp_path / "engine.yaml").write_text(LAUNCHER)
    script = tmp_path / "run.sh"
    script.write_text(f"accelerate launch --config_file engine.yaml train.py --max_length 1024 {options}\n")
    return check(script, cluster="8xH100", **settings)


@pytest.mark.parametrize("option", ["--model_name", "--model-path", "--base_model_path", "--model"])
def test_a_model_is_taken_by_the_name_that_a_program_has_for_it(tmp_path: Path, option: str) -> None:
    report = read(tmp_path, f"{option} /data/Qwen3-0.6B --batch_size_per_gpu 2 --grad_accum_steps 3", search=False)
    assert not report.violations
    assert report.name == "dp8.mbs2.gbs48"
    assert report.inputs is not None
    assert report.inputs.model.name == "qwen3-0.6b"


def test_the_trainers_own_option_names_the_model_before_any_other(tmp_path: Path) -> None:
    names = "--model_name llama-2-7b --model_name_or_path Qwen/Qwen3-0.6B"
    report = read(tmp_path, f"{names} --per_device_train_batch_size 2", search=False)
    assert report.inputs is not None
    assert report.inputs.model.name == "qwen3-0.6b"
    assert any("--model_name" in note for note in report.warnings)


def test_two_names_for_one_model_are_one_and_two_models_are_none(tmp_path: Path) -> None:
    batch = "--per_device_train_batch_size 2"
    alike = read(tmp_path, f"--model Qwen/Qwen3-0.6B --model_path Qwen/Qwen3-0.6B {batch}", search=False)
    assert not alike.violations
    other = read(tmp_path, f"--model qwen --model_path Qwen/Qwen3-0.6B {batch}", search=False)
    assert [one.what for one in other.violations] == ["no model is given"]


def test_a_batch_of_the_program_itself_is_asked_for_until_both_factors_are_known(tmp_path: Path) -> None:
    options = "--model_name Qwen/Qwen3-0.6B --batch_size 4"
    asked = read(tmp_path, options, search=False)
    assert [one.what for one in asked.violations] == ["what --batch_size 4 counts is not known"]
    stated = ("per_device_train_batch_size=4", "gradient_accumulation_steps=1")
    assert all(f"--set {one}" in asked.violations[0].fix for one in stated)
    half = read(tmp_path, options, search=False, settings=stated[:1])
    assert "--set gradient_accumulation_steps=1" in half.violations[0].fix
    answered = read(tmp_path, options, search=False, settings=stated)
    assert not answered.violations
    assert answered.name == "dp8.mbs4.gbs32"


def test_a_better_plan_is_written_in_the_words_of_the_program(tmp_path: Path) -> None:
    report = read(tmp_path, "--model_name Qwen/Qwen3-0.6B --batch_size_per_gpu 1 --accumulation_steps 16")
    assert report.fix is not None
    assert "--batch_size_per_gpu 16" in report.fix.text
    assert "--accumulation_steps 1" in report.fix.text
    assert "per_device_train_batch_size" not in report.fix.text


@pytest.mark.parametrize(
    ("path", "model"),
    [("/m/internlm2-base-7b", "internlm2-7b"), ("/m/internlm2-chat-7b-sft", "internlm2-7b"), ("x_mcore", None)],
)
def test_words_of_a_name_that_change_no_shape_are_read_past(tmp_path: Path, path: str, model: str | None) -> None:
    report = read(tmp_path, f"--model_path {path} --per_device_train_batch_size 1", search=False)
    assert (report.inputs.model.name if report.inputs is not None else None) == model


def test_a_path_that_is_not_here_is_answered_with_models_of_about_its_name(tmp_path: Path) -> None:
    report = read(tmp_path, "--model_path /weights/internlm2_7bb --per_device_train_batch_size 1", search=False)
    assert "did you mean internlm2-7b" in report.violations[0].why


def test_when_states_are_saved_is_no_recompute() -> None:
    from meshwright.launch_files.own_options import changes_plan, leaves_alone

    assert not changes_plan("checkpointing_steps")
    assert changes_plan("mem_cap")
    assert not leaves_alone("mem_cap", "0")


def test_a_program_that_says_no_batch_of_its_own_is_asked_for_it(tmp_path: Path) -> None:
    report = read(tmp_path, "--model Qwen/Qwen3-0.6B --grad_accum 8", search=False)
    assert [(one.code, one.field) for one in report.violations] == [("ASK", "per_device_train_batch_size")]
    trainers = read(tmp_path, "--model Qwen/Qwen3-0.6B --gradient_accumulation_steps 8", search=False)
    assert trainers.name == "dp8.mbs8.gbs512"
