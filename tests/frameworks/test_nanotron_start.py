"""Configurations of nanotron edited to say a plan, whose trainer is built by nanotron itself where a checkout lies.

Packages that are published stop as they are imported, so that these tests are skipped but where NANOTRON is the `src`
folder of a checkout of commit 2411b022.
"""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.formats.launch_file import LaunchFile
from tests.frameworks.starts import edited, found_by, read

CHECKOUT = os.environ.get("NANOTRON", "")
if not CHECKOUT:
    pytest.skip("NANOTRON is no checkout", allow_module_level=True)

DEVICES = 8
KINDS = {"llama": {"is_llama_config": True}, "qwen2": {"is_qwen2_config": True}}
GRID = (
    *product(("llama",), ("z0", "z1.mbs2", "tp4.pp2.z0.rc-full", "pp4.z0", "pp2.z1.gpipe")),
    *product(("qwen2",), ("tp2.z1", "tp2.pp2.z1.rc-full", "pp2.z1.mbs2")),
)
UNSAID = (
    *(
        ("llama", line)
        for line in ("cp2.z0", "fsdp", "z2", "pp2.vpp2", "tp2.rc-sel", "tp2.tpov.z1", "tp2.nosp.z0", "tp8.z0")
    ),
    *(("qwen2", line) for line in ("cp2.z0", "cp2-ag.z1", "pp2.zb-h1.z1")),
)
"""Plans that nanotron stops on, or runs as others."""


def text(kind: str, **more: Any) -> str:
    """A file, as its users have it."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 8}
    model = sizes | {"num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 64} | KINDS[kind]
    factory = {"name": "adamW", "adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.95, "torch_adam_is_fused": False}
    rate = {"learning_rate": 3e-4, "lr_warmup_steps": 2, "lr_warmup_style": "linear", "lr_decay_style": "cosine"}
    said = {
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000},
        "data_stages": [{"name": "one", "start_training_step": 1, "data": {"dataset": None, "seed": 42}}],
        "general": {"project": "debug", "run": "tiny", "seed": 42},
        "logging": {"log_level": "error", "log_level_replica": "error", "iteration_step_info_interval": 1},
        "model": {"dtype": "bfloat16", "init_method": {"std": 0.025}, "model_config": model},
        "optimizer": {
            "accumulate_grad_in_fp32": True,
            "clip_grad": 1.0,
            "weight_decay": 0.01,
            "zero_stage": 0,
            "learning_rate_scheduler": rate | {"lr_decay_steps": 13, "min_decay_lr": 1e-5},
            "optimizer_factory": factory,
        },
        "parallelism": {"dp": 8, "pp": 1, "tp": 1},
        "tokenizer": {"tokenizer_name_or_path": "none"},
        "tokens": {
            "batch_accumulation_per_replica": 1,
            "micro_batch_size": 1,
            "sequence_length": 64,
            "train_steps": 20,
        },
    }
    for path, value in more.items():
        at, _, last = path.rpartition("__")
        said[at][last] = value
    return yaml.safe_dump(said)


def without(file: Path, kind: str, line: str, **more: Any) -> str:
    """Why the file of a model does not say a plan, nothing where it does now."""
    return edited(file, text(kind, **more), line, devices=DEVICES, global_batch=64, stated=False)[1]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, LaunchFile, dict[str, Any]]]:
    """Every file as it is read, with what the trainer of its first rank holds."""
    within = tmp_path_factory.mktemp("runs")
    asked = []
    for number, (kind, line) in enumerate(GRID):
        folder = within / str(number)
        folder.mkdir()
        wide = line != "z0"
        why = without(folder / "nanotron.yaml", kind, line, optimizer__accumulate_grad_in_fp32=wide)
        assert not why, (kind, line, why)
        asked.append((kind, folder))
    found = found_by("nanotron_start.py", [CHECKOUT, *(f"{folder}:{DEVICES}:0" for _, folder in asked)])
    reads = [read(at / "nanotron.yaml") for _, at in asked]
    return [(kind, *one) for (kind, _), *one in zip(asked, reads, found, strict=True)]


def test_its_trainer_is_built(started: list[tuple[str, LaunchFile, dict[str, Any]]]) -> None:
    for kind, launch, held in started:
        assert not launch.problems, (kind, launch.problems)
        assert "refused" not in held, (kind, launch.row, held)


def test_its_trainer_divides_the_model_as_the_plan(started: list[tuple[str, LaunchFile, dict[str, Any]]]) -> None:
    for kind, launch, held in started:
        row = launch.row
        assert row is not None
        name = (kind, row.format())
        assert held["degrees"] == {"tp": row.tp, "pp": row.pp, "dp": row.dp, "cp": 1}, name
        assert held["dealt"] == list(launch.dealt(8) if launch.dealt else (8,)), name
        assert held["scatters"] == (row.sp and row.tp > 1), name
        assert held["beside"] == (row.tp > 1 and row.tp_overlap == "bulk"), name
        assert held["zero"] == (row.sharding == "z1"), name
        assert held["recomputes"] == (held["layers"] if row.recompute == "full" else 0), name
        assert held["engine"].startswith("All" if row.pp == 1 or row.schedule == "gpipe" else "OneForward"), name
        steps = (held["micro_batch"], held["micro_batches"], held["batch"])
        assert steps == (row.mbs, row.micro_batches, row.gbs), name


def test_its_trainer_keeps_the_number_formats_that_are_read(
    started: list[tuple[str, LaunchFile, dict[str, Any]]],
) -> None:
    for kind, launch, held in started:
        precision = launch.workload["precision"]
        name = (kind, precision.name)
        assert held["kept_in"] == ["torch.bfloat16"], name
        assert held["accumulates_wide"] == (precision.gradients == "fp32"), name
        assert held["main_copies"] == (["torch.float32"] if precision.master == "fp32" else []), name
        assert held["optimizer"].lower() == launch.workload["optimizer"], name


@pytest.mark.parametrize(("kind", "line"), UNSAID)
def test_what_it_would_run_otherwise_is_not_written(kind: str, line: str, tmp_path: Path) -> None:
    assert without(tmp_path / "nanotron.yaml", kind, line)


def test_the_commit_is_the_one_that_rules_are_of() -> None:
    said = subprocess.run(["git", "-C", CHECKOUT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("2411b022")
