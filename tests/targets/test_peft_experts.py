"""Adapters of models with experts: what PEFT makes of the names it is given, counted and refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from meshwright.errors import UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.library.models import resolve
from meshwright.ops.counts import adapter_parameters
from meshwright.planning.for_target import priced_as
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.tuning_text import read_lora
from meshwright.planning.run_by import run_by
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.tuning import Lora, Tuning
from meshwright.targets import TARGETS
from meshwright.targets.adapters import BY_PEFT, ByPeft
from meshwright.targets.peft_experts import as_given

LISTED, AXOLOTL = ByPeft(listed=True), ByPeft(listed=True, stores_experts=True)
SEVEN = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


def counted(model: ModelSpec, lora: Lora) -> int:
    return adapter_parameters(replace(model, tuning=Tuning(lora=lora)))


@pytest.mark.parametrize(
    ("model", "targets", "parameters"),
    [
        # get_peft_model of peft 0.21.2 on classes of transformers 5.23.0, rank 8 (2026-11).
        ("mixtral-8x7b", "all-linear", 179_832_832),
        ("mixtral-8x7b", SEVEN, 6_815_744),
        ("qwen3-30b-a3b", "all-linear", 498_253_824),
        ("qwen3-30b-a3b", SEVEN, 497_418_240),
        ("gpt-oss-20b", "all-linear", 3_981_312),
        ("deepseek-v2-lite", "all-linear", 179_497_472),
        ("glm-4.7-flash", "all-linear", 336_876_032),
        ("hunyuan-a13b", "all-linear", 460_865_536),
        ("qwen1.5-moe-a2.7b", "all-linear", 7_962_816),
        ("qwen3.5-35b-a3b", "all-linear", 11_238_720),
        ("qwen3.5-35b-a3b", SEVEN, 4_177_920),
        ("qwen3-next-80b-a3b", SEVEN, 1_713_340_416),
        ("llama-4-scout", "all-linear", 29_890_560),
        ("jamba-52b", "all-linear", 19_061_760),
        ("deepseek-v3.2", "all-linear", 3_834_464_256),
    ],
)
def test_peft_makes_as_many_parameters(model: str, targets: str, parameters: int) -> None:
    spec = resolve(model)
    made = BY_PEFT(spec, read_lora({"r": 8, "targets": targets.split(",")}))
    assert counted(spec, made) == parameters
    assert BY_PEFT(spec, made) == made
    assert BY_PEFT(spec, as_given(spec, made)) == made


def test_programs_that_look_for_modules_find_none_in_experts() -> None:
    asked = read_lora("r=8")
    qwen, deepseek, dense = (resolve(name) for name in ("qwen3-30b-a3b", "deepseek-v2-lite", "llama-3.1-8b"))
    attention = read_lora("r=8,targets=q_proj,k_proj,v_proj,o_proj")
    assert counted(qwen, LISTED(qwen, asked)) == counted(qwen, attention)
    # Names of its shared experts stand for the parameters of the others, and the router has none.
    assert LISTED(deepseek, asked).parameters == ("experts.gate_up_proj", "experts.down_proj")
    assert LISTED(dense, asked) == BY_PEFT(dense, asked) == asked


def test_bitsandbytes_leaves_experts_in_16_bits() -> None:
    qwen, asked = resolve("qwen3-30b-a3b"), read_lora("r=8,base=nf4")
    assert BY_PEFT(qwen, asked).skip == LISTED(qwen, asked).skip == ("experts",)
    assert AXOLOTL(qwen, asked).skip == ()
    dense = resolve("llama-3.1-8b")
    assert BY_PEFT(dense, asked) == asked

    def weights_bytes(target: str) -> float:
        one = question(target, "r=8,base=nf4")
        stage = estimate_plan(one.plan, one.model, one.cluster, one.workload).fullest
        return dict(stage.memory_bytes)["weights"]

    assert weights_bytes("llamafactory") > 3 * weights_bytes("axolotl")


def question(target: str, lora: str | Lora, model: str = "qwen3-30b-a3b", plan: str = "dp1.mbs1.rc-full") -> Job:
    fields = JobFields(model=model, gpus="1xH200", seq_len=1024, lora=lora)
    return plan_question(plan, priced_as(fields, target)).job


@pytest.mark.parametrize(
    ("model", "lora", "why"),
    [
        ("qwen3-30b-a3b", "r=8,dropout=0.1", "stops with these"),
        ("qwen3-30b-a3b", "r=8,dora", "stops with these"),
        ("qwen3-30b-a3b", "r=8,targets=q_proj,gate_proj", "one parameter"),
        ("nemotron-3-nano-30b-a3b", "r=8", "stops at out_proj"),
    ],
)
def test_what_stops_peft_is_refused(model: str, lora: str, why: str) -> None:
    refused = TARGETS["accelerate"].refused(question("accelerate", lora, model))
    assert [why in one.why for one in refused if one.field == "tuning"].count(True) == 1
    fine = question("accelerate", "r=8,targets=q_proj,v_proj,dropout=0.1", model)
    assert not TARGETS["accelerate"].refused(fine)


def test_adapters_that_a_program_makes_otherwise_are_refused() -> None:
    fields = JobFields(model="gpt-oss-20b", gpus="1xH200", seq_len=1024, lora="r=8", software="pytorch-eager-no-sync")
    as_asked = plan_question("dp1.mbs1.rc-full", fields).job
    for name in ("accelerate", "axolotl", "llamafactory", "deepspeed"):
        assert ["it makes others" in one.why for one in TARGETS[name].refused(as_asked)].count(True) == 1
    stored = plan_question("dp1.mbs1.rc-full", replace(fields, lora="r=8,targets=q_proj,base=nf4")).job
    with pytest.raises(UnsupportedError, match="leaves in 16 bits"):
        TARGETS["accelerate"].files(stored, estimate_plan(stored.plan, stored.model, stored.cluster, stored.workload))


def test_an_adapter_on_the_whole_weight_keeps_the_sum_and_makes_its_gradient() -> None:
    """PEFT writes W + B A of all experts, and makes the gradient of the sum as if experts were trained."""

    def priced(lora: str, plan: str) -> tuple[float, float]:
        fields = JobFields(model="qwen3-30b-a3b", gpus="1xB300", seq_len=1024, lora=lora, software="pytorch-eager")
        one = plan_question(plan, fields).job
        estimate = estimate_plan(one.plan, one.model, one.cluster, one.workload)
        memory = dict(estimate.fullest.memory_bytes)
        return estimate.step_time_s, memory["activations"] + memory["transient"]

    beside = "r=8,targets=q_proj"
    on = "r=8,targets=q_proj,target_parameters=experts.gate_up_proj,experts.down_proj"
    sums_bytes = 2 * 48 * 128 * 3 * 2048 * 768
    for plan, least, most in (("dp1.mbs1", 1.0, 1.05), ("dp1.mbs1.rc-full", 0.3 / 48, 1.0 / 48)):
        (slow_s, more_bytes), (quick_s, bytes_) = priced(on, plan), priced(beside, plan)
        assert slow_s > quick_s
        assert least * 0.99 < (more_bytes - bytes_) / sums_bytes < most


@pytest.mark.parametrize("target", ["accelerate", "axolotl", "llamafactory"])
@pytest.mark.parametrize("lora", ["r=8", f"r=8,targets={SEVEN}", "r=8,targets=q_proj,v_proj,base=nf4"])
def test_files_name_what_the_program_is_given(target: str, lora: str) -> None:
    plan = "dp1.z0.mbs1.rc-full" if target != "llamafactory" else "dp1.z2.mbs1.rc-full"
    one = question(target, lora, plan=plan)
    files = dict(TARGETS[target].files(one, estimate_plan(one.plan, one.model, one.cluster, one.workload)).files)
    read = TARGETS[target].read
    assert read is not None
    assert one.model.lora is not None
    again = TARGETS[target].adapted(one.model, read_lora(read(files, 1).workload["lora"]))
    assert again == one.model.lora
    if target == "axolotl":
        keys = yaml.safe_load(files["axolotl.yaml"])
        assert keys.get("quantize_moe_experts", False) == ("nf4" in lora)
    if target == "accelerate":
        named = json.loads(files["adapter_config.json"])["target_modules"]
        assert named == "all-linear" if lora == "r=8" else set(named) == {*read_lora(lora).targets}


@pytest.mark.parametrize(
    ("model", "parameters"),
    # get_peft_model of peft 0.21.2 on classes of transformers 5.23.0, rank 8 on all linear modules (2026-11).
    [("phi-3-medium", 27_852_800), ("glm-4-9b", 23_797_760), ("bloom-560m", 3_145_728), ("gpt-neox-20b", 34_603_008)],
)
def test_products_in_one_module_have_one_adapter(model: str, parameters: int) -> None:
    spec, asked = resolve(model), read_lora("r=8")
    made = BY_PEFT(spec, asked)
    assert counted(spec, made) == parameters < counted(spec, asked)
    assert as_given(spec, made) == asked


def test_a_part_of_a_module_is_refused_by_the_name_of_the_whole() -> None:
    refused = TARGETS["accelerate"].refused(question("accelerate", "r=8,targets=q_proj,v_proj", "phi-3-medium"))
    assert [one.fix for one in refused if one.field == "tuning"] == ["name qkv_proj"]
    assert not TARGETS["accelerate"].refused(question("accelerate", "r=8,targets=qkv_proj,o_proj", "phi-3-medium"))
    files = TARGETS["accelerate"].files
    one = question("accelerate", "r=8", "phi-3-medium")
    made = dict(files(one, estimate_plan(one.plan, one.model, one.cluster, one.workload)).files)
    assert json.loads(made["adapter_config.json"])["target_modules"] == "all-linear"


@pytest.mark.parametrize("target", ["accelerate", "deepspeed", "llamafactory", "axolotl", "automodel"])
def test_prediction_modules_are_left_out_by_programs_that_have_none(target: str) -> None:
    model = resolve("qwen3.5-27b")
    assert model.mtp_layers
    plan = "dp1.mbs1.rc-full" if target != "llamafactory" else "dp1.z2.mbs1.rc-full"
    one = question(target, "r=8", "qwen3.5-27b", plan)
    assert one.model.mtp_layers == 0
    assert any("without its multi-token-prediction module" in note for note in one.model.notes)
    assert not TARGETS[target].refused(one)
    assert target in (*run_by(replace(one, model=replace(model, tuning=one.model.tuning))), "axolotl")
    assert TARGETS["megatron"].loaded(model) == model
