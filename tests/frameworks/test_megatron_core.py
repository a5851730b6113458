"""Layouts and overrides for Megatron-Core's own classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from meshwright.specs.job import Job
from meshwright.targets.bridge.overrides import KEYS
from tests.targets.test_round_trip import some, written

pytest.importorskip("megatron.core")

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_config import TransformerConfig


def value_of(text: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    if text.startswith("["):
        return text.strip("[]").split(",")
    return int(text) if text.isdigit() else text.strip("'")


def given(one: Job) -> dict[str, Any]:
    lines = [line for line in written("bridge", one)["overrides.txt"].splitlines() if not line.startswith("#")]
    return {name: value_of(value) for name, _, value in (line.partition("=") for line in lines)}


def of(keys: dict[str, Any], section: str, kind: Any) -> dict[str, Any]:
    known = {item.name for item in dataclasses.fields(kind)}
    own = {name.partition(".")[2]: value for name, value in keys.items() if name.startswith(f"{section}.")}
    assert own.keys() - known <= {"seq_length"}, own.keys() - known
    return {name: value for name, value in own.items() if name in known and value is not None}


@pytest.mark.parametrize("one", list(some("bridge")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_overrides_make_a_configuration(one: Job) -> None:
    keys = given(one)
    model = of(keys, "model", TransformerConfig)
    experts = {"num_moe_experts": 8, "add_bias_linear": False} if one.model.is_moe else {}
    made = TransformerConfig(
        num_layers=one.model.num_layers,
        hidden_size=one.model.hidden,
        num_attention_heads=32,
        num_query_groups=8,
        pipeline_dtype=__import__("torch").bfloat16,
        bf16=True,
        **experts,
        **{name: value for name, value in model.items() if name != "cp_comm_type"},
    )
    strategy = one.plan.strategies[0]
    assert made.tensor_model_parallel_size == strategy.tp
    assert made.context_parallel_size == strategy.cp
    assert made.pipeline_model_parallel_size == len(one.plan.pipelines[0].workers)
    ddp = DistributedDataParallelConfig(**of(keys, "ddp", DistributedDataParallelConfig))
    assert ddp.use_distributed_optimizer == (strategy.data.zero >= 1)
    assert ddp.use_megatron_fsdp == (strategy.data.zero >= 2)


def test_keys_of_the_table_are_fields() -> None:
    known = {item.name for item in dataclasses.fields(TransformerConfig)}
    named = {key.partition(".")[2] for keys in KEYS.values() for key in keys if key.startswith("model.")}
    assert named - known == {"seq_length"}


@pytest.mark.parametrize("layers", [(3, 4, 4, 3), (0, 7, 7, 0), (2, 2, 2, 2, 2, 2, 2, 0)])
def test_layouts_are_megatrons(layers: tuple[int, ...]) -> None:
    """Chunks with the embedding or the head alone, as Llama-3.1-405B ran, are layouts too."""
    from meshwright.formats.megatron.layout import write_layout

    made = PipelineParallelLayerLayout.from_str(write_layout(layers, 0), pipeline_model_parallel_size=4)
    made.validate_layer_layout(num_layers=sum(layers), mtp_num_layers=0)
    assert made.virtual_pipeline_model_parallel_size == len(layers) // 4
