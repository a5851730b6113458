"""Exported recipes of NeMo Automodel, started by its own recipe as far as a machine without a GPU can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from tests.frameworks.starts import exported, found_by
from tests.targets.cases import job
from tests.targets.test_round_trip import some

pytest.importorskip("nemo_automodel")

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
}
"""As many layers and heads as the models have, all else small."""
SMALL: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mixtral-8x7b": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8},
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "moe_intermediate_size": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
}
MIXTURE = ("ep8.fsdp", "ep4.hsdp4.mbs2.rc-full", "pp2.ep4.fsdp-keep")


def plans() -> Iterator[Job]:
    """Plans of the grid, one in four, and of a mixture of experts."""
    yield from list(some("automodel"))[::4]
    yield from (job(line, "qwen3-30b-a3b") for line in MIXTURE)
    for one in (job(line, "llama-3.1-8b") for line in ("fsdp.mbs2.rc-full", "tp2.fsdp", "pp2.fsdp-keep")):
        yield replace(one, workload=replace(one.workload, precision=PRECISIONS["fp8"]))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Every plan with what its run holds."""
    folder = tmp_path_factory.mktemp("runs")
    for name, config in SMALL.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(SIZES | config))
    asked = list(plans())
    words = []
    for run, _, one in exported([("automodel", one) for one in asked], folder):
        words.append(f"{run}:{folder / one.model.name}:{one.plan.devices}")
    return list(zip(asked, found_by("automodel_start.py", words), strict=True))


def test_a_run_holds_what_the_plan_says(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        assert "refused" not in held, (one.name, held)
        strategy, pipeline = one.plan.strategies[0], one.plan.pipelines[0]
        pp = len(pipeline.workers)
        assert held["degrees"] == [strategy.tp, strategy.cp, pp, strategy.expert.ep], one.name
        assert held["ranks"] == strategy.dp, one.name
        assert held["sharded"] == (strategy.data.zero == 3), one.name
        assert held["recomputes"] == (strategy.recompute.kind == "full"), one.name
        assert held["kept_in"] == ["torch.float32"], one.name
        first = pipeline.workers[0].chunks
        assert (held["parts"], held["layers"]) == (len(first), sum(part.num_layers for part in first)), one.name
        if pp == 1:
            assert held["accumulates"] == pipeline.num_micro_batches, one.name
        else:
            assert (held["accumulates"], held["micro_batches"]) == (1, pipeline.num_micro_batches), one.name


def test_products_of_layers_run_in_8_bits_where_the_plan_says_so(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        low = one.workload.precision.compute == "fp8"
        assert bool(held["fp8"]) == low, one.name
        assert not any("lm_head" in name for name in held["fp8"]), one.name
