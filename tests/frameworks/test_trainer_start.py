"""Exported runs of Accelerate and DeepSpeed, started by the trainer of the transformers library, up to a step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from tests.frameworks.starts import exported, found_by
from tests.targets.test_round_trip import some

for needed in ("accelerate", "deepspeed", "peft"):
    pytest.importorskip(needed)

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 8,
    "vocab_size": 128,
    "dtype": "bfloat16",
}
"""As many heads as the models have, all else small; weights are published in 16 bits."""
SMALL: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "llama-3.1-8b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}
MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "accelerate": (
        {"plan": "dp16.fsdp.mbs2.rc-full", "lora": "r=8"},
        {"plan": "dp16.mbs2", "optimizer": "sgd"},
        {"plan": "dp16.mbs2", "dtype": "fp32"},
        {"plan": "dp16.fsdp.mbs2", "dtype": "fp16"},
        {"plan": "tp2.nosp.dp8.fsdp.mbs2", "dtype": "fp32"},
        {"plan": "tp8.nosp.dp2.fsdp.mbs2.off-wog"},
    ),
    "deepspeed": (
        {"plan": "dp16.z3.mbs2.rc-full", "lora": "r=8"},
        {"plan": "dp16.z2.mbs2", "optimizer": "sgd"},
        {"plan": "dp16.z1.mbs2", "dtype": "fp32"},
        {"plan": "cp4-a2a.dp4.z3.mbs2.rc-full"},
        {"plan": "tp2.nosp.dp8.z3.mbs2"},
    ),
}
"""Plans with what the grid has not."""
KEPT = {"accelerate": 8, "deepspeed": 5}
"""One in so many of the grid."""


def plans(target: str) -> Iterator[Job]:
    """Plans of a target."""
    yield from list(some(target))[:: KEPT[target]]
    for asked in MORE[target]:
        fields = {name: value for name, value in asked.items() if name != "plan"}
        question = plan_question(
            asked["plan"],
            JobFields(
                model="llama-3.1-8b",
                gpus="16xH100",
                seq_len=4096,
                global_batch=64,
                **{"software": "megatron-core", **fields},
            ),
        )
        yield question.job


def saved_models(folder: Path) -> None:
    """Small models of both kinds, with weights and a tokenizer of no words."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    for name, config in SMALL.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(SIZES | config))
        said = transformers.AutoConfig.from_pretrained(folder / name)
        transformers.AutoModelForCausalLM.from_config(said).save_pretrained(folder / name)
        ends = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "</s>"}
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **ends).save_pretrained(folder / name)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Job, dict[str, Any]]]:
    """Every plan with what its run holds."""
    folder = tmp_path_factory.mktemp("runs")
    saved_models(folder)
    asked = [(target, one) for target in KEPT for one in plans(target)]
    runs = exported(asked, folder)
    words = [f"{target}:{run}:{folder / one.model.name}:{one.plan.devices}" for run, target, one in runs]
    return [(*one, found) for one, found in zip(asked, found_by("trainer_start.py", words), strict=True)]


def test_a_run_makes_a_step(started: list[tuple[str, Job, dict[str, Any]]]) -> None:
    assert len(started) >= 25
    for target, one, held in started:
        assert "refused" not in held, (target, one.model.name, one.name, held)


def test_a_run_divides_the_model_as_the_plan(started: list[tuple[str, Job, dict[str, Any]]]) -> None:
    for target, one, held in started:
        strategy, name = one.plan.strategies[0], (target, one.name)
        by_heads = any(level.kind == "a2a" for level in strategy.context)
        assert held["tp"] == strategy.tp, name
        assert held["cp" if target == "accelerate" else "sp"] == strategy.cp, name
        assert held["ep"] == strategy.expert.ep, name
        if target == "accelerate":
            assert held["sharded"] == (strategy.data.zero == 3), name
            shard = strategy.data.shard * strategy.cp if strategy.data.zero == 3 else 1
            assert held["rows"] == 1 / (shard * strategy.tp), name
            assert held["dealt"] == strategy.dp, name
        else:
            assert held["zero"] == strategy.data.zero, name
            assert held["held"] == 1 / strategy.tp, name
            # Ulysses deals a micro-batch to each rank, and gathers them one after the other.
            assert held["dealt"] == strategy.dp * (strategy.cp if by_heads else 1), name


def test_a_run_takes_the_batch_of_the_plan(started: list[tuple[str, Job, dict[str, Any]]]) -> None:
    for target, one, held in started:
        pipeline, name = one.plan.pipelines[0], (target, one.name)
        assert (held["micro_batch"], held["accumulates"]) == (pipeline.micro_batch, pipeline.num_micro_batches), name
        assert held["batch"] == one.plan.global_batch, name
        if held["tp"] == 1:  # Accelerate counts tensor ranks in what it tells DeepSpeed, which deals by the mesh
            assert held["engine_batch"] in (None, one.plan.global_batch), name


def test_a_run_keeps_the_number_formats_of_the_plan(started: list[tuple[str, Job, dict[str, Any]]]) -> None:
    wide = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
    for target, one, held in started:
        low = one.workload.precision.activations
        assert held["mixed"] == {"fp32": "no"}.get(low, low), one.name
        if one.model.tuning is None:  # DeepSpeed keeps the main copy apart, elsewhere it is what is trained
            assert held["kept_in"] == [wide[low] if target == "deepspeed" else "torch.float32"], one.name
        elif target == "accelerate":
            assert (held["kept_in"], held["frozen_in"]) == (["torch.float32"], [wide[low]]), one.name


def test_a_run_recomputes_and_updates_as_the_plan(started: list[tuple[str, Job, dict[str, Any]]]) -> None:
    for target, one, held in started:
        strategy = one.plan.strategies[0]
        assert held["recomputes"] == (strategy.recompute.kind == "full"), one.name  # once, not twice
        on_host = target == "deepspeed" and strategy.offload.optimizer > 0
        assert held["optimizer"] == (
            "SGD" if one.workload.optimizer == "sgd" else "DeepSpeedCPUAdam" if on_host else "AdamW"
        )
        assert held["attention"] == "sdpa"
