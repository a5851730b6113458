"""Devices more are never slower: pairs of clusters that once differed, each by a cause of its own."""

from __future__ import annotations

from functools import cache

import pytest

from meshwright import plan
from meshwright.app.plans.job import plan_job
from meshwright.app.plans.mixed import mixed_search, plan_mixed
from meshwright.app.requests.plan import PlanRequest
from meshwright.planning.question.job_inputs import job_inputs
from tests.planning.compose.test_composer import asked

MODEL = "llama-3-8b"


@cache
def step_s(model: str, gpus: str, global_batch: int, seq_len: int | None = 2048) -> float:
    """Of the plan that stands first; searched once where several pairs have a cluster in common.

    Over several kinds without the verdict, which takes about a seventh more and changes no plan.
    """
    request = PlanRequest.read(
        {"model": model, "gpus": gpus, "global_batch": global_batch, "seq_len": seq_len, "top": 1}
    )
    inputs = job_inputs(request.job)
    if inputs.cluster.homogeneous:
        return plan_job(request, trainers=False).best.estimate.step_time_s
    return mixed_search(inputs, request).best.step_time_s


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
    ("model", "few", "many", "batch"),
    [
        # Seven share 16 sequences as ten and six at once, by themselves and beside any L40S.
        ("llama-3.2-3b", "7xH200", "7xH200,2xL40S", 16),
        ("llama-3.2-3b", "7xH200", "7xH200,8xL40S", 16),
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
    assert step_s(model, many, batch) <= step_s(model, few, batch) * (1 + 1e-9)


def test_seven_devices_share_a_batch_that_they_do_not_divide() -> None:
    """Four take ten sequences and three take six, each in one micro-batch; equal pipelines leave one of them idle."""
    unequal = plan("llama-3.2-3b", gpus="7xH200", global_batch=16, seq_len=2048, top=1).best
    equal = plan("llama-3.2-3b", gpus="6xH200", global_batch=16, seq_len=2048, top=1).best
    assert sorted(one.num_micro_batches for one in unequal.job.plan.pipelines) == [1, 1]
    assert unequal.estimate.step_time_s < 0.95 * equal.estimate.step_time_s
