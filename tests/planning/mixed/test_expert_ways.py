"""How tokens reach experts in plans over several kinds of device."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.planning.mixed.expert_ways import of_other_ways
from meshwright.search.space import Space
from meshwright.specs.job import Job

ASKED = {"gpus": "16xA100-80,8xH100", "global_batch": 128, "top": 1}


def test_tokens_are_sent_once_where_that_is_quicker() -> None:
    free = plan("qwen3-30b-a3b", **ASKED)[0]
    plain = plan("qwen3-30b-a3b", **ASKED, pin="dispatcher=alltoall")[0]
    assert {strategy.expert.dispatcher for strategy in free.plan.strategies} == {"deduplicated"}
    assert {strategy.expert.dispatcher for strategy in plain.plan.strategies} == {"alltoall"}
    assert free.estimate.step_time_s < 0.98 * plain.estimate.step_time_s


def test_dense_models_have_no_other_way() -> None:
    job = plan("llama-3.2-1b", gpus="2xH100,2xA100-80", global_batch=16, top=1)[0].job
    assert isinstance(job, Job)
    assert not list(of_other_ways(job.plan, Space(), job.workload))


def test_stages_that_keep_to_an_order_of_exchanges_are_composed_of_shardings_that_have_one() -> None:
    first = plan("qwen3-30b-a3b", **ASKED, pin="epfirst")[0]
    spread = [strategy for strategy in first.plan.strategies if strategy.expert.ep > 1]
    assert spread
    assert all(strategy.expert.prioritised and strategy.data.zero < 3 for strategy in spread)
    free = plan("qwen3-30b-a3b", **ASKED, methods="ep_order")[0]
    assert free.estimate.step_time_s <= 1.01 * first.estimate.step_time_s


@pytest.mark.parametrize("overlap", ["none", "paired-wgrad"])
def test_only_what_is_pinned_is_tried(overlap: str) -> None:
    job = plan("qwen3-30b-a3b", **ASKED)[0].job
    assert isinstance(job, Job)
    held = Space(pins=(("dispatcher", ("deduplicated",)), ("ep_overlap", (overlap,))))
    for other in of_other_ways(job.plan, held, job.workload):
        assert {strategy.expert.overlap for strategy in other.strategies if strategy.expert.ep > 1} == {overlap}
