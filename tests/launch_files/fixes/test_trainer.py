"""A trainer's own file with another plan in it: the fewest keys, everything else as it was, or why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.fields.job import JobFields
from meshwright.launch_files.fixes.base import ScriptFix
from meshwright.launch_files.fixes.trainer import says, trainer_fix
from meshwright.launch_files.format import format_of
from meshwright.launch_files.script import script_question
from meshwright.launch_files.source import Outside
from meshwright.specs.row_text import parse_row
from tests.targets.trainers import test_trainers as files

VOCABULARY = {"padded_vocab_size": "50432"}
XTUNER = {"deepspeed": "deepspeed_zero2"}


def fixed(folder: Path, name: str, text: str, plan: str, settings: dict[str, str] | None = None) -> ScriptFix:
    """A file with a plan of 8 devices in it."""
    path = folder / name
    path.write_text(text)
    outside = Outside(settings=settings or {})
    _, violations, launch, source = script_question(path, format_of(path), JobFields(gpus="8xH100"), outside)
    assert not violations
    editable = source.editable
    assert editable is not None
    row = parse_row(plan, devices=8, global_batch=64, schedules=("1f1b", "gpipe"))
    made = trainer_fix(editable, launch, row)
    assert says(editable, launch, row) == (not made.why_not)
    return made


@pytest.mark.parametrize(
    ("name", "text", "plan", "settings", "lines"),
    [
        (
            "tune.yaml",
            files.TUNE,
            "dp8.fsdp-keep.mbs4.gbs64",
            None,
            ("+batch_size: 4", "+gradient_accumulation_steps: 2", "+fsdp_reshard_after_forward: false"),
        ),
        (
            "tune.yaml",
            files.TUNE + "context_parallel_dim: 1\n",
            "cp2-ag.dp4.fsdp.mbs1.gbs16.rc-full",
            None,
            ("+context_parallel_dim: 2",),
        ),
        ("nano.yaml", files.NANOTRON, "pp4.dp2.z1.mbs1.gbs32", None, ("+  pp: 4", "+  tp: 1")),
        ("nano.yaml", files.NANOTRON, "dp8.mbs1.gbs64.rc-full", None, ("+  recompute_layer: true", "+  zero_stage: 0")),
        (
            "neox.yml",
            files.NEOX,
            "dp8.z2.mbs2.gbs32",
            VOCABULARY,
            ('+  "pipe-parallel-size": 1,', '+  "checkpoint-activations": false,'),
        ),
        (
            "foundry.yaml",
            files.FOUNDRY.replace("size: auto", "size: 4"),
            "dp8.fsdp.mbs2.gbs1024",
            None,
            ("+  activation_checkpointing: false", "+device_train_microbatch_size: 2"),
        ),
        (
            "lev.yaml",
            files.LEVANTER,
            "dp8.fsdp.mbs4.gbs64",
            {"vocab_size": "50304"},
            ("+  train_batch_size: 64", "+  per_device_parallelism: 4", "+  gradient_checkpointing: false"),
        ),
        (
            "xt.py",
            files.XTUNER,
            "cp2-a2a.dp4.z2.mbs2.gbs32.rc-full",
            XTUNER,
            ("+batch_size = 2  # per device", "+accumulative_counts = 2"),
        ),
        ("xt.py", files.XTUNER, "dp8.z2.mbs1.gbs32.rc-full", XTUNER, ("+sequence_parallel_size = 1",)),
    ],
)
def test_a_plan_is_written_into_the_users_file(
    tmp_path: Path, name: str, text: str, plan: str, settings: dict[str, str] | None, lines: tuple[str, ...]
) -> None:
    made = fixed(tmp_path, name, text, plan, settings)
    assert not made.why_not
    assert set(lines) <= set(made.diff.splitlines())
    assert len(made.text.splitlines()) >= len(text.splitlines())
    (tmp_path / "again").mkdir()
    again = fixed(tmp_path / "again", name, made.text, plan, settings)
    assert not again.changes


@pytest.mark.parametrize(
    ("name", "text", "plan", "why"),
    [
        ("nano.yaml", files.NANOTRON, "dp8.z2.mbs1.gbs32", "says z2"),
        ("tune.yaml", files.TUNE, "cp2-ag.dp4.fsdp.mbs1.gbs16.rc-full", "says cp2-ag"),
        ("tune.yaml", files.TUNE, "pp2.dp4.fsdp.mbs1.gbs32", "says pp2"),
        ("tune.yaml", files.TUNE, "dp8.mbs1.gbs32", "has fsdp whatever"),
        ("lit.yaml", files.LIT.replace("devices: 4", "devices: 8"), "dp8.fsdp.mbs1.gbs64", "has rc-full whatever"),
        ("run.sh", files.RLHF, "dp8.z2.mbs1.gbs64", "words of a command of OpenRLHF"),
    ],
)
def test_what_a_trainer_cannot_say_is_named(tmp_path: Path, name: str, text: str, plan: str, why: str) -> None:
    made = fixed(tmp_path, name, text, plan)
    assert why in made.why_not
    assert not made.diff


def test_check_offers_a_better_plan_that_the_file_can_say(tmp_path: Path) -> None:
    """Of those that Megatron-LM runs, the best has sharded gradients, which nanotron has not."""
    (tmp_path / "nano.yaml").write_text(files.NANOTRON)
    report = check(tmp_path / "nano.yaml", gpus="8xH100", fix=True, output=tmp_path / "better.yaml")
    assert report.better is not None
    assert report.fix is not None
    assert report.fix.diff
    again = check(tmp_path / "better.yaml", gpus="8xH100", search=False)
    assert again.name == report.better.name


def test_what_stands_over_a_file_stands_over_the_edited_one(tmp_path: Path) -> None:
    """Without the setting, which engine runs would be asked for, and no plan could be said."""
    (tmp_path / "xt.py").write_text(files.XTUNER.replace("batch_size = 1 ", "batch_size = 4 "))
    report = check(tmp_path / "xt.py", gpus="8xH100", settings="deepspeed=deepspeed_zero3")
    assert report.better is not None
    assert report.fix is not None
    assert not report.fix.why_not
    assert "_size = " in report.fix.diff


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("lev.yaml", files.LEVANTER, "vocab_size=50304"),
        ("neox.yml", files.NEOX, "padded_vocab_size=50432"),
    ],
)
def test_a_trainer_has_models_that_the_target_like_it_has_not(
    tmp_path: Path, name: str, text: str, settings: str
) -> None:
    """MaxText names its models, and Megatron-LM has no layers whose attention and MLP run side by side."""
    (tmp_path / name).write_text(text)
    report = check(tmp_path / name, gpus="8xH100", settings=settings)
    assert not [warning for warning in report.warnings if "no other plan was searched" in warning]
    assert report.better is not None
    assert report.fix is not None
    assert report.fix.diff
