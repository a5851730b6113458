"""Tuning as a verb: studies held against the exact optimum, several tuners with one budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import estimate, plan, tune
from meshwright.app.tune import TuneAnswer
from meshwright.app.verbs import python_verb
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.planning.for_target import refusals_in_search
from meshwright.search.tuners.run import TUNERS
from meshwright.search.tuners.study import TrialLog
from meshwright.targets import TARGETS

calculon_tune = python_verb("calculon tune")
SMALL = {"gpus": "2xH100", "global_batch": 8}


@pytest.fixture(scope="module")
def compared() -> TuneAnswer:
    names = [name for name in ("random", "optuna") if TUNERS[name].installed]
    return tune("gpt2", **SMALL, tuners=names, compare=True, trials=25, repeats=2)


def test_the_optimum_is_what_plan_finds_and_no_trial_is_better() -> None:
    answer = tune("gpt2", **SMALL, trials=40)
    best = plan("gpt2", **SMALL, top=1)
    assert answer.optimum is not None
    assert answer.optimum.name == best[0].name
    assert answer.optimum.value == pytest.approx(best[0].estimate.step_time_s)
    assert answer.size == best.certificate.space
    document = answer.to_dict()
    assert document["schema"] == "meshwright.tune/1"
    assert len(document["trials"]) == len(document["timing"]["studies"][0]["at_s"]) == 40
    assert document["regret"] >= 0
    assert document["best"]["value"] == pytest.approx(answer.optimum.value * (1 + document["regret"]))


def test_a_study_of_executions_is_held_against_the_exact_search() -> None:
    answer = calculon_tune("gpt3-13B", "a100_80g", procs=8, batch=8, trials=30, pin="tensor_par=1,2,4")
    assert answer.optimum is not None
    assert answer.optimum.space == answer.size
    regret = answer.to_dict()["regret"]
    assert regret is None or regret >= 0


def test_a_comparison_has_the_studies_of_every_tuner(compared: TuneAnswer) -> None:
    document = compared.to_dict()
    assert document["schema"] == "meshwright.tune-comparison/1"
    seeds = {study["label"]: 0 for study in document["studies"]}
    for study in document["studies"]:
        seeds[study["label"]] += 1
        assert study["count"] == document["budget"] == 25
    assert set(seeds.values()) == {2}


def test_a_tuner_that_breaks_is_left_out_of_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.search.tuners import with_random

    plain = with_random.tune

    def breaks(log: TrialLog, **how: object) -> None:
        if log.target == 3:
            raise OSError("no room for trials")
        plain(log, **how)

    monkeypatch.setattr(with_random, "tune", breaks)
    if not TUNERS["optuna"].installed:
        pytest.skip("there is no other tuner")
    answer = tune("gpt2", **SMALL, tuners=["random", "optuna"], compare=True, trials=3)
    assert [judged.label for judged in answer.studies] == ["optuna"]
    assert answer.left_out == (("random", "random stopped: OSError: no room for trials"),)


def test_by_default_all_installed_tuners_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("optuna", "smac", "ray-tune"):
        monkeypatch.setitem(TUNERS, name, replace(TUNERS[name], needs=("no_such_library",)))
    answer = tune("gpt2", **SMALL, compare=True, trials=3)
    assert [judged.label for judged in answer.studies] == ["random"]
    assert {tuner for tuner, _ in answer.left_out} == {"optuna", "smac", "ray-tune"}
    assert all("pip install 'meshwright[" in why for _, why in answer.left_out)


def test_where_only_tight_plans_fit_those_are_tuned_and_where_none_does_it_says_so() -> None:
    with pytest.raises(InfeasibleError, match="fits the memory"):
        tune("llama-3.1-405b", gpus="1xH100", trials=1)
    with pytest.raises(InfeasibleError):
        calculon_tune("gpt3-175B", "a100_80g", procs=1, batch=1, trials=1, pin="weight_offload=false")


def test_without_the_optimum_the_space_is_not_searched() -> None:
    answer = tune("gpt2", **SMALL, trials=4, optimum=False)
    assert answer.optimum is None
    assert answer.to_dict()["regret"] is None
    with pytest.raises(InputError, match="needs the optimum"):
        answer.figure()


def test_what_is_wrong_is_said_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        tune(
            "gpt2",
            **SMALL,
            tuners=["optuna:tpe+asha", "smacc"],
            trials=-1,
            repeats=2,
            resume=True,
            storage=None,
            optimum=False,
        )
    text = str(caught.value)
    for part in ("scheduler 'asha'", "unknown tuner 'smacc'", "trials", "--repeats", "--resume", "2 tuners"):
        assert part in text
    with pytest.raises(UnsupportedError, match="did you mean"):
        tune("gpt2", **SMALL, tuners="raytune")
    with pytest.raises(InputError, match="SQLite"):
        tune("gpt2", **SMALL, storage="mysql://here")


def test_schedules_beyond_the_default_space_are_not_tuned() -> None:
    with pytest.raises(InputError, match="search the others with `plan`"):
        tune("llama-3.1-8b", gpus="8xH100", schedule="zb-v")


def test_adapters_are_tuned_among_plans_that_the_best_trainer_runs() -> None:
    job = {"model": "qwen3-8b", "gpus": "4xA100-40", "lora": "16", "global_batch": 64}
    answer = tune(**job, trials=60)
    best = plan(**job)
    trainer = next(one for one in best.trainers if one.step_time_s == best.best.estimate.step_time_s)
    assert answer.space.endswith(f"under {TARGETS[trainer.trainer].title}")
    assert answer.optimum is not None
    assert answer.optimum.value == pytest.approx(best.best.estimate.step_time_s, rel=0.02)
    refuses = refusals_in_search(trainer.trainer)
    for trial in answer.studies[0].study.trials:
        if trial.outcome.status == "ok":
            line = estimate(plan=trial.outcome.name, **job, target=trainer.trainer)
            assert not refuses(line.best.job)
            assert line.best.estimate.step_time_s == pytest.approx(trial.outcome.value)
            assert trial.outcome.value >= answer.optimum.value * (1 - 1e-9)
