"""Adapters through the files of PEFT and back, and what PEFT does not do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.errors import UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.job import Job
from meshwright.targets import TARGETS

PLANS = {"accelerate": "dp8.fsdp.mbs2.rc-full", "deepspeed": "dp8.z2.mbs2.rc-full"}


def tuned(target: str, lora: str) -> Job:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core")
    return plan_question(PLANS[target], fields).job


def files_of(target: str, one: Job) -> dict[str, str]:
    estimate = estimate_plan(one.plan, one.model, one.cluster, one.workload)
    return dict(TARGETS[target].files(one, estimate).files)


@pytest.mark.parametrize("target", PLANS)
@pytest.mark.parametrize(
    "lora",
    [
        "r=16",
        "r=8,targets=q_proj,v_proj,dora",
        "r=64,base=nf4,dropout=0.05,train=embedding,head",
        "r=4,base=fp4-single,layers=0-3+8-9",
    ],
)
def test_adapters_come_back(target: str, lora: str) -> None:
    one = tuned(target, lora)
    files = files_of(target, one)
    assert json.loads(files["adapter_config.json"])["peft_type"] == "LORA"
    compile(files["train.py"], "train.py", "exec")
    read = TARGETS[target].read
    assert read is not None
    launch = read(files, 8)
    assert not launch.problems
    assert one.model.tuning is not None
    assert read_lora(launch.workload["lora"]) == one.model.tuning.lora


def test_frozen_weights_in_fp32_come_back_from_fsdp_alone() -> None:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048, lora="r=16", weight_dtype="fp32")
    fields = replace(fields, software="pytorch-eager-no-sync")
    one = plan_question(PLANS["accelerate"], fields).job
    files = files_of("accelerate", one)
    assert "quantization_config.json" not in files
    read = TARGETS["accelerate"].read
    assert read is not None
    launch = read(files, 8)
    assert not launch.problems
    assert read_lora(launch.workload["lora"]).base == "fp32"
    refused = TARGETS["accelerate"].refused(plan_question("dp8.z0.mbs2.rc-full", fields).job)
    assert ["autocast" in problem.why for problem in refused if problem.field == "tuning"] == [True]


def test_a_model_that_is_trained_whole_has_no_adapters() -> None:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048)
    files = files_of("accelerate", plan_question(PLANS["accelerate"], fields).job)
    assert not {"adapter_config.json", "quantization_config.json"} & set(files)
    compile(files["train.py"], "train.py", "exec")


@pytest.mark.parametrize(
    ("lora", "what"),
    [
        ("r=8,base=fp8", "frozen weights are stored in fp8"),
        ("r=8,base=int8", "frozen weights in int8 are sharded"),
        ("r=8,targets=linear_qkv", "adapters are on linear_qkv"),
        ("r=8,train=router", "router is trained beside adapters"),
    ],
)
def test_what_peft_does_not_do_is_refused(lora: str, what: str) -> None:
    fields = JobFields(model="mixtral-8x7b", gpus="8xH100", seq_len=2048, lora=lora, software="megatron-core")
    with pytest.raises(UnsupportedError, match=what):
        files_of("accelerate", plan_question(PLANS["accelerate"], fields).job)


@pytest.mark.parametrize("target", ["deepspeed", "llamafactory", "axolotl"])
def test_an_optimizer_on_the_host_is_adam(target: str) -> None:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048)
    adam, sgd = (
        plan_question("dp8.z2.mbs2.off-og", replace(fields, optimizer=optimizer)).job for optimizer in ("adamw", "sgd")
    )
    assert not TARGETS[target].refused(adam)
    assert [one.what for one in TARGETS[target].refused(sgd)] == ["plan: optimizer is sgd"]


def test_tensor_ranks_divide_the_model_as_it_is_loaded() -> None:
    """Accelerate cuts no matrices: the transformers library does, where a program asks for it."""
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048)
    files = files_of("accelerate", plan_question("tp2.nosp.dp4.fsdp.mbs2.rc-full", fields).job)
    assert json.loads(files["distributed_config.json"])["tp_size"] == 2
    assert "distributed_config=" in files["train.py"]
    assert "FSDP" not in files["accelerate.yaml"]
    for line in ("tp2.nosp.cp2.dp2.fsdp", "tp2.nosp.dp4.fsdp-keep"):
        assert TARGETS["accelerate"].refused(plan_question(line, fields).job)
    tuned_one = plan_question("tp2.nosp.dp4.fsdp", replace(fields, lora="r=8", software="megatron-core")).job
    assert [one.field for one in TARGETS["accelerate"].refused(tuned_one)] == ["tp"]


@pytest.mark.parametrize("optimizer", ["lion", "adafactor", "adamw-8bit"])
def test_optimizers_that_take_no_sharded_tensors_are_refused(optimizer: str) -> None:
    fields = JobFields(model="llama-3.1-8b", gpus="8xH100", seq_len=2048, optimizer=optimizer)
    sharded, whole = (plan_question(line, fields).job for line in ("dp8.fsdp", "dp8.z0"))
    assert [one.field for one in TARGETS["accelerate"].refused(sharded)] == ["optimizer"]
    assert not TARGETS["accelerate"].refused(whole)
