"""The bound of a step against everything that can be priced."""

from __future__ import annotations

import pytest

from meshwright import estimate
from meshwright.estimate.hardware import hardware_of
from meshwright.planning.compose.sources.native.bound import least_step_s
from meshwright.planning.mixed.native import NativeSource
from meshwright.search.space import Space
from tests.planning.compose.test_composer import asked

PLANS = (
    ("gpt2", "tp1.pp1.dp1.mbs16.gbs64", "1xH100", {}),
    ("gpt2", "tp1.pp1.dp8.z1.mbs64.gbs512", "8xA100-80", {"dtype": "fp16"}),
    ("llama-3-8b", "tp1.pp1.dp8.fsdp.mbs1.gbs64", "8xH100", {}),
    ("llama-3-8b", "tp8.pp1.dp1.mbs4.gbs64", "8xH100", {"attention_kernel": "materialised"}),
    ("llama-3-8b", "tp2.cp2.pp2.dp1.mbs2.gbs32.rc-full", "8xH100", {"dtype": "fp8"}),
    ("llama-3-8b", "tp1.pp8.dp1.mbs1.gbs32.vpp4", "8xH100", {"seq_len": 16384}),
    ("llama-3-8b", "tp4.pp2.dp1.z1.mbs8.gbs256", "8xB200", {"optimizer": "sgd"}),
    ("mixtral-8x22b", "tp2.pp8.dp4.ep4.z1.mbs1.gbs128", "64xH100", {}),
    ("mixtral-8x22b", "tp1.pp8.dp8.ep8.z1.mbs1.gbs128", "64xH100", {"expert_load": 1.4}),
    ("deepseek-v3", "tp2.pp16.dp16.ep32.z1.mbs1.gbs512", "512xH100", {"dtype": "fp8"}),
)


@pytest.mark.parametrize(("model", "plan", "gpus", "given"), PLANS)
def test_no_plan_is_quicker_than_the_bound(model: str, plan: str, gpus: str, given: dict) -> None:
    best = estimate(model, plan, gpus=gpus, **given)[0]
    job = best.job
    devices = [(hardware_of(group, job.workload), group.devices) for group in job.cluster.groups]
    bound_s = least_step_s(job.model, job.workload, devices)
    assert 0.1 * best.estimate.step_time_s < bound_s <= best.estimate.step_time_s


@pytest.mark.parametrize("gpus", ["1xH100,3xL40S", "4xH100,2xA100-40", "6xA100-80", "2xH100,2xA100-80,2xL40S"])
def test_no_composition_of_a_mixed_cluster_is_quicker_than_the_bound(gpus: str) -> None:
    for batch, layers in ((8, 8), (24, 32)):
        inputs = asked(gpus, batch, layers)
        source = NativeSource(inputs, lambda part: Space())
        found = source.composed(source.whole, 12)
        assert found
        assert min(one.step_time_s for one in found) >= source.bound_s()


def test_devices_that_are_added_lower_the_bound_and_equal_ones_share_it() -> None:
    inputs = asked("2xH100,2xA100-80", 8, 32)
    first, second = (hardware_of(group, inputs.workload) for group in inputs.cluster.groups)
    always_s = first.software.step_s

    def bound_s(*devices: tuple[object, int]) -> float:
        return least_step_s(inputs.model, inputs.workload, list(devices)) - always_s  # type: ignore[arg-type]

    assert bound_s((first, 4)) == pytest.approx(bound_s((first, 2)) / 2)
    assert bound_s((first, 1), (first, 3)) == pytest.approx(bound_s((first, 4)))
    assert bound_s((first, 2), (second, 2)) < bound_s((first, 2)) < bound_s((second, 2))
