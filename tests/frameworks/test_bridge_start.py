"""Exported runs of Megatron-Bridge, started by their own program as far as a machine without a GPU can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Any

import pytest

from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS, stated
from tests.frameworks.starts import exported, found_by
from tests.targets.cases import job
from tests.targets.test_round_trip import some

if find_spec("megatron") is None or not list(distributions(name="megatron-bridge")) or find_spec("hydra") is None:
    pytest.skip("megatron-bridge is not installed", allow_module_level=True)

HUGGING_FACE: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
    },
}
"""What AutoBridge needs of the models' own configurations."""
FORMATS: dict[str, dict[str, str]] = {
    "bf16": {},
    "bf16 ": {"grad_dtype": "bf16"},
    "fp8": {},
    "fp8 ": {"weight_dtype": "fp8"},
    "fp8-block": {},
    "fp8-block ": {"weight_dtype": "fp8", "grad_dtype": "bf16"},
}
EXPERTS = ("z1.epdedup", "z1", "pp4.vpp4.z1.epdedup.epov-wgrad.rc-sel-moe_act")
MIXTURE = ("ep8.z1", "pp2.vpp2.ep4.z1", "tp2.ep4.etp2.z1", "pp4.vpp2.ep2.epov-wgrad.z1.rc-sel-moe_act", "cp2.ep8.z1")


def plans() -> Iterator[Job]:
    """Plans of the grid, of a mixture of experts, and of every number format."""
    yield from (one for one in some("bridge") if one.model.name in HUGGING_FACE)
    yield from (job(line, "qwen3-30b-a3b") for line in MIXTURE)
    for gpus in ("64xH100", "64xGB200"):
        yield from (job(f"ep16.{line}", "deepseek-v3", gpus) for line in EXPERTS)
    yield from (job(line, "llama-3.1-8b") for line in ("z1.nodpov", "pp4.vpp2.z0.nodpov", "tp2.pp2.z1.nodpov"))
    one = job("tp2.pp2.z1", "llama-3.1-8b")
    for name, given in FORMATS.items():
        precision = stated(PRECISIONS[name.strip()], given)
        yield replace(one, workload=replace(one.workload, precision=precision))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Every plan with what its run holds."""
    folder = tmp_path_factory.mktemp("runs")
    for name, config in HUGGING_FACE.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    asked = list(plans())
    words = []
    for run, _, one in exported([("bridge", one) for one in asked], folder):
        device = one.cluster.groups[0].device.name
        words.append(f"{run}:{folder / one.model.name}:{one.plan.devices}:{device}")
    return list(zip(asked, found_by("bridge_start.py", words), strict=True))


def test_enough_of_them_are_tried(started: list[tuple[Job, dict[str, Any]]]) -> None:
    assert len(started) >= 40


def test_a_run_holds_what_the_plan_says(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        assert "refused" not in held, (one.name, held)
        strategy, stages = one.plan.strategies[0], list(one.plan.pipelines[0].chunks())
        assert (held["tp"], held["cp"], held["pp"]) == (strategy.tp, strategy.cp, len(one.plan.pipelines[0].workers))
        assert (held["vpp"] or 1) * held["pp"] == len(stages), one.name
        assert (held["ep"], held["dp"]) == (strategy.expert.ep, strategy.dp), one.name
        assert held["sharded"] == (strategy.data.zero > 0), one.name
        assert held["fsdp"] == (strategy.data.zero > 1), one.name
        assert (held["batch"], held["sequence"]) == (one.plan.global_batch, one.workload.seq_len)
        assert held["layers"] == one.model.num_layers
        kinds = {strategy.recompute.kind for strategy in one.plan.strategies} - {"none"}
        assert (held["recompute"] is not None) == bool(kinds), one.name


def test_a_run_overlaps_what_the_plan_overlaps(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        strategy = one.plan.strategies[0]
        if strategy.dp > 1:
            assert held["overlaps_gradients"] == strategy.data.overlap, one.name
        assert held["overlaps_tensors"] == (".tpov" in one.name), one.name
        assert held["overlaps_experts"] == strategy.expert.overlap.startswith("paired"), one.name
        if strategy.expert.dispatcher == "deduplicated":
            backend = "hybridep" if one.cluster.groups[0].device.name == "GB200" else "deepep"
            assert held["dispatcher"] == ["flex", backend], one.name
        assert held["delays_weights"] == (strategy.expert.overlap == "paired-wgrad"), one.name


def test_a_run_holds_the_number_formats_of_the_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        formats = one.workload.precision
        low = formats.compute in ("fp8", "fp8-block", "mxfp8")
        assert held["fp32_gradients"] == (formats.gradients == "fp32"), formats.name
        assert held["fp8_weights"] == (low and formats.weights == formats.compute), formats.name
        assert bool(held["fp8"]) == low, formats.name
