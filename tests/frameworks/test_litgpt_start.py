"""Configurations of LitGPT edited to say a plan, started by its own programs without weights."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from meshwright.formats.launch_file import LaunchFile
from tests.frameworks.starts import edited, found_by, read

for needed in ("litgpt", "lightning", "jsonargparse"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

MODEL = "pythia-14m"
STARTS = {
    "pretrain": f"model_name: {MODEL}\n",
    "finetune_full": f"checkpoint_dir: checkpoints/EleutherAI/{MODEL}\n",
    "finetune_lora": f"checkpoint_dir: checkpoints/EleutherAI/{MODEL}\nlora_r: 8\nlora_key: true\n",
}
TRAIN = {
    "pretrain": "  max_tokens: 3000000000\n  max_norm: 1.0\n  max_seq_length: 32\n",
    "finetune_full": "  epochs: 1\n  max_seq_length: 32\n",
    "finetune_lora": "  epochs: 1\n  max_seq_length: 32\n",
}
SAID = (
    ("", "fsdp"),
    ("precision: bf16-true\n", "fsdp.mbs2"),
    ("precision: bf16-mixed\noptimizer: SGD\n", "fsdp.mbs4"),
    ("precision: 32-true\n", "fsdp.mbs2"),
)
"""What files say besides, and plans that are edited into them; all are recomputed, but in a pretraining."""
DEVICES = 8


def text(program: str, more: str = "", *, train: str = "", devices: str = "devices: 8\nnum_nodes: 1\n") -> str:
    """A file of a program."""
    batch = train or "  global_batch_size: 16\n  micro_batch_size: 1\n"
    return f"{STARTS[program]}{more}{devices}train:\n{batch}{TRAIN[program]}"


def without(file: Path, program: str, more: str, line: str) -> str:
    """Why the file of a program does not say a plan, nothing where it does now."""
    again = "" if program == "pretrain" else ".rc-full"
    return edited(file, text(program, more), line + again, devices=DEVICES, global_batch=32)[1]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, LaunchFile, dict[str, Any]]]:
    """Every file as it is read, with what the program holds."""
    within = tmp_path_factory.mktemp("runs")
    asked: list[tuple[str, int, Path]] = []

    def file(program: str, devices: int = DEVICES) -> Path:
        folder = within / str(len(asked))
        folder.mkdir()
        asked.append((program, devices, folder))
        return folder / "litgpt.yaml"

    for program, (more, line) in product(STARTS, SAID):
        assert not without(file(program), program, more, line)
    for program in STARTS:
        file(program).write_text(text(program, train="  log_interval: 1\n"))  # its own batch
        file(program, 1).write_text(text(program, devices="devices: 1\n", train="  global_batch_size: 8\n"))
        file(program, 16).write_text(text(program, devices="devices: 8\nnum_nodes: 2\n"))
    found = found_by("litgpt_start.py", [f"{program}:{folder}:{devices}" for program, devices, folder in asked])
    reads = [(program, read(folder / "litgpt.yaml", devices)) for program, devices, folder in asked]
    return [(*one, held) for one, held in zip(reads, found, strict=True)]


def test_a_program_works_through_a_step(started: list[tuple[str, LaunchFile, dict[str, Any]]]) -> None:
    for program, launch, held in started:
        assert not launch.problems, (program, launch.problems)
        assert "refused" not in held, (program, launch.row, held)


def test_a_program_holds_what_the_plan_says(started: list[tuple[str, LaunchFile, dict[str, Any]]]) -> None:
    for program, launch, held in started:
        row = launch.row
        assert row is not None
        name = (program, row.format())
        assert held["world"] == row.devices == row.dp, name
        assert held["kind"] == ("alone" if row.dp == 1 else "fsdp2" if program == "finetune_lora" else "fsdp1"), name
        if row.dp > 1:
            assert held["shards"] == [row.shard_group or row.dp], name
            assert (held["reshards"], held["offloads"]) == ([True], [False]), name
        assert held["recomputes"] == (held["layers"] if row.recompute == "full" else 0), name
        assert [one["sequences"] for one in held["micro_batches"]] == [row.mbs] * row.micro_batches, name


def test_a_program_keeps_the_number_formats_that_are_read(
    started: list[tuple[str, LaunchFile, dict[str, Any]]],
) -> None:
    wide = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}
    for program, launch, held in started:
        precision, row = launch.workload["precision"], launch.row
        assert row is not None
        name = (program, row.format(), precision.name)
        assert held["kept_in"] == [wide[precision.master or precision.weights]], name
        assert held["gradients_in"] == [wide[precision.gradients]], name
        assert held["optimizer"].lower() == launch.workload["optimizer"], name
        if program == "finetune_lora":
            assert held["frozen_in"] == [wide[launch.workload["lora"].get("base") or precision.weights]], name
        if row.dp > 1:
            as_kept = held["computes_in"] == held["reduced_in"] == ["None"]  # FSDP2 without a policy
            assert as_kept == (program == "finetune_lora"), name
            assert (held["gradients_in"] if as_kept else held["reduced_in"]) == [wide[precision.reduce]], name
            assert as_kept or held["computes_in"] == [wide[precision.weights]], name


def test_gradients_are_whole_between_micro_batches(started: list[tuple[str, LaunchFile, dict[str, Any]]]) -> None:
    for program, launch, held in started:
        first, last = held["micro_batches"][0], held["micro_batches"][-1]
        several = launch.row is not None and launch.row.dp > 1 and launch.row.micro_batches > 1
        assert several == any("stay whole" in note for note in launch.notes), program
        if several and program != "finetune_lora":
            assert first["gradient_bytes"] >= 4 * last["gradient_bytes"], (program, held)


@pytest.mark.parametrize("line", ["hsdp4", "fsdp-keep", "tp2.fsdp", "z3", "fsdp.rc-sel", "fsdp.off-wog", "cp2.fsdp"])
def test_what_its_programs_do_not_run_is_not_written(line: str, tmp_path: Path) -> None:
    assert without(tmp_path / "litgpt.yaml", "pretrain", "", line)
