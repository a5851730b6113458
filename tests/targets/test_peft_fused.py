"""Adapters of all linear modules, as many parameters as PEFT makes them on the classes of transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.formats.huggingface import read_config
from meshwright.ops.counts import adapter_parameters
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.tuning import Tuning
from meshwright.targets import TARGETS, peft_experts
from meshwright.targets.adapters import BY_PEFT
from tests.counts import FAMILIES


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # get_peft_model of peft 0.21.2 on classes of transformers 5.23.0, rank 8 on all linear modules (2026-11).
        ("bailing_hybrid", 17_188_864),
        ("codegen", 14_680_064),
        ("ctrl", 11_206_656),
        ("gpt_neox_japanese", 10_485_760),
        ("granitemoehybrid", 11_436_032),
        ("hy_v4", 18_600_192),
        ("laguna", 10_521_600),
        ("lfm2_moe", 3_653_632),
        ("lfm3", 8_234_368),
        ("mpt", 6_291_456),
        ("openai-gpt", 1_179_648),
        ("persimmon", 18_874_368),
    ],
)
def test_peft_makes_as_many_parameters(name: str, parameters: int) -> None:
    target = TARGETS["accelerate"]
    model = target.loaded(read_config(FAMILIES[name]["config"], name))
    lora = target.adapted(model, read_lora("r=8"))
    assert adapter_parameters(replace(model, tuning=Tuning(lora=lora))) == parameters


def test_adapters_of_compressed_attention_by_the_names_of_its_class() -> None:
    """Those of get_peft_model of peft 0.21.2 on DeepseekV4ForCausalLM; on o_a_proj they stop at the first step."""
    target = TARGETS["accelerate"]
    model = target.loaded(read_config(FAMILIES["deepseek_v4"]["config"], "m"))
    names = "q_a_proj,q_b_proj,kv_proj,gate_proj,weights_proj,o_b_proj,up_proj,down_proj"
    named, every = (target.adapted(model, read_lora(f"r=8,targets={one}")) for one in (names, "all-linear"))
    assert adapter_parameters(replace(model, tuning=Tuning(lora=named))) == 32_405_504
    found = [
        problem.what
        for lora in (named, every)
        for problem in peft_experts.problems(replace(model, tuning=Tuning(lora=lora)), BY_PEFT)
    ]
    assert found == ["plan: adapters are on o_a_proj"]
