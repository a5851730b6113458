"""One job over several kinds of device, as users ask for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import estimate, plan
from meshwright.app.plan_mixed import plan_mixed
from meshwright.app.plan_set import PlanSet
from meshwright.app.requests.plan import PlanRequest
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from tests.planning.compose.test_composer import asked

MODEL, GPUS, BATCH = "llama-3-8b", "16xH100,16xA100-80", 64


@pytest.fixture(scope="module")
def plans() -> PlanSet:
    return plan(MODEL, gpus=GPUS, global_batch=BATCH)


def test_mixing_beats_each_kind_alone(plans: PlanSet) -> None:
    mixing = plans.mixing
    assert mixing is not None
    assert {one.devices for one in mixing.alone} == {"16 H100", "16 A100-80"}
    assert all(one.step_time_s is not None for one in mixing.alone)
    assert mixing.best_alone is not None
    assert mixing.best_alone.devices == "16 H100"
    assert plans[0].estimate.step_time_s < (mixing.best_alone.step_time_s or 0.0)
    assert f"{100 * (mixing.gain or 0.0):.0f}%" in plans.verdict.text
    assert "  " not in plans.verdict.text


def test_every_plan_fits_and_trains_the_batch(plans: PlanSet) -> None:
    for entry in plans:
        assert entry.estimate.fits == "yes"
        assert entry.plan.global_batch == BATCH
        assert entry.plan.num_layers == plans.model.num_layers
        assert entry.plan.devices <= plans.cluster.devices


def test_the_answer_says_who_holds_what_and_what_it_rests_on(plans: PlanSet) -> None:
    said = " ".join(plans.verdict.why)
    for words in ("pipeline 0:", "slowest stage:", "16 A100-80 alone", "sensitivity:", "run it"):
        assert words in said


def test_a_plan_that_a_framework_starts_stands_first_where_it_is_hardly_slower() -> None:
    found = plan("llama-3.1-8b", gpus="8xH200,16xH100", global_batch=512)
    assert found.mixing is not None
    assert dict(found.mixing.frameworks)["megatron"] == ""
    assert found.mixing.passed_over_s is not None
    assert found.mixing.passed_over_s < found.best.estimate.step_time_s < found.mixing.passed_over_s * 1.02
    assert "which megatron cannot run" in " ".join(found.verdict.why)
    runner_up = found.verdict.runner_up
    assert runner_up is not None
    quicker = runner_up.step_time_s < found.best.estimate.step_time_s
    assert runner_up.loses_because.startswith("megatron cannot run it; ") == quicker
    assert quicker == (runner_up.step_time_s == found.mixing.passed_over_s)


def test_of_other_aims_no_plan_is_passed_over() -> None:
    found = plan("llama-3.1-8b", gpus="8xH200,16xH100", global_batch=512, objective="cost", price=2.0)
    assert found.mixing is not None
    assert found.mixing.passed_over_s is None
    assert "quickest found" not in " ".join(found.verdict.why)


def test_elsewhere_it_is_named_with_what_it_loses() -> None:
    found = plan("qwen3-235b-a22b", gpus="64xA100-80,16xH800", global_batch=128, top=1)
    assert found.mixing is not None
    assert found.mixing.launched is not None
    assert found.mixing.launched.target == "megatron"
    assert "megatron can run a plan of" in " ".join(found.verdict.why)


def test_a_framework_starts_a_plan_beside_a_node_with_a_dead_device() -> None:
    found = plan("llama-3.1-8b", gpus="16xH100,1x7xH100,8xA100-80", global_batch=64, target="megatron", top=1)
    assert found.mixing is not None
    assert dict(found.mixing.frameworks)["megatron"] == ""
    assert len({stage.group for stage in found.best.estimate.stages}) > 1
    assert len({stage.devices for stage in found.best.estimate.stages}) == 1


def test_a_plan_of_several_kinds_is_read_and_priced_again(plans: PlanSet, tmp_path: Path) -> None:
    path = plans[0].save(tmp_path / "plan.json")
    again = estimate(plans.model, plan=str(path))
    assert again[0].estimate.step_time_s == plans[0].estimate.step_time_s
    assert json.dumps(plans.to_dict(), allow_nan=False)


def test_a_slow_kind_is_left_out_and_said_so() -> None:
    plans = plan(MODEL, gpus="8xH100,1x4xV100-16", global_batch=16, dtype="fp16")
    idle = plans.cluster.devices - plans[0].plan.devices
    assert idle == 0 or any(" idle" in warning for warning in plans.warnings)
    assert plans.mixing is not None
    assert plans.mixing.best_alone is not None
    assert plans[0].estimate.step_time_s <= (plans.mixing.best_alone.step_time_s or 0.0)


def test_what_is_forbidden_stands_in_no_stage() -> None:
    plans = plan(MODEL, gpus=GPUS, global_batch=BATCH, forbid=("cp", "sharding"))
    used = {strategy for entry in plans for strategy in entry.plan.strategies}
    assert all(strategy.cp == 1 and strategy.data.zero == 0 for strategy in used)


def test_cost_needs_a_price_of_every_kind() -> None:
    with pytest.raises(InputError, match="no price is known for H100"):
        plan(MODEL, gpus=GPUS, global_batch=BATCH, objective="cost")


def test_the_front_is_that_of_one_kind() -> None:
    with pytest.raises(UnsupportedError, match="--pareto"):
        plan(MODEL, gpus=GPUS, global_batch=BATCH, pareto=True)


def test_nothing_fits() -> None:
    with pytest.raises(InfeasibleError, match="8 x A100-80"):
        plan("deepseek-v3", gpus="8xA100-80,8xH100", global_batch=8)


@pytest.mark.parametrize(
    ("before", "after", "batch", "layers"),
    [
        ("5xA100-40,4xL40S", "5xA100-40,5xL40S", 16, 16),
        ("4xA100-80,1xH100", "7xA100-80,1xH100", 8, 12),
        ("2xA100-40,2xL40S,2xA100-80", "5xA100-40,2xL40S,2xA100-80", 8, 8),
        ("4xL40S,3xH100", "7xL40S,3xH100", 16, 8),
    ],
)
def test_devices_that_a_small_batch_does_not_divide_over_are_left_idle(
    before: str, after: str, batch: int, layers: int
) -> None:
    few, many = (
        plan_mixed(
            asked(gpus, batch, layers),
            PlanRequest.read({"model": MODEL, "gpus": gpus, "top": 1, "pin": ("sharding=z0,z1", "recompute=none")}),
        )
        for gpus in (before, after)
    )
    assert many.plans[0].estimate.step_time_s <= few.plans[0].estimate.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("few", "many"),
    [
        # 51 nodes are cut into stages of 1, 3, 17 or 51 nodes; 48 or 50 of them fit the batch better.
        ("50x8xB200,55x8xH800", "51x8xB200,55x8xH800"),
        # Twenty nodes are divided between pipelines of sixteen and of four, which 23 have to leave room for.
        ("32x8xH200,20x8xH100", "32x8xH200,23x8xH100"),
    ],
)
def test_an_odd_node_more_is_never_slower(few: str, many: str) -> None:
    fewer, more = (plan("llama-3.1-8b", gpus=gpus, global_batch=1024, seq_len=2048, top=1) for gpus in (few, many))
    assert more.best.estimate.step_time_s <= fewer.best.estimate.step_time_s * (1 + 1e-9)


def test_nodes_that_leave_an_uneven_rest_are_never_slower() -> None:
    """Eleven nodes beside sixteen share 256 sequences unevenly: eight of them end together."""
    asked = {"global_batch": 256, "top": 1}
    fewer, more = (plan("llama-3.1-8b", gpus=f"16x8xL40S,{nodes}x8xA100-80", **asked) for nodes in (8, 11))
    assert more.best.estimate.step_time_s <= fewer.best.estimate.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("model", "few", "many", "batch"),
    [
        ("llama-3.2-3b", "7xH200,2xL40S", "7xH200,8xL40S", 16),  # seven share 16 sequences unevenly, beside any L40S
        ("llama-3.2-1b", "1xA100-80,4xL40S", "1xA100-80,5xL40S", 8),  # four of five by themselves
        # Eight devices are shared by micro-batches of any size, and so is what ten of them leave without two.
        ("llama-3.2-3b", "6xH100,2xL40S", "6xH100,4xL40S", 32),
        ("llama-3.2-1b", "4xA100-80,4xH100", "4xA100-80,5xH100", 64),
        # 26 + 6 sequences in one ZeRO group over eight and two; no such shares over eight and three are as quick.
        ("llama-3.2-1b", "8xH800,2xH100", "8xH800,3xH100", 32),
        ("llama-3.2-3b", "4xH200,4xA100-80", "4xH200,6xA100-80", 32),
        # Five, and two in turn, of seven by themselves: no set of both kinds near them tells which are worth the most.
        ("llama-3.2-1b", "7xH100,2xL40S", "7xH100,4xL40S", 32),
        # 17 + 5 x 3 sequences on two and six: far from the first of such sets with fractions of micro-batches.
        ("llama-3.2-3b", "2xH200,5xA100-80", "2xH200,7xA100-80", 32),
        # Four, and three in turn, in micro-batches that divide the batch; few sets of both kinds are as quick.
        ("llama-3.2-1b", "7xH100,1xL40S", "7xH100,4xL40S", 32),
        # 22 + 10 sequences in one ZeRO group over eight and four, with context ranks on four of five.
        ("llama-3.2-3b", "8xH200,4xH100", "8xH200,5xH100", 32),
    ],
)
def test_devices_of_one_node_more_are_never_slower(model: str, few: str, many: str, batch: int) -> None:
    fewer, more = (plan(model, gpus=gpus, global_batch=batch, seq_len=2048, top=1) for gpus in (few, many))
    assert more.best.estimate.step_time_s <= fewer.best.estimate.step_time_s * (1 + 1e-9)


def test_a_node_that_leaves_an_odd_number_is_never_slower() -> None:
    """Twenty-six nodes are divided into sixteen-device stages of two pipelines, which twenty-seven have room for."""
    asked = {"global_batch": 1024, "seq_len": 2048, "top": 1}
    fewer, more = (plan("mixtral-8x22b", gpus=f"32x8xH100,{nodes}x8xH800", **asked) for nodes in (26, 27))
    assert more.best.estimate.step_time_s <= fewer.best.estimate.step_time_s * (1 + 1e-9)


def test_one_strategy_over_fewer_nodes_is_looked_at_where_more_of_them_stay_idle() -> None:
    """Ten of eleven nodes take the least; with all eleven no framework's plan comes near."""
    fewer, more = (
        plan("llama-3.1-70b", gpus=f"16x8xH100,{n}x8xL40S", global_batch=1024, seq_len=2048) for n in (10, 11)
    )
    assert more.best.estimate.step_time_s <= fewer.best.estimate.step_time_s * (1 + 1e-9)


def test_more_ways_to_recompute_take_no_chunks_away() -> None:
    """Three chunks of a stage promise less than they keep, and sequences that recompute stood before them."""
    asked = {"gpus": "16xH100,16xA100-80", "global_batch": 256}
    free, held = (plan("mixtral-8x7b", **asked, pin=pin) for pin in ((), ("recompute=none",)))
    assert free.best.estimate.step_time_s <= held.best.estimate.step_time_s * 1.001


def test_unlike_kinds_share_a_small_batch_by_unlike_micro_batches() -> None:
    found = plan("llama-3.2-3b", gpus="4xH100,4xA100-80", global_batch=8, top=1).best
    alone = plan("llama-3.2-3b", gpus="4xH100", global_batch=8, top=1).best
    # 0.939 with the strategies that are the quickest by themselves, 0.928 with the best beside each other.
    assert found.estimate.step_time_s < 0.935 * alone.estimate.step_time_s
    sequences = [one.micro_batch * found.plan.data_degree(one) for one in found.plan.pipelines]
    assert sequences == [6, 2]
    assert found.estimate.step_time_s < 0.95 * alone.estimate.step_time_s
