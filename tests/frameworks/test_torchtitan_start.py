"""Exported modules of torchtitan, started by its own trainer as far as a machine without a GPU can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.targets import TARGETS
from tests.frameworks.starts import exported, found_by
from tests.targets.cases import job
from tests.targets.test_round_trip import some

pytest.importorskip("torchtitan.trainer", exc_type=ImportError)

LINES = (
    ("z0.mbs2.rc-sel-half_products", "qwen3-8b"),
    ("tp2.hsdp4", "qwen3-0.6b"),
    ("tp4.z0", "llama-3.2-1b"),
    ("off-wog.fsdp.rc-full", "llama-3.1-8b"),
    ("pp2.vpp2.fsdp.zb-v", "qwen3-8b"),
    ("pp2.vpp2.fsdp.dualpipev", "qwen3-8b"),
    ("pp4.fsdp.gpipe", "llama-3.1-8b"),
    ("pp4.fsdp.zb-h1", "llama-3.1-8b"),
    ("pp4.vpp2.fsdp.breadth-first", "llama-3.1-8b"),
    ("tp2.pp2.vpp3.hsdp2", "deepseek-v2-lite"),
    ("cp2-ag.fsdp", "deepseek-v2-lite"),
    ("ep8.hsdp8.rc-full", "qwen3-30b-a3b"),
    ("tp4.ep8.fsdp", "qwen3-30b-a3b"),
    ("tp2.fsdp", "qwen3-30b-a3b"),
    ("fsdp", "gpt-oss-20b"),
    ("tp2.cp2-ag.ep4.fsdp.rc-full", "gpt-oss-20b"),
)
"""Plans beside those of the grid: schedules, copies, experts, context ranks of every kind of model."""
CLASSES = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "interleaved": "ScheduleInterleaved1F1B"}
CLASSES |= {"zb-v": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV", "breadth-first": "ScheduleLoopedBFS"}


def plans() -> Iterator[Job]:
    """Plans of the grid, one in two, of other models and schedules, of 8 bits and of adapters."""
    yield from list(some("torchtitan"))[::2]
    yield from (job(line, model) for line, model in LINES)
    one = job("fsdp.mbs2", "llama-3.1-8b", "8xB200")
    yield from (replace(one, workload=replace(one.workload, precision=PRECISIONS[name])) for name in ("fp8", "mxfp8"))
    yield replace(one, workload=replace(one.workload, seq_len=262144))
    fields = JobFields(
        model="llama-3.1-8b", gpus="8xH100", seq_len=2048, lora="r=16,targets=qkv_proj,o_proj", software="megatron-core"
    )
    yield plan_question("dp8.fsdp.mbs2.rc-full", fields).job


Started = list[tuple[Job, int, dict[str, Any]]]
"""A plan, a stage of it, and what the first rank of that stage holds."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """The first rank of the last stage of every plan with what it holds."""
    folder = tmp_path_factory.mktemp("runs")
    asked = [(one, len(one.plan.pipelines[0].workers) - 1) for one in plans()]
    words = []
    for (run, _, one), (_, stage) in zip(
        exported([("torchtitan", one) for one, _ in asked], folder), asked, strict=True
    ):
        words.append(f"{run}:{one.plan.devices}:{stage * one.plan.devices // (len(one.plan.pipelines[0].workers))}")
    return [(*own, found) for own, found in zip(asked, found_by("torchtitan_start.py", words), strict=True)]


def test_enough_of_them_start(started: Started) -> None:
    assert len(started) >= 40
    for one, _, held in started:
        assert "refused" not in held, (one.model.name, one.name, held)


def test_a_rank_holds_its_layers_and_ends(started: Started) -> None:
    for one, stage, held in started:
        pipeline = one.plan.pipelines[0]
        chunks = pipeline.workers[stage].chunks
        layers = [[layer for first, last in chunk.layers for layer in range(first, last + 1)] for chunk in chunks]
        assert held["parts"] == layers, one.name
        assert held["ends"] == [[chunk.embedding, chunk.head] for chunk in chunks], one.name
        if len(pipeline.workers) == 1 and one.model.lora is None:
            assert held["parameters"] == one.model.parameters, one.model.name


def test_a_rank_is_one_of_the_plans_mesh(started: Started) -> None:
    for one, _, held in started:
        strategy, pipeline = one.plan.strategies[0], one.plan.pipelines[0]
        data, pp = strategy.data, len(pipeline.workers)
        assert held["degrees"] == [strategy.tp, strategy.cp, pp, strategy.expert.ep], one.name
        assert held["ranks"] == strategy.dp, one.name
        sharded = data.zero == 3
        assert held["shards"] == [data.shard * strategy.cp if sharded else 1], one.name
        assert held["copies"] == [data.replicate if sharded else strategy.dp], one.name
        if sharded:
            assert held["reshards"] == [data.reshard], one.name
        shards = strategy.tp * held["shards"][0]
        assert held["held"] == pytest.approx(held["parameters"] / shards, rel=0.02), one.name
        assert held["optimizer"] == ["AdamW"], one.name
        assert held["sequence_parallel"] == strategy.tensor.sequence_parallel, one.name


def test_a_step_runs_the_plans_micro_batches(started: Started) -> None:
    for one, _, held in started:
        pipeline, piped = one.plan.pipelines[0], len(one.plan.pipelines[0].workers) > 1
        count = pipeline.num_micro_batches
        assert (held["accumulates"], held["micro_batches"]) == ((1, count) if piped else (count, 1)), one.name
        assert (held["micro_batch"], held["sequence"]) == (pipeline.micro_batch, one.workload.seq_len), one.name
        if piped:
            assert held["scheduled"] == count, one.name
            own = CLASSES.get("" if pipeline.schedule.parameters else pipeline.schedule.name)
            assert held["schedule"] == (own or "_PipelineScheduleRuntime"), one.name


def test_a_rank_keeps_and_computes_in_the_plans_formats(started: Started) -> None:
    for one, _, held in started:
        strategy, lora = one.plan.strategies[0], one.model.lora
        wide = one.workload.precision.activations == "fp32"
        assert held["computed_in"] == ["torch.float32" if wide else "torch.bfloat16"], one.name
        assert held["reduced_in"] == ["torch.float32"], one.name
        assert held["trained_in"] == ["torch.float32" if lora is None else "torch.bfloat16"], one.name
        assert held["kept_in"] == ([] if lora is None else ["torch.bfloat16"]), one.name
        assert held["offloads"] == ["CPUOffloadPolicy" if strategy.offload.weights else "OffloadPolicy"], one.name
        low = {"fp8": "Float8Linear", "mxfp8": "MXFP8Linear"}.get(one.workload.precision.compute)
        assert low is None or held["classes"][low] == 5 * 32 + (low == "MXFP8Linear"), one.name


def test_layers_are_computed_again_as_planned(started: Started) -> None:
    for one, _, held in started:
        kind, layers = one.plan.strategies[0].recompute.kind, sum(map(len, held["parts"]))
        assert held["recomputes"] == (0 if kind == "none" else layers), one.name
        assert held["keeps"] == (layers if kind == "selective" else 0), one.name
        assert held["compiled"] == [True], one.name


def test_steps_are_captured_where_nothing_is_waited_for(started: Started) -> None:
    for one, _, held in started:
        strategy = one.plan.strategies[0]
        waits = strategy.expert.ep > 1 or bool(strategy.offload.weights) or len(one.plan.pipelines[0].workers) > 1
        assert held["graphs"] == (not waits), one.name


@pytest.mark.parametrize(
    ("line", "model", "field"),
    [("tp8.fsdp", "qwen3-30b-a3b", "tp"), ("cp2-ag.fsdp", "deepseek-v3", "cp"), ("pp2.fsdp", "llama-3.2-1b", "pp")],
)
def test_what_it_would_refuse_at_its_start_is_refused(line: str, model: str, field: str) -> None:
    assert {problem.field for problem in TARGETS["torchtitan"].refused(job(line, model))} == {field}
