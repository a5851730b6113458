"""Exported files of Axolotl, read by it and run up to a step of its own trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from meshwright.targets import TARGETS
from tests.frameworks.starts import exported, found_by
from tests.frameworks.test_trainer_start import saved_models
from tests.targets.test_round_trip import some

for needed in ("accelerate", "deepspeed", "peft", "axolotl", "trl"):
    pytest.importorskip(needed)

AS_LOADED = {"dtype": "bf16", "grad_dtype": "bf16", "moment_dtype": "bf16", "main_copy": "none"}
MORE: tuple[dict[str, Any], ...] = (
    *(
        {"plan": plan, **AS_LOADED}
        for plan in (
            "dp16.fsdp",
            "dp16.fsdp.mbs2.rc-full",
            "dp16.fsdp-keep",
            "dp16.hsdp4.off-wog",
            "cp2.dp8.fsdp",
            "cp4.dp4.fsdp-keep.mbs2",
            "cp2.dp8.hsdp4.rc-full",
        )
    ),
    {"plan": "dp16.fsdp.mbs2", **AS_LOADED, "model": "mixtral-8x7b"},
    {"plan": "dp16.fsdp.mbs2", **AS_LOADED, "optimizer": "sgd"},
    {"plan": "dp16.z2", "attention_kernel": "materialised"},
    {"plan": "dp16.fsdp.mbs2", "dtype": "fp32"},
    {"plan": "dp16.z3.mbs2", "dtype": "fp32"},
    {"plan": "dp16.z1.mbs2", "optimizer": "adafactor"},
    {"plan": "dp16.fsdp.mbs2.rc-full", "lora": "r=8"},
    {"plan": "dp16.mbs2", "lora": "r=8,targets=q_proj,v_proj"},
    {"plan": "cp2.dp8.fsdp.mbs2", "lora": "r=16,train=embedding,head"},
)
"""Plans with what the grid has not."""


def asked(plan: str, **fields: Any) -> Job:
    """A plan of a question."""
    given = {"model": "llama-3.1-8b", "gpus": "16xH100", "seq_len": 4096, "global_batch": 64, **fields}
    return plan_question(plan, JobFields(**{"software": "megatron-core", **given})).job


def plans() -> Iterator[Job]:
    """Plans of the grid, and others."""
    yield from list(some("axolotl"))[::3]
    yield from (asked(**one) for one in MORE)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Every plan with what its run holds."""
    folder = tmp_path_factory.mktemp("runs")
    saved_models(folder)
    jobs = list(plans())
    runs = exported([("axolotl", one) for one in jobs], folder)
    words = [f"{run}:{folder / one.model.name}:{one.plan.devices}" for run, _, one in runs]
    return list(zip(jobs, found_by("axolotl_start.py", words), strict=True))


def test_a_run_makes_a_step(started: list[tuple[Job, dict[str, Any]]]) -> None:
    assert len(started) >= 25
    for one, held in started:
        assert "refused" not in held, (one.model.name, one.name, held)


def test_a_run_divides_the_model_as_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        strategy = one.plan.strategies[0]
        data, by_fsdp = strategy.data, strategy.data.family == "fsdp"
        assert (held["sharded"], held["zero"]) == (by_fsdp, 0 if by_fsdp else data.zero), one.name
        assert (held["cp"], held["dealt"]) == (strategy.cp, strategy.dp), one.name
        if by_fsdp:
            assert held["shards"] == [data.shard * strategy.cp], one.name
            assert held["copies"] == [data.replicate], one.name
            assert held["reshards"] == [data.reshard], one.name
            assert held["offloads"] == ["CPUOffloadPolicy" if strategy.offload.weights else "OffloadPolicy"], one.name


def test_a_run_takes_the_batch_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        pipeline = one.plan.pipelines[0]
        assert (held["micro_batch"], held["accumulates"]) == (pipeline.micro_batch, pipeline.num_micro_batches), (
            one.name
        )
        assert held["engine_batch"] in (None, one.plan.global_batch), one.name


def test_a_run_keeps_the_number_formats_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    wide = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}
    for one, held in started:
        precision = one.workload.precision
        assert held["mixed"] == {"fp32": "no"}.get(precision.activations, precision.activations), one.name
        if one.model.lora is not None:
            assert held["frozen_in"] == ["torch.bfloat16"], one.name
            continue
        assert held["kept_in"] == [wide[precision.weights]], one.name
        if held["sharded"] and precision.activations == "bf16":  # what is held is what is trained: no main copy
            assert precision.master is None, one.name
            assert held["reduced_in"] == [wide[precision.reduce]], one.name


def test_a_run_recomputes_and_updates_as_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        strategy, workload = one.plan.strategies[0], one.workload
        assert held["recomputes"] == (strategy.recompute.kind == "full"), one.name
        on_host = not held["sharded"] and strategy.offload.optimizer > 0
        named = {"sgd": "SGD", "adafactor": "Adafactor"}.get(workload.optimizer, "AdamW")
        assert held["optimizer"] == ("DeepSpeedCPUAdam" if on_host else named), one.name
        wide = {"materialised": "eager"}.get(workload.attention_kernel)
        usual = "sdpa" if workload.precision.activations == "fp32" else "flash_attention_2"
        assert held["attention"] == (wide or usual), one.name


@pytest.mark.parametrize(
    ("plan", "fields", "refused"),
    [
        ("dp16.fsdp", {}, "precision"),
        ("dp16.fsdp", {"dtype": "fp16"}, "precision"),
        ("dp16.z3", AS_LOADED, "precision"),
        ("cp2.dp8.fsdp", {"dtype": "fp32"}, "cp"),
        ("cp2.dp8.fsdp", {**AS_LOADED, "attention_kernel": "materialised"}, "cp"),
        ("tp2.nosp.dp8.fsdp", AS_LOADED, "tp"),
    ],
)
def test_what_it_would_run_otherwise_is_refused(plan: str, fields: dict[str, Any], refused: str) -> None:
    assert {one.field for one in TARGETS["axolotl"].refused(asked(plan, **fields))} == {refused}
