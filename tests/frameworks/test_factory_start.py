"""Exported files of LLaMA-Factory, read and verified by its own parser as at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from tests.frameworks.starts import exported, found_by
from tests.targets.test_round_trip import some

for needed in ("accelerate", "deepspeed", "transformers", "omegaconf"):
    pytest.importorskip(needed)

MORE: tuple[dict[str, Any], ...] = (
    {"plan": "dp16.z3.mbs2.rc-full", "lora": "r=8"},
    {"plan": "dp16.z2.mbs2", "lora": "r=64,base=nf4,dropout=0.05"},
    {"plan": "dp16.mbs2", "lora": "r=16,targets=q_proj,v_proj,dora"},
    {"plan": "dp16.mbs2", "lora": "r=16,train=embedding,head"},
    {"plan": "dp16.mbs2", "lora": "r=16,base=int8"},
    {"plan": "dp16.z2.mbs2", "lora": "r=16,base=fp4-single"},
    {"plan": "dp16.z2.mbs2", "optimizer": "adafactor"},
    {"plan": "dp16.z1.mbs2", "optimizer": "adamw-8bit"},
    {"plan": "dp16.z3.mbs2", "dtype": "fp32"},
    {"plan": "dp16.z1.mbs2", "dtype": "fp16"},
)
"""Plans with what the grid has not."""


def plans() -> Iterator[Job]:
    """Plans of the grid, and others."""
    yield from list(some("llamafactory"))[::2]
    for asked in MORE:
        fields = {name: value for name, value in asked.items() if name != "plan"}
        yield plan_question(
            asked["plan"],
            JobFields(
                model="llama-3.1-8b",
                gpus="16xH100",
                seq_len=4096,
                global_batch=64,
                **{"software": "megatron-core", **fields},
            ),
        ).job


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Every plan with what its run holds."""
    folder = tmp_path_factory.mktemp("runs")
    asked = list(plans())
    words = []
    for run, _, one in exported([("llamafactory", one) for one in asked], folder):
        words.append(f"{run}:{one.model.name}:{one.plan.devices}")
    return list(zip(asked, found_by("factory_start.py", words), strict=True))


def test_a_run_holds_what_the_plan_says(started: list[tuple[Job, dict[str, Any]]]) -> None:
    assert len(started) >= 35
    for one, held in started:
        assert "refused" not in held, (one.name, held)
        strategy, pipeline = one.plan.strategies[0], one.plan.pipelines[0]
        assert (held["micro_batch"], held["accumulates"]) == (pipeline.micro_batch, pipeline.num_micro_batches), (
            one.name
        )
        assert (held["ranks"], held["batch"]) == (one.plan.devices, one.plan.global_batch), one.name
        assert held["zero"] == strategy.data.zero, one.name
        assert held["on_host"] == [strategy.offload.optimizer > 0, strategy.offload.weights > 0], one.name
        assert held["format"] == one.workload.precision.activations, one.name
        assert held["tokens"] == one.workload.seq_len, one.name
        assert held["recomputes"] == (strategy.recompute.kind == "full"), one.name
        assert held["attention"] == "sdpa", one.name
        names = {
            "adam": "adamw_torch",
            "adamw": "adamw_torch",
            "adafactor": "adafactor",
            "adamw-8bit": "adamw_bnb_8bit",
        }
        assert held["optimizer"] == names[one.workload.optimizer], one.name


def test_a_run_tunes_what_the_plan_tunes(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        lora = one.model.lora
        if lora is None:
            assert held["tuned"][0] == "full", one.name
            continue
        targets = ["all"] if "all-linear" in lora.targets else list(lora.targets)
        assert held["tuned"] == ["lora", lora.rank, targets, lora.dora], one.name
        assert held["beside"] == (["embed_tokens", "lm_head"] if lora.train else None), one.name
        bits = {None: None, "int8": 8}.get(lora.base, 4)
        assert held["stored"][0] == bits, one.name
        if bits == 4:
            assert held["stored"][1:] == [str(lora.base)[:3], not str(lora.base).endswith("-single")], one.name
