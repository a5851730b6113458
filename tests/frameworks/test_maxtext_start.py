"""Exported configurations of MaxText, completed, meshed and traced by it as far as a machine without a GPU can."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.targets import TARGETS
from meshwright.targets.maxtext.models import MODELS
from tests.frameworks.starts import exported, found_by
from tests.targets.cases import job
from tests.targets.test_round_trip import some

pytest.importorskip("maxtext.configs.types", exc_type=ImportError)

LINES = (
    ("pp2.fsdp.gpipe", "llama-2-7b", "16xH100"),
    ("pp4.vpp2.fsdp.breadth-first", "llama-2-7b", "16xH100"),
    ("tp2.pp2.hsdp2.gpipe.rc-full", "llama-2-13b", "16xH100"),
    ("cp2.fsdp", "llama-3.1-8b", "16xH100"),
    ("cp2-ag.fsdp", "llama-3.1-8b", "16xH100"),
    ("ep4.fsdp", "deepseek-v2-lite", "16xH100"),
    ("ep4.fsdp.rc-full", "gpt-oss-20b", "16xH100"),
    ("tp8.fsdp", "llama-3.1-70b", "64xH100"),
    ("tp2.fsdp", "llama-3.1-8b", "32xTPU-v5p"),
    ("fsdp.mbs2", "mixtral-8x7b", "16xTPU-v5p"),
    ("cp2-ag.fsdp", "gemma-2-9b", "8xTPU-v5p"),
)
"""Plans beside those of the grid: pipelines, context and expert ranks, slices of TPUs."""
STEPS = len(LINES) + 4
"""Of the first plans a step is traced too, where its kernels are not those of TPUs."""
PADDED = {name: 128 for name in MODELS if name.startswith("gemma-")}
"""Rows of the table that a model of MaxText has more."""


def plans() -> Iterator[Job]:
    """Plans of every kind and number format, a few of the grid, and one of every model that it ships."""
    yield from (job(*line) for line in LINES)
    one = job("fsdp.mbs2", "llama-3.1-8b", "16xB200")
    formats = ("int8", "fp32", "fp8")
    yield from (replace(one, workload=replace(one.workload, precision=PRECISIONS[name])) for name in formats)
    yield replace(one, workload=replace(one.workload, attention_kernel="materialised"))
    yield from list(some("maxtext"))[::12]
    yield from (job("fsdp", model, "8xTPU-v5p" if model.startswith("gemma") else "8xH100") for model in MODELS)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Every plan with what its run holds."""
    folder = tmp_path_factory.mktemp("runs")
    asked = list(plans())
    words = []
    for number, (run, _, one) in enumerate(exported([("maxtext", one) for one in asked], folder)):
        group = one.cluster.groups[0]
        tpus = group.device.name.startswith("TPU")
        slices = 1 if tpus else -(-one.plan.devices // group.devices_per_node)
        step = "step" if number < STEPS and not tpus else ""
        words.append(f"{run}:{one.plan.devices}:{slices}:{step}")
    return list(zip(asked, found_by("maxtext_start.py", words), strict=True))


def test_enough_of_them_start(started: list[tuple[Job, dict[str, Any]]]) -> None:
    assert len(started) >= 40
    for one, held in started:
        assert "refused" not in held, (one.model.name, one.name, held)


def test_a_run_trains_the_model_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        more = PADDED.get(one.model.name, 0) * one.model.hidden
        pairs = 2 if one.model.family == "gemma2" else 1  # a layer with a window and one without count as one
        assert held["layers"] * pairs == one.model.num_layers, one.model.name
        assert held["sequence"] == one.workload.seq_len, one.name
        if held["weights"]:
            assert held["weights"] == {"float32": one.model.parameters + more}, one.model.name
            assert held["moments"] == {"float32": 2 * (one.model.parameters + more)}, one.model.name


def test_a_mesh_has_the_axes_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        strategy, mesh = one.plan.strategies[0], held["mesh"]
        assert mesh.get("tensor", 1) == strategy.tp, one.name
        assert mesh.get("context", 1) == strategy.cp, one.name
        assert mesh.get("expert", 1) == strategy.expert.ep, one.name
        assert mesh.get("stage", 1) == len(one.plan.pipelines[0].workers), one.name
        assert mesh.get("fsdp", 1) * mesh.get("expert", 1) * mesh.get("data", 1) == strategy.dp, one.name
        assert math.prod(mesh.values()) == one.plan.devices, one.name
        if strategy.cp > 1:
            assert held["context"] == {"ag": "all_gather", "p2p": "ring"}[strategy.context[0].kind], one.name


def test_a_device_holds_the_share_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        if len(one.plan.pipelines[0].workers) > 1 or not held["weights"]:
            continue  # tables are on all stages
        strategy = one.plan.strategies[0]
        shards = strategy.tp * (strategy.data.shard * strategy.cp if strategy.data.zero == 3 else 1)
        whole = sum(held["weights"].values())
        assert held["held"] == pytest.approx(whole / shards, rel=0.02), one.name


def test_a_step_runs_the_plans_micro_batches(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        pipeline = one.plan.pipelines[0]
        stages, count = len(pipeline.workers), pipeline.num_micro_batches
        assert held["batch"] == one.plan.global_batch, one.name
        assert held["accumulates"] == (count if stages == 1 else 1), one.name
        if stages > 1:
            chunks = pipeline.workers[0].chunks
            assert held["stages"] == [len(chunks), chunks[0].num_layers, count], one.name


def test_kernels_are_those_of_the_devices(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        tpus = one.cluster.groups[0].device.name.startswith("TPU")
        assert held["hardware"] == ("tpu" if tpus else "gpu"), one.name
        usual = "autoselected" if tpus else "cudnn_flash_te"
        assert held["attention"] == {"flash": usual}.get(one.workload.attention_kernel, "dot_product"), one.name
        assert held["interprets"] == (not tpus and not one.model.is_moe), one.name
        assert held["remat"] == ("full" if one.plan.strategies[0].recompute.kind == "full" else "minimal_with_context")


def test_products_of_a_step_are_in_the_formats_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started[:STEPS]:
        compute = one.workload.precision.compute
        if held["products"]:
            assert {"int8": "i8", "fp32": "f32"}.get(compute, "bf16") in held["products"], (one.name, compute)


@pytest.mark.parametrize(
    ("line", "model", "field"),
    [
        ("cp2-a2a.fsdp", "llama-3.1-8b", "context.kinds"),
        ("fsdp", "gemma-2-9b", "attention_kernel"),
        ("cp2-ag.fsdp", "gpt-oss-20b", "cp"),
        ("fsdp", "mistral-7b-v0.3", "model"),
    ],
)
def test_what_it_would_refuse_at_its_start_is_refused(line: str, model: str, field: str) -> None:
    assert {problem.field for problem in TARGETS["maxtext"].refused(job(line, model))} == {field}
