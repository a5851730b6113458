"""Operators one by one: their compute is the estimate's, none outruns its device, messages stay below their links."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import estimate, plan
from meshwright.estimate.operators import StageOperators, step_operators
from meshwright.estimate.price import plan_pricer
from meshwright.specs.job import Job

ASKED = {
    "dense": ("llama-3-8b", "tp2.pp4.z1.mbs1.gbs32", {"gpus": "16xH100"}),
    "selective": ("llama-3-8b", "tp2.pp4.z1.mbs1.rc-sel.gbs32", {"gpus": "16xH100"}),
    "full": ("llama-3-8b", "tp2.pp4.vpp2.z1.mbs1.rc-full.gbs32", {"gpus": "16xH100"}),
    "full, as far as gradients ask": (
        "llama-3-8b",
        "tp2.dp8.fsdp.mbs1.rc-full.gbs32",
        {"gpus": "16xH100", "software": "pytorch-compiled"},
    ),
    "made again by tasks": ("llama-3-8b", "tp2.pp4.varuna.z1.mbs1.rc-full.gbs32", {"gpus": "16xH100"}),
    "two ways": ("llama-3-8b", "tp2.pp4.dualpipe.z1.mbs1.gbs32", {"gpus": "16xH100"}),
    "experts in fp8": ("mixtral-8x7b", "tp2.pp4.ep2.z1.mbs1.rc-full.gbs32", {"gpus": "16xH100", "dtype": "fp8"}),
    "two formats": (
        "llama-3.1-8b",
        "dp8.z1.mbs1.gbs64",
        {"gpus": "8xH100", "dtype": "fp8", "bf16_first": 2, "bf16_last": 1},
    ),
    "quantised when run": ("llama-3.1-8b", "tp2.dp4.z1.mbs1.gbs32", {"gpus": "8xA100-80", "dtype": "int8"}),
    "recurrences": ("mamba-codestral-7b", "tp2.dp4.z1.mbs1.gbs32", {"gpus": "8xH100"}),
    "a module behind the head": ("deepseek-v3", "tp4.pp4.ep16.dp16.z1.mbs1.gbs256", {"gpus": "256xH800"}),
}


def _job(name: str) -> Job:
    model, row, more = ASKED[name]
    found = estimate(model, row, **more)[0].job
    assert isinstance(found, Job)
    return found


def _seconds(stage: StageOperators, *, again: bool) -> float:
    return sum(cost.seconds for cost in stage.operators.values() if (cost.phase == "recompute") == again)


@pytest.mark.parametrize("name", ASKED)
def test_operators_sum_to_the_compute_of_every_stage(name: str) -> None:
    job = _job(name)
    stages = step_operators(job.plan, job.model, job.cluster, job.workload)
    run = plan_pricer(job.plan, job.model, job.cluster, job.workload).run(job.plan)
    parts = run.pipelines[0].columns.parts_s
    assert [_seconds(stage, again=False) for stage in stages] == pytest.approx(parts["compute"][0].tolist())
    assert [_seconds(stage, again=True) for stage in stages] == pytest.approx(parts["recompute"][0].tolist())


@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_quicker_than_its_device(name: str) -> None:
    job = _job(name)
    for stage in step_operators(job.plan, job.model, job.cluster, job.workload):
        for cost in stage.operators.values():
            if cost.phase != "recompute":
                assert 0 < cost.light_s(stage.hardware) <= cost.seconds, cost


def test_exchanges_inside_a_domain_stay_below_its_link() -> None:
    job = _job("dense")
    nominal = job.cluster.groups[0].domains[0].bandwidth_bytes_per_s
    messages = step_operators(job.plan, job.model, job.cluster, job.workload)[0].messages.values()
    inside = [message for message in messages if message.category == "tp"]
    assert {(message.ranks, message.domain) for message in inside} == {(2, 0)}
    assert all(0 < message.bus_bytes_per_s < nominal for message in inside)


def test_gradients_leave_in_buckets_that_are_all_of_a_stage() -> None:
    job = _job("dense")
    stage = step_operators(job.plan, job.model, job.cluster, job.workload)[0]
    run = plan_pricer(job.plan, job.model, job.cluster, job.workload).run(job.plan)
    parameters = float(run.pipelines[0].columns.dense_parameters[0, 0])
    shared = {message.collective: message for message in stage.messages.values() if message.category == "dp"}
    sums, gathers = shared["reduce_scatter"], shared["all_gather"]
    assert sums.ranks == gathers.ranks == 2
    assert sums.calls * sums.payload_bytes == pytest.approx(parameters * job.workload.precision.bytes_of("reduce"))
    assert gathers.calls * gathers.payload_bytes == pytest.approx(parameters * 2)


@pytest.mark.parametrize("sharding", ["z0", "z1"])
@pytest.mark.parametrize(("degrees", "domain"), [("tp8.dp2", 1), ("tp2.pp2.dp4", 0), ("tp4.dp4", 1)])
def test_gradients_cross_the_links_between_their_ranks(degrees: str, domain: int, sharding: str) -> None:
    """Between nodes where data ranks are on several, whether they share states or hold copies."""
    job = estimate("llama-3-8b", f"{degrees}.{sharding}.mbs1.gbs32", gpus="16xH100")[0].job
    assert isinstance(job, Job)
    messages = step_operators(job.plan, job.model, job.cluster, job.workload)[0].messages.values()
    assert {message.domain for message in messages if message.category == "dp"} == {domain}


def test_several_kinds_of_device_have_operators_of_their_own() -> None:
    job = plan("llama-3.1-8b", gpus="8xH100,8xA100-80", global_batch=128, top=1)[0].job
    assert isinstance(job, Job)
    stages = step_operators(job.plan, job.model, job.cluster, job.workload)
    peaks = {stage.group: stage.hardware.gemm_flop_per_s for stage in stages}
    assert set(peaks) == {"H100", "A100-80"}
    assert np.unique(list(peaks.values())).size == 2


def test_a_checkpoint_of_pytorch_stops_before_the_last_product() -> None:
    """PyTorch 2.1 is of October 2023; before, and under Megatron, whole layers are made again."""

    def again(software: str, recompute: str = "full") -> dict[str, float]:
        plan = f"tp2.dp8.fsdp.mbs1.rc-{recompute}.gbs32"
        found = estimate("llama-3-8b", plan, gpus="16xH100", software=software)[0].job
        assert isinstance(found, Job)
        stage = step_operators(found.plan, found.model, found.cluster, found.workload)[0]
        return {name: cost.flop for (_, name, phase, _), cost in stage.operators.items() if phase == "recompute"}

    stopped, whole = again("pytorch-eager@2023-10"), again("pytorch-eager@2023-09")

    assert whole.keys() - stopped.keys() == {"mlp down", "mlp residual"}
    assert all(whole[name] == pytest.approx(flop) for name, flop in stopped.items())
    assert {"mlp down", "mlp residual"} <= again("megatron-core").keys()
    assert again("xla").keys() == again("pytorch-compiled").keys() == stopped.keys()
    modules = "sel-core_attn-mlp"
    assert again("megatron-core", modules).keys() - again("xla", modules).keys() == {"mlp down"}
    assert again("xla", modules).keys() < stopped.keys()
