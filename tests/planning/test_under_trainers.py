"""A question under each trainer: what it runs is what `--target` finds, and the best of all is answered."""

from __future__ import annotations

from functools import cache, partial

import pytest

from meshwright import plan
from meshwright.app.plans.job import plan_job
from meshwright.app.plans.plan_set import PlanSet
from meshwright.app.requests.plan import PlanRequest
from meshwright.errors import InfeasibleError, MeshwrightError
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.planning.objectives import QUICKEST
from meshwright.planning.run_by import ASKED
from meshwright.planning.under_trainers import Searched, best_trainer, under_trainers
from meshwright.specs.software import DEFAULT_SOFTWARE
from meshwright.targets import FINE_TUNING, TARGETS

NO_TRAINERS = {"torch-csv", "run"}
"""A file of a schedule, and this machine."""
QUESTIONS = [
    {"model": "qwen3-8b", "gpus": "2xRTX4090", "lora": "16"},
    {"model": "qwen3-8b", "gpus": "1xRTX4090", "lora": "16"},
    {"model": "llama-3.1-70b", "gpus": "8xH100", "lora": "r=16,base=nf4"},
    {"model": "qwen3-0.6b", "gpus": "1xRTX4090"},
    {"model": "llama-3.1-8b", "gpus": "8xA100-80"},
    {"model": "qwen3-30b-a3b", "gpus": "8xH100"},
    {"model": "gemma-2-9b", "gpus": "8xH100"},
]


@cache
def asked(**more: object) -> PlanSet:
    """The answer to a question; several tests look at one."""
    found = plan(**more)
    assert isinstance(found, PlanSet)
    return found


def of_target(question: dict[str, str], target: str) -> tuple[PlanSet | None, MeshwrightError | None]:
    """The same question of one target: its answer, or its error."""
    try:
        return asked(**question, target=target), None
    except MeshwrightError as error:
        return None, error


def test_the_list_of_trainers_names_all_that_have_adapters() -> None:
    question = {"model": "qwen3-0.6b", "gpus": "1xH100", "lora": "8"}
    able = {name for name in TARGETS if of_target(question, name)[0] is not None}
    assert able - NO_TRAINERS == set(FINE_TUNING)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: " on ".join(one.values()))
def test_each_trainer_has_the_plan_that_its_own_question_finds(question: dict[str, str]) -> None:
    answer = asked(**question)
    assert [one.trainer for one in answer.trainers] == list(FINE_TUNING if "lora" in question else ASKED)
    fitting = [one for one in answer.trainers if one.fits]
    if "lora" in question:
        assert answer.best.estimate.step_time_s == min(one.step_time_s or 0.0 for one in fitting)
    for one in answer.trainers:
        own, refused = of_target(question, one.trainer)
        if own is not None:
            assert not own.trainers
            assert (one.plan, one.step_time_s) == (own.best.title, own.best.estimate.step_time_s)
        elif isinstance(refused, InfeasibleError):
            assert not one.fits
            assert str(one.plan) in str(refused)
            assert (one.peak_memory_bytes or 0.0) > (one.capacity_bytes or 0.0)
        else:
            assert one.plan is None
            assert one.why


def test_the_answer_is_one_that_its_trainer_runs() -> None:
    answer = asked(model="llama-3.1-70b", gpus="8xH100", lora="r=16,base=nf4")
    target = next(one.value for one in answer.assumptions if one.name == "target")
    able = [name for name in FINE_TUNING if not TARGETS[name].problems(answer.best.job)]
    assert any(TARGETS[name].title in target for name in able)
    (said,) = [line for line in answer.verdict.why if line.startswith("trainer: ")]
    assert any(said.startswith(f"trainer: {TARGETS[name].title}, with the best plan of 7") for name in able)
    assert answer.best.export(able[0]).files


def test_pins_and_objectives_hold_under_every_trainer() -> None:
    request = PlanRequest.read({"model": "qwen3-8b", "gpus": "4xA100-40", "lora": "16", "pin": "tp=2"})
    found = under_trainers(request.job, request.space, QUICKEST, FINE_TUNING, top=2)
    assert all("tp2" in one.plan.plan.split(".") for one in found if one.plan.fits and one.plan.plan)
    assert not next(one.plan for one in found if one.plan.trainer == "llamafactory").fits
    best = best_trainer(found, QUICKEST)
    assert best is not None
    lean = asked(model="qwen3-8b", gpus="4xA100-40", lora="16", objective="memory")
    assert (
        lean.best.estimate.peak_memory_bytes
        <= asked(model="qwen3-8b", gpus="4xA100-40", lora="16").best.estimate.peak_memory_bytes
    )


def test_where_no_trainer_fits_the_plan_of_least_memory_is_repaired() -> None:
    with pytest.raises(InfeasibleError, match="base=nf4"):
        plan("llama-3.1-70b", gpus="1xRTX4090", lora="16")


