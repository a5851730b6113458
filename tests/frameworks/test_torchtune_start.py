"""Configurations of torchtune edited to say a plan, started by its own recipes without weights."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from meshwright.specs.row import PlanRow
from tests.frameworks.starts import edited, found_by

if importlib.util.find_spec("torchtune") is None:
    pytest.skip("torchtune is not installed", allow_module_level=True)

RECIPES = {"full": "full_finetune_distributed", "lora": "lora_finetune_distributed"}
FILES = (("llama3_1/8B", "full"), ("llama3_1/8B", "lora"), ("llama3_1/70B", "full"), ("qwen2_5/7B", "full"))
LINES = (
    *("fsdp", "fsdp.mbs2", "fsdp-keep.mbs4", "fsdp.rc-full", "fsdp.off-wog", "fsdp-keep.rc-full.off-wog"),
    *("fsdp.rc-full.off-a", "tp2.fsdp", "tp8.fsdp.rc-full.mbs2", "tp4.fsdp-keep.off-wog"),
)
UNSAID = (
    *(("full", line) for line in ("hsdp4", "cp2.fsdp", "tp2.hsdp2", "z0.mbs2", "z3", "tp2.nosp.fsdp", "fsdp.off-a")),
    *(("lora", line) for line in ("hsdp4", "cp2-ag.fsdp", "tp2.fsdp", "fsdp.off-a")),
)
"""Plans that the recipes of these files stop on, or run as others."""
DEVICES = 16


def shipped(model: str, kind: str) -> str:
    """A configuration that comes with torchtune."""
    spec = importlib.util.find_spec("torchtune")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parents[1] / "recipes" / "configs" / model / f"{kind}.yaml").read_text()


def planned(model: str, kind: str, line: str, folder: Path) -> tuple[PlanRow, str]:
    """A plan, and why the file in this folder does not say it; nothing where it does now."""
    folder.mkdir()
    name, _, size = model.partition("/")
    text = shipped(name, f"{size}_{kind}")
    return edited(folder / "torchtune.yaml", text, line, devices=DEVICES, global_batch=64)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, PlanRow, dict[str, Any]]]:
    """Every plan that a file says with what the recipe holds."""
    within = tmp_path_factory.mktemp("runs")
    made, words = [], []
    for number, ((model, kind), line) in enumerate(product(FILES, LINES)):
        if kind == "lora" and "off-a" in line:
            continue  # that recipe asks for a GPU before it offloads activations
        row, why = planned(model, kind, line, within / str(number))
        if not why:
            made.append((kind, row))
            words.append(f"{RECIPES[kind]}:{within / str(number)}:{DEVICES}")
    found = found_by("torchtune_start.py", words)
    return [(*one, held) for one, held in zip(made, found, strict=True)]


def test_a_recipe_starts(started: list[tuple[str, PlanRow, dict[str, Any]]]) -> None:
    assert len(started) >= 20
    for kind, row, held in started:
        assert "refused" not in held, (kind, row.format(), held)


def test_a_recipe_holds_what_the_plan_says(started: list[tuple[str, PlanRow, dict[str, Any]]]) -> None:
    for kind, row, held in started:
        name = (kind, row.format())
        assert held["tp"] == row.tp, name
        assert held["dealt"] == row.dp, name
        assert held["shards"] == [row.shard_group or row.dp], name
        assert held["copies"] == [row.dp // (row.shard_group or row.dp)], name
        assert held["held"] == pytest.approx(held["parameters"] / (row.tp * held["shards"][0]), rel=0.02), name
        assert held["reshards"] == [row.sharding != "fsdp-keep"], name
        assert held["offloads"] == ["CPUOffloadPolicy" if "w" in row.offload else "OffloadPolicy"], name
        assert held["offloads_activations"] == ("a" in row.offload), name
        assert held["recomputes"] == (held["layers"] if row.recompute == "full" else 0), name
        assert (held["micro_batch"], held["accumulates"]) == (row.mbs, row.micro_batches), name


@pytest.mark.parametrize(("kind", "line"), UNSAID)
def test_what_a_recipe_would_not_run_is_not_written(kind: str, line: str, tmp_path: Path) -> None:
    assert planned("llama3_1/8B", kind, line, tmp_path / "run")[1]
