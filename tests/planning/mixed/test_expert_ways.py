"""How tokens reach experts in plans over several kinds of device."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import plan
from meshwright.app.plans.plan_set import RankedPlan
from meshwright.estimate.rules.legality import plan_problems
from meshwright.fields.job import JobFields
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed import expert_ways, native
from meshwright.planning.mixed.expert_ways import WAY_GAIN, of_other_ways, quicker_ways
from meshwright.planning.mixed.source import Launcher
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.search.space import Space
from meshwright.specs.job import Job

ASKED = {"gpus": "16xA100-80,8xH100", "global_batch": 128, "top": 1}


@cache
def of_any_way() -> RankedPlan:
    """The quickest plan where nothing is pinned."""
    return plan("qwen3-30b-a3b", **ASKED)[0]


def test_tokens_are_sent_once_where_that_is_quicker() -> None:
    free = of_any_way()
    plain = plan("qwen3-30b-a3b", **ASKED, pin="dispatcher=alltoall")[0]
    assert {strategy.expert.dispatcher for strategy in free.plan.strategies} == {"deduplicated"}
    assert {strategy.expert.dispatcher for strategy in plain.plan.strategies} == {"alltoall"}
    assert free.estimate.step_time_s < 0.98 * plain.estimate.step_time_s


@pytest.mark.parametrize("gpus", ["8xH100,8xA100-80", "20xH100"])
def test_every_plan_is_legal_with_what_it_runs_beside_its_exchanges(gpus: str) -> None:
    answer = plan("qwen3-30b-a3b", gpus=gpus, global_batch=128)
    for one in answer:
        job = one.job
        assert isinstance(job, Job)
        assert not plan_problems(job.plan, job.model, job.workload.seq_len), one.title


def test_dense_models_have_no_other_way() -> None:
    job = plan("llama-3.2-1b", gpus="2xH100,2xA100-80", global_batch=16, top=1)[0].job
    assert isinstance(job, Job)
    assert not list(of_other_ways(job.plan, Space(), job.workload))


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "olmoe-1b-7b", "qwen3-30b-a3b"])
def test_stages_that_keep_to_an_order_of_exchanges_are_composed_of_shardings_that_have_one(model: str) -> None:
    first = plan(model, **ASKED, pin="epfirst")[0]
    spread = [strategy for strategy in first.plan.strategies if strategy.expert.ep > 1]
    assert spread
    assert all(strategy.expert.prioritised and strategy.data.zero < 3 for strategy in spread)
    free = plan(model, **ASKED, methods="ep_order")[0]
    assert free.estimate.step_time_s <= 1.01 * first.estimate.step_time_s


@pytest.mark.parametrize("overlap", ["none", "paired-wgrad"])
def test_only_what_is_pinned_is_tried(overlap: str) -> None:
    job = of_any_way().job
    assert isinstance(job, Job)
    held = Space(pins=(("dispatcher", ("deduplicated",)), ("ep_overlap", (overlap,))))
    for other in of_other_ways(job.plan, held, job.workload):
        assert {strategy.expert.overlap for strategy in other.strategies if strategy.expert.ep > 1} == {overlap}


@pytest.mark.parametrize("way", ["alltoall", "deepep"])
@pytest.mark.parametrize("step_s", [None, 1.0 - 2 * WAY_GAIN, 1.0 - WAY_GAIN, 1.0 - WAY_GAIN / 2, 1.0, 1.0 + WAY_GAIN])
def test_another_way_has_to_gain_and_the_plain_one_only_to_tie(
    way: str, step_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_of(*ways: str) -> Any:
        return SimpleNamespace(strategies=[SimpleNamespace(expert=SimpleNamespace(dispatcher=one)) for one in ways])

    # One strategy that is not plain makes the whole plan a special one.
    other = plan_of("alltoall", way)
    monkeypatch.setattr(expert_ways, "of_other_ways", lambda plan, space, workload: iter([other]))
    priced = None if step_s is None else SimpleNamespace(step_time_s=step_s)
    one: Any = SimpleNamespace(plan=plan_of("alltoall"), step_time_s=1.0)
    workload: Any = None
    found = list(quicker_ways(one, Space(), workload, lambda plan: priced if plan is other else None))
    enough_s = 1.0 if way == "alltoall" else 1.0 - WAY_GAIN
    assert found == ([priced] if step_s is not None and step_s <= enough_s else [])


def test_a_framework_is_offered_no_way_that_it_refuses() -> None:
    inputs = job_inputs(JobFields(model="qwen3-30b-a3b", gpus="8xA100-80,8xH100", global_batch=64))
    source = native.NativeSource(inputs, lambda cluster: Space())
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]

    def dispatchers(one: Any) -> set[str]:
        return {strategy.expert.dispatcher for strategy in one.plan.strategies}

    refusals: list[Any] = [lambda job: (), lambda job: () if dispatchers(job) == {"alltoall"} else ("no such way",)]
    free, plain = (
        source.of_one_strategy(parts, Launcher(target="megatron", refuses=refuses, space=Space()))
        for refuses in refusals
    )
    assert any(dispatchers(one) != {"alltoall"} for one in free), "there is a way to refuse"
    assert all(dispatchers(one) == {"alltoall"} for one in plain)
    for found in (free, plain):
        assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
