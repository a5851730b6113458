from __future__ import annotations

from math import log2

import pytest

from benchmarks.published_plans import own_pace_s, published_plans
from benchmarks.sailor_rule import Replica, UniformStage, uniform_step
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_pace import moves
from tests.planning.compose.cases import costs_of, kind, published_cases, tiny_profiles


@pytest.mark.parametrize("case", published_cases(), ids=lambda case: case["id"])
def test_published_plans_take_what_sailors_simulator_says(case: dict) -> None:
    costs = costs_of(case)
    plans = published_plans(case)
    assert len(plans) >= 4
    for plan in plans:
        step = uniform_step(costs, plan.stages, plan.micro_batch, case["global_batch"])
        assert step.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9), plan.name
        free_s = own_pace_s(costs, plan, case["global_batch"])
        assert free_s is None or free_s <= plan.step_time_s * (1 + 1e-9), plan.name


def test_the_rule_by_hand_on_two_stages() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 2), kind("Beta-12", 2)])
    stages = (
        UniformStage(0, 2, (Replica("Beta-12", 1),) * 2),
        UniformStage(2, 4, (Replica("Alpha-32", 1),) * 2),
    )
    step = uniform_step(costs, stages, 1, 16)
    # Layer times of the profile, ms: Beta 0.63 and 12.6 forward, Alpha 4.9, 4.9, 4.9 and 7.84; backward 2.1 as much.
    beta_s, alpha_s = 3.1 * (0.63 + 12.6) * 1e-3, 3.1 * (3 * 4.9 + 7.84) * 1e-3
    transfer_s = 8e6 / _link(8e6, 1.2)
    stage_s = [beta_s + transfer_s, alpha_s + 2 * transfer_s]
    payload = 4 * (3 * 12e6 + 40e6)
    assert step.pipeline_s == pytest.approx(7 * max(stage_s) + sum(stage_s), rel=1e-6)
    assert step.update_s == pytest.approx(5.5e-3)
    first = 2 * (4 * 52e6 / 2) / _link(4 * 52e6 / 2, 1.2)
    second = 2 * (payload / 2) / _link(payload / 2, 2.0)
    assert step.sync_s == pytest.approx(max(first, second), rel=1e-6)
    assert step.step_time_s == step.pipeline_s + step.update_s + step.sync_s


def _link(payload_bytes: float, c0: float) -> float:
    x = log2(payload_bytes / 1e6)
    return 1e9 * (-0.002 * x * x + 0.1 * c0 * x + c0)


def test_first_last_and_middle_stages_pay_their_own_transfers() -> None:
    assert moves([], []) == [0.0]
    assert moves([2.0], [2.0]) == [2.0, 4.0]
    assert moves([2.0, 3.0], [2.0, 3.0]) == [2.0, 5.0, 6.0]
    assert moves([2.0, 3.0, 4.0], [2.0, 3.0, 4.0]) == [4.0, 5.0, 7.0, 8.0]
    assert moves([2.0, 3.0], [1.0, 4.0]) == [2.0, 4.0, 8.0]


def test_a_stage_waits_for_its_slowest_replica() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 2), kind("Beta-12", 2)])
    mixed = UniformStage(0, 6, (Replica("Alpha-32", 1), Replica("Beta-12", 2)))
    slow = UniformStage(0, 6, (Replica("Beta-12", 2),) * 2)
    assert uniform_step(costs, (mixed,), 1, 8).pipeline_s == uniform_step(costs, (slow,), 1, 8).pipeline_s


def test_a_point_nobody_profiled_is_an_error() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 2)])
    with pytest.raises(KeyError):
        uniform_step(costs, (UniformStage(0, 6, (Replica("Alpha-32", 1),)),), 64, 64)
