"""The bound of a step against everything that can be priced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.every_plan import Axes, EveryPlan, small_job
from benchmarks.more_devices import gap_parts
from meshwright import estimate, plan
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import NONE, Item
from meshwright.fields.job import JobFields
from meshwright.planning.compose.sources.native.bound import layer_ways, least_step_s
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.search.axes import PLAIN_WAY, ways
from meshwright.search.grid import Grid
from meshwright.search.space import Space
from meshwright.strategies import CONTEXTS
from tests.planning.compose.test_composer import asked

ENDLESS = ("pipedream-2bw",)
"""A schedule whose sequences may end in the step behind."""
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
    ("llama-3-8b", "tp1.pp8.dp1.mbs1.gbs8.vpp2.zb-v", "8xH100", {}),
    ("llama-3-8b", "tp8.pp1.dp1.mbs1.gbs1", "8xH100", {}),
    ("llama-3-8b", "tp2.cp4.pp1.dp1.mbs1.gbs1", "8xA100-80", {}),
    ("deepseek-v3", "tp2.pp16.dp16.ep32.z1.mbs1.gbs512", "512xH100", {"dtype": "fp8"}),
)


@pytest.mark.parametrize(("model", "plan", "gpus", "given"), PLANS)
def test_no_plan_is_quicker_than_the_bound(model: str, plan: str, gpus: str, given: dict) -> None:
    best = estimate(model, plan, gpus=gpus, **given)[0]
    job = best.job
    devices = [(hardware_of(group, job.workload), group.devices) for group in job.cluster.groups]
    bound_s = least_step_s(job.model, job.workload, devices, schedules=(best.row.schedule,) if best.row else None)
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

    def bound_s(*devices: tuple[object, int], schedules: tuple[str, ...] | None = None) -> float:
        least_s = least_step_s(
            inputs.model,
            inputs.workload,
            list(devices),
            schedules=schedules,
        )
        return least_s - always_s

    # Twice the devices take half as long, unless that is too short for a sequence.
    assert bound_s((first, 4), schedules=ENDLESS) == pytest.approx(bound_s((first, 2), schedules=ENDLESS) / 2)
    assert bound_s((first, 4)) >= bound_s((first, 2)) / 2
    assert bound_s((first, 1), (first, 3)) == pytest.approx(bound_s((first, 4)))
    assert bound_s((first, 2), (second, 2)) < bound_s((first, 2)) < bound_s((second, 2))


@pytest.mark.parametrize(("gpus", "batch"), [("1xH200,1xL40S", 1), ("2xH100,1xA100-80", 2), ("2xH100,2xA100-80", 1)])
def test_no_plan_of_few_sequences_is_quicker_than_the_bound(gpus: str, batch: int) -> None:
    """Every plan there is, by an enumerator that shares nothing with the bound but prices."""
    inputs = small_job("llama-3.2-1b", gpus, batch)
    bound_s = NativeSource(inputs, lambda part: Space()).bound_s()
    best_s, _ = EveryPlan(inputs, Axes(tensor=(1, 2), context=(1, 2), shardings=("z0", "fsdp"))).best()
    assert 0.2 * best_s < bound_s <= best_s


def test_what_the_bound_leaves_out_of_a_step_adds_up_to_its_gap() -> None:
    found = plan("llama-3.2-1b", gpus="1x2xH100,1x1xL40S", global_batch=64, seq_len=2048, top=2)
    bound_s = found.searched.bound_s if found.searched else None
    assert bound_s
    parts = gap_parts(found, bound_s)
    best_s = min(one.estimate.step_time_s for one in found.plans)
    assert sum(parts.values()) == pytest.approx(best_s / bound_s - 1)
    assert parts["slower compute"] > 0
    assert parts["optimizer"] > 0
    assert parts["unequal devices"] >= 0


def test_devices_that_stand_idle_are_a_part_of_the_gap() -> None:
    few = plan("llama-3.2-1b", gpus="1x2xH100,1x1xL40S", global_batch=1, seq_len=2048, top=2)
    best = min(few.plans, key=lambda one: one.estimate.step_time_s)
    used = sum(stage.devices for stage in best.estimate.stages)
    assert few.searched
    assert few.searched.bound_s
    parts = gap_parts(few, few.searched.bound_s)
    assert used < 3
    assert parts["idle devices"] > 0


def test_few_sequences_cannot_use_all_devices_as_well_as_many() -> None:
    few, many = (asked("32xH100,32xA100-80", batch, 32) for batch in (16, 1024))
    each = []
    for inputs in (few, many):
        devices = [(hardware_of(group, inputs.workload), group.devices) for group in inputs.cluster.groups]
        bounds = [least_step_s(inputs.model, inputs.workload, devices, schedules=names) for names in (None, ENDLESS)]
        each.append(bounds[0] / bounds[1])
    assert each[0] > 1.02
    assert each[1] == pytest.approx(1.0)


DRAWN = {
    name: job_inputs(JobFields(model=name, gpus=gpus, global_batch=256, seq_len=2048))
    for name, gpus in (
        ("llama-3.2-1b", "64xL40S"),
        ("llama-3.1-70b", "64xH100"),
        ("mixtral-8x22b", "64xH200"),
        ("qwen3-30b-a3b", "64xA100-80"),
    )
}
KNOWN = {
    (name, whole): layer_ways(
        job.model, job.workload, hardware_of(job.cluster.groups[0], job.workload), 64, whole=whole
    )
    for name, job in DRAWN.items()
    for whole in (False, True)
}


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(sorted(DRAWN)),
    degrees=st.tuples(*[st.sampled_from((1, 2, 4, 8)) for _ in range(4)]),
    mbs=st.integers(1, 24),
    kind=st.integers(0, len(CONTEXTS) - 1),
    overlap=st.integers(0, 2),
    way=st.integers(0, len(ways()) - 1),
    whole=st.booleans(),
)
def test_no_strategy_runs_a_layer_better_than_every_way(
    name: str, degrees: tuple[int, ...], mbs: int, kind: int, overlap: int, way: int, whole: bool
) -> None:
    job, known = DRAWN[name], KNOWN[name, whole]
    tp, cp, ep, etp = degrees
    experts = max((layer.mlp.routed_experts for layer in job.model.kinds() if layer.mlp.routed_experts), default=1)
    if experts == 1 or ep * etp > 64:
        ep = etp = 1
    one = np.ones(1, dtype=np.int64)
    context = np.ones((1, len(CONTEXTS)), dtype=np.int64)
    context[0, kind] = cp
    kept = way if ep > 1 and ways()[way][2] == PLAIN_WAY[2] else 0
    grid = Grid(
        tp=tp * one,
        overlap=(overlap if tp > 1 else 0) * one,
        context=context,
        ep=ep * one,
        etp=etp * one,
        pp=one,
        dp=8 * one,
        mbs=mbs * one,
        m=one,
        way=kept * one,
    )
    items = tuple(Item("layer", layer, NONE) for layer in job.model.kinds())
    hardware = hardware_of(job.cluster.groups[0], job.workload)
    costs = item_costs(items, grid.strategies(job.workload), job.model, hardware, job.workload)
    once_s = (costs.forward_s + costs.backward_s)[0]
    later = not whole or bool(grid.paired[0])
    passed_s = once_s - costs.weight_gradient_s[0] * later
    device_s = once_s * tp * cp / mbs
    for number in range(len(items)):
        better = (known.device_s[:, number] <= device_s[number]) & (known.passed_s[:, number] <= passed_s[number])
        assert better.any(), (name, tp, cp, ep, etp, mbs, kind, overlap, ways()[kept], whole)
