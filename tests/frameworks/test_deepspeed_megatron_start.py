"""Scripts written for Megatron-DeepSpeed, whose engines are built by its own program where a checkout lies.

It is no package, so that these tests are skipped but where MEGATRON_DEEPSPEED is a checkout of commit 4efb479d.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshwright.library.models import resolve
from meshwright.specs.job import Job
from meshwright.specs.row_of import homogeneous
from meshwright.specs.strategy import LayerStrategy
from meshwright.targets import TARGETS
from meshwright.targets.megatron_deepspeed import COMMIT
from tests.frameworks.starts import exported, found_by, gpt, small
from tests.targets.cases import job
from tests.targets.drawn import drawn

CHECKOUT = os.environ.get("MEGATRON_DEEPSPEED", "")
if not CHECKOUT:
    pytest.skip("MEGATRON_DEEPSPEED is no checkout", allow_module_level=True)

TARGET = TARGETS["megatron-deepspeed"]
LEAST = 40
PIPELINES = ("tp2.pp2.dp4.z1.nodpov.rc-full", "pp4.dp4.z0.nodpov.mbs2", "pp4.dp4.z1.nodpov.zb-h1", "tp4.pp4.dp1.z0")
"""Of a model without rotary positions, which its pipeline stops at."""


def runnable() -> Iterator[Job]:
    """Drawn plans that it runs."""
    random = Random("plans that Megatron-DeepSpeed builds")
    while True:
        one = drawn("megatron-deepspeed", random)
        if one is not None and not TARGET.problems(one):
            yield one


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Plans with what one rank of each holds."""
    within, models = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("models")
    random = Random("ranks")
    smaller = (replace(one, model=resolve(str(small(one.model, models)))) for one in runnable())
    jobs = list(islice((one for one in smaller if not TARGET.problems(one)), LEAST))
    jobs += [job(line, model=str(gpt(models, 8, 8))) for line in PIPELINES]
    runs = list(exported([("megatron-deepspeed", one) for one in jobs], within))
    words = [f"{folder}:{one.plan.devices}:{random.randrange(one.plan.devices)}" for folder, _, one in runs]
    return list(zip(jobs, found_by("deepspeed_megatron_start.py", [CHECKOUT, *words]), strict=True))


def strategy_of(one: Job) -> tuple[LayerStrategy, int]:
    """The strategy of all layers, and the ranks of the pipeline."""
    found, _ = homogeneous(one.plan)
    assert found is not None
    return found.strategy, found.pp


def test_its_program_builds_every_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    refused = [(one.model.name, one.name, held) for one, held in started if "refused" in held]
    assert not refused


def test_its_program_divides_the_model_as_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        strategy, pp = strategy_of(one)
        assert (held["tp"], held["pp"], held["dp"]) == (strategy.tp, pp, strategy.dp), one.name
        assert held["ulysses"] == strategy.cp, one.name
        tensor = strategy.tensor
        assert held["scatters"] == (strategy.tp > 1 and bool(getattr(tensor, "sequence_parallel", False))), one.name
        assert len(held["layers"]) == one.model.num_layers // pp, one.name
        assert held["recomputes"] == (max(1, strategy.recompute.group) if strategy.recompute.kind != "none" else 0)
        if not one.model.learned_positions:
            kind = next(one.model.layers())
            norms = kind.norm_parameters(one.model.hidden)
            parts = kind.parameters(one.model.hidden) - norms
            assert set(held["layers"]) == {parts // strategy.tp + norms}, one.name


def test_deepspeed_shards_and_counts_as_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        strategy, pp = strategy_of(one)
        pipeline = one.plan.pipelines[0]
        batch = (one.plan.global_batch, pipeline.micro_batch, pipeline.num_micro_batches)
        assert (held["batch"], held["micro_batch"], held["micro_batches"]) == batch, one.name
        assert held["program"] == [*batch[:2], strategy.data.zero], one.name
        assert held["zero"] == strategy.data.zero, one.name
        assert held["engine"] == ("PipelineEngine" if pp > 1 else "DeepSpeedEngine"), one.name
        assert held["offloads"] == (strategy.offload.optimizer > 0), one.name
        if strategy.data.zero:
            assert held["overlaps"] == strategy.data.overlap, one.name
        assert held["zero_bubble"] == (pipeline.schedule.name == "zb-h1" and pp > 1), one.name


def test_its_program_builds_the_model_of_the_config(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        kind, model = next(one.model.layers()), one.model
        heads = getattr(kind.attention, "heads", 0)
        assert held["sizes"] == [model.num_layers, model.hidden, heads, kind.mlp.tensor_width], one.name
        assert held["key_value_heads"] == getattr(kind.attention, "kv_heads", 0), one.name
        assert (held["seq_len"], held["epsilon"]) == (one.workload.seq_len, 3e-5), one.name
        assert held["format"] == one.workload.precision.activations, one.name
        assert held["fused"] == (one.workload.attention_kernel == "flash"), one.name
        assert held["tied"] == model.tied_embeddings, one.name
        assert held["rope"] == ([] if model.learned_positions else [10000]), one.name


def test_a_pipeline_stops_at_rotary_positions(tmp_path: Path) -> None:
    """What the rule refuses, on the program that it is of."""
    one = job("pp2.dp8.z1.nodpov", model="llama-2-7b")
    assert "pp" in [problem.field for problem in TARGET.problems(one)]
    pipelined = job("pp2.dp8.z1.nodpov", model=str(gpt(tmp_path, 8, 8)))
    ((folder, _, _),) = exported([("megatron-deepspeed", pipelined)], tmp_path)
    text = (folder / "train.sh").read_text()
    (folder / "train.sh").write_text(text.replace("MODEL=(", "MODEL=(\n  --use-rotary-position-embeddings"))
    (held,) = found_by("deepspeed_megatron_start.py", [CHECKOUT, f"{folder}:16:0"])
    assert "'list' object has no attribute 'to'" in held["refused"]


def test_the_commit_is_the_one_that_rules_are_of() -> None:
    said = subprocess.run(["git", "-C", CHECKOUT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(COMMIT)
