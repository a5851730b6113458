"""Adapters on several kinds of device: the answer is a plan that one of the trainers can start."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InfeasibleError
from meshwright.planning.used_nodes import on_used_nodes
from meshwright.targets import FINE_TUNING, TARGETS

JOB = {"model": "qwen3-8b", "gpus": "2xRTX4090,2xA100-40", "global_batch": 32}


def asked(**more: object) -> PlanSet:
    found = plan(**{**JOB, "lora": "16", **more})
    assert isinstance(found, PlanSet)
    return found


def test_a_trainer_starts_the_best_plan_and_each_has_its_own() -> None:
    answer = asked(top=1)
    assert [one.trainer for one in answer.trainers] == list(FINE_TUNING)
    fitting = [one for one in answer.trainers if one.fits]
    best = min(fitting, key=lambda one: one.step_time_s or 0.0)
    assert answer.best.estimate.step_time_s == best.step_time_s
    assert not TARGETS[best.trainer].problems(on_used_nodes(answer.best.job))
    assert any(line.startswith(f"trainer: {TARGETS[best.trainer].title}") for line in answer.verdict.why)
    (export,) = [line for line in answer.verdict.why if "can run it: export --to" in line]
    assert export.endswith(f"export --to {best.trainer}")
    alone = asked(target=best.trainer, top=1)
    assert alone.best.estimate.step_time_s == answer.best.estimate.step_time_s
    assert not alone.trainers


def test_what_no_trainer_says_is_planned_of_no_framework() -> None:
    answer = asked(model="t5-base", top=1)
    assert not any(one.fits for one in answer.trainers)
    assert all(one.why for one in answer.trainers)
    assert any("no trainer known here" in warning for warning in answer.warnings)


def test_what_fits_nowhere_is_repaired() -> None:
    with pytest.raises(InfeasibleError, match="offload"):
        asked(model="llama-3.1-70b", gpus="1xRTX4090,1xRTX3090")
