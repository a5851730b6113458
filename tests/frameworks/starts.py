"""Runs that frameworks start: exported plans, files with a plan edited in, and what their programs print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.fixes.trainer import trainer_fix
from meshwright.launch_files.source import NOTHING_OUTSIDE, LaunchSource
from meshwright.schedules import SCHEDULES
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from tests.targets.test_round_trip import written


def exported(jobs: Sequence[tuple[str, Job]], within: Path) -> Iterator[tuple[Path, str, Job]]:
    """The folders of exported plans.

    Args:
        jobs: each with the target that it is exported to.
        within: the folder that theirs are made in.
    """
    for number, (target, job) in enumerate(jobs):
        run = within / str(number)
        run.mkdir()
        for name, text in written(target, job).items():
            (run / name).write_text(text)
        yield run, target, job


def read(file: Path, devices: int | None = None) -> LaunchFile:
    """What a trainer's file says, which is named after the target.

    Args:
        file: `litgpt.yaml`.
        devices: of the job, where the file does not say them.
    """
    return _source(file, devices).read()


def edited(
    file: Path, text: str, line: str, *, devices: int, global_batch: int, stated: bool = True
) -> tuple[PlanRow, str]:
    """A plan, and why a trainer's file does not say it; nothing where it does now.

    Args:
        file: as `read` takes it, which is made.
        text: that it holds before.
        line: the plan's.
        devices, global_batch: of the job.
        stated: whether the devices are said beside the file.
    """
    file.write_text(text)
    row = parse_row(line, devices=devices, global_batch=global_batch, schedules=tuple(SCHEDULES))
    source = _source(file, devices if stated else None)
    fix = trainer_fix(source, source.read(), row)
    if not fix.why_not:
        file.write_text(fix.text)
    return row, fix.why_not


def _source(file: Path, devices: int | None) -> LaunchSource:
    return LaunchSource.of(file, file.stem, devices, NOTHING_OUTSIDE)


def small(model: ModelSpec, within: Path) -> Path:
    """A config.json of a model of as many layers and heads as another, that a process builds quickly."""
    heads = getattr(next(model.layers()).attention, "heads", 0)
    return (gpt if model.learned_positions else llama)(within, model.num_layers, heads)


def llama(within: Path, layers: int, heads: int, **more: Any) -> Path:
    """A config.json of a small Llama.

    Args:
        within: the folder that its folder is made in.
        layers, heads: of it; heads are 8 wide.
        more: keys beside the others.
    """
    said = {"model_type": "llama", "hidden_size": 8 * heads, "intermediate_size": 24 * heads, "hidden_act": "silu"}
    said |= {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 512}
    said |= {"max_position_embeddings": 8192, "rms_norm_eps": 3e-5, "rope_theta": 10000.0, "attention_bias": False}
    return _config(within / f"llama-{layers}-{heads}", said | {"tie_word_embeddings": False, "mlp_bias": False} | more)


def gpt(within: Path, layers: int, heads: int, positions: int = 4096) -> Path:
    """As `llama`, of a small GPT-2 of so many positions."""
    said = {"model_type": "gpt2", "n_embd": 8 * heads, "n_layer": layers, "n_head": heads, "vocab_size": 500}
    said |= {"n_positions": positions, "activation_function": "gelu", "layer_norm_epsilon": 3e-5}
    return _config(within / f"gpt-{layers}-{heads}", said)


def _config(folder: Path, said: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(said))
    return folder / "config.json"


def found_by(program: str, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Of each run, what it holds or how it was refused.

    Args:
        program: that starts them, `bridge_start.py`; in a process of its own, as stand-ins do not go away again.
        runs: what each is started with, with colons between.
    """
    words = [sys.executable, Path(__file__).with_name(program), *runs]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