def test_a_framework_that_is_stated_or_many_devices_have_no_table_of_trainers() -> None:
    for more in ({"gpus": "1xH100", "software": "megatron-core"}, {"gpus": "16xH100"}):
        answer = asked(model="gpt2", **more)
        assert not answer.trainers
        assert "trainers" not in answer.to_dict()


def test_all_weights_are_priced_as_asked_and_the_best_of_a_trainer_is_named() -> None:
    answer = asked(model="qwen3-30b-a3b", gpus="8xH100")
    assert answer.workload.software == DEFAULT_SOFTWARE
    (said,) = [one.facts for one in answer.verdict.reasons if one.kind == "run by"]
    best = min((one for one in answer.trainers if one.fits), key=lambda one: one.step_time_s or 0.0)
    assert (said["best"]["trainer"], said["best"]["plan"]) == (best.trainer, best.plan)
    assert f"best trainer: {TARGETS[best.trainer].title}" in "\n".join(answer.verdict.why)
    own = asked(model="qwen3-30b-a3b", gpus="8xH100", target=best.trainer)
    assert own.workload.software == TARGETS[best.trainer].software


def test_what_no_trainer_runs_is_answered_with_what_each_lacks() -> None:
    answer = asked(model="llama-3.2-1b", gpus="4xH100", schedule="zb-v", pin="pp=4")
    assert [one.trainer for one in answer.trainers] == list(ASKED)
    assert not any(one.fits for one in answer.trainers)
    assert answer.best.row is not None
    assert answer.best.row.schedule == "zb-v"


def test_a_trainer_without_what_is_pinned_says_so_first() -> None:
    answer = plan("llama-3.1-8b", gpus="8xH100", global_batch=32, pin=["pp=8"])
    said = {one.trainer: one.why for one in answer.trainers}
    assert said["accelerate"] == "pp is 2: there is no key for pp"


def test_who_only_wants_plans_gets_the_same_without_asking_trainers() -> None:
    request = PlanRequest.read({"model": "llama-3.1-8b", "gpus": "8xH100", "global_batch": 32})
    asked, alone = plan_job(request), plan_job(request, trainers=False)
    assert (len(asked.trainers) > 0, alone.trainers) == (True, ())
    assert [one.estimate for one in asked.plans] == [one.estimate for one in alone.plans]


@pytest.mark.parametrize("gpus", ["1xRTX4090", "1xH100,1xA100-80"])
def test_trainers_priced_under_stated_software_say_so(gpus: str) -> None:
    own, stated = (asked(model="llama-3.2-1b", gpus=gpus, lora="16", **more) for more in ({}, {"software": "unsloth"}))
    said = "all priced with the kernels and memory of unsloth, as stated"
    assert [any(said in why for why in one.verdict.why) for one in (own, stated)] == [False, True]


@pytest.mark.parametrize("gpus", ["2xRTX4090", "1xH100,1xA100-80"])
def test_trainers_that_do_not_run_on_the_stated_software_stand_beside_it_as_they_are(gpus: str) -> None:
    question = {"model": "llama-3.2-1b", "gpus": gpus, "lora": "16"}
    own, stated = asked(**question), asked(**question, software="torchtitan")
    assert stated.workload.software == "torchtitan"
    (said,) = (why for why in stated.verdict.why if why.startswith("trainer: torchtitan"))
    assert "run on torchtitan, as stated; bridge, " in said
    assert stated.trainers == own.trainers
    (titan,) = (one for one in own.trainers if one.trainer == "torchtitan")
    assert stated.best.estimate.step_time_s == titan.step_time_s


def test_what_would_fit_under_the_stated_software_is_the_own_plan_of_a_trainer_of_it() -> None:
    with pytest.raises(InfeasibleError) as refused:
        asked(model="llama-3.1-8b", gpus="1xRTX3060", lora="16", software="torchtitan")
    assert "torchtitan" in str(refused.value)


def test_trainers_behind_the_first_are_asked_for_quicker_plans_alone_where_one_is_enough() -> None:
    job, names = JobFields(model="qwen3-30b-a3b", gpus="16xH100"), ("torchtitan", "megatron", "bridge", "automodel")
    ask = partial(under_trainers, job, SpaceFields(), QUICKEST, names, top=2, best_alone=True)
    every = ask()
    asked: list[str] = []

    def enough(best: Searched) -> bool:
        asked.append(best.trainer)
        return False

    best_of_all, best = best_trainer(every, QUICKEST), best_trainer(ask(enough=enough), QUICKEST)
    assert best is not None
    assert best_of_all is not None
    assert best.table_row == best_of_all.table_row
    assert asked == ["torchtitan", *[best.trainer] * 2]
    assert len(ask(enough=lambda best: True)) == 1
