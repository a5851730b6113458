"""Schedules as an axis of the search: every one of the catalogue against brute force."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

import meshwright as mw
from meshwright.schedules import DEFAULT_SCHEDULES, PLAN_SCHEDULES, SCHEDULES
from meshwright.specs import PlanRow
from meshwright.specs.row_text import parse_row
from tests.once import printed
from tests.search.spaces import CATALOGUE, SPACES


@cache
def everything() -> list[tuple[PlanRow, float, str]]:
    """Row, time and verdict of every plan, as brute force prices it."""
    plans = json.loads(printed("tests.search.brute", str(len(SPACES))))
    assert isinstance(plans, list)
    return [
        (parse_row(p["row"], devices=4, global_batch=16, schedules=tuple(SCHEDULES)), p["time_s"], p["fits"])
        for p in plans
    ]


@cache
def found() -> dict[str, dict[str, object]]:
    """What the search finds with all schedules and with each."""
    answers = json.loads(printed("tests.search.found"))
    assert isinstance(answers, dict)
    return answers


def of(*schedules: str) -> list[tuple[PlanRow, float, str]]:
    """The plans of a space with these schedules; one worker runs any exact one, and none else."""
    alone = any(SCHEDULES[name].exact_semantics for name in schedules)
    return [plan for plan in everything() if (alone if plan[0].pp == 1 else plan[0].schedule in schedules)]


def best_times(plans: list[tuple[PlanRow, float, str]]) -> list[float]:
    best: dict[tuple[int, ...], float] = {}
    for row, time_s, fits in plans:
        if fits == "yes":
            best[row.layout] = min(best.get(row.layout, np.inf), time_s)
    return sorted(best.values())[:3]


def test_the_space_holds_every_schedule_and_plans_that_do_not_fit() -> None:
    assert CATALOGUE.cluster.devices == 4
    assert {row.schedule for row, _, _ in everything() if row.pp > 1} == set(PLAN_SCHEDULES)
    assert {fits for _, _, fits in everything()} >= {"yes", "no"}
    assert all(SCHEDULES[name].exact_semantics for name in DEFAULT_SCHEDULES)


@pytest.mark.parametrize("name", ["all", *PLAN_SCHEDULES])
def test_the_best_plans_and_their_number_are_those_of_brute_force(name: str) -> None:
    plans = of(*PLAN_SCHEDULES) if name == "all" else of(name)
    answer = found()[name]
    assert answer["times"] == pytest.approx(best_times(plans), rel=1e-9)
    assert answer["space"] == answer["accounted"] == len(plans)


def test_steps_of_many_micro_batches_are_continued_from_short_ones() -> None:
    job = {"gpus": "8xH100", "seq_len": 2048, "global_batch": 4096}
    found = mw.plan("llama-3.1-8b", pin="pp=4,mbs=1,dp=2", schedule="zb-h1,chimera", top=2, **job)
    best = found.plans[0]
    # 2,048 micro-batches on 4 workers: the order of zb-h1 repeats, Chimera's units do not.
    assert "zb-h1" in best.name
    alone = mw.estimate("llama-3.1-8b", best.name, **job).plans[0]
    assert alone.estimate.step_time_s == pytest.approx(best.estimate.step_time_s)
    assert found.to_dict()["search"]["optimal"]
