"""A search tells how far it is, and nobody is told outside the block that watches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import meshwright as mw
from meshwright.budget import within
from meshwright.planning.for_target import TIE
from meshwright.search.watching import SearchProgress, Watch, each_a_part, found, part, watched, watcher


@pytest.mark.parametrize(
    "question",
    [
        {"model": "llama-3-8b", "gpus": "16xH100", "top": 1},
        {"model": "llama-3-8b", "gpus": "16xH100", "schedule": "all"},
        {"model": "llama-3-8b", "gpus": "8xH100,8xA100-80"},
        {"model": "llama-3-8b", "gpus": "8xH100,8xA100-80,8xL40S"},
    ],
)
def test_a_search_tells_of_its_whole_and_ends_with_its_answer(question: dict[str, Any]) -> None:
    told: list[SearchProgress] = []
    with watched(told.append):
        answer = mw.plan(**question)
    assert watcher() is None
    for before, after in pairwise(told):
        assert before.share <= after.share <= 1
        assert before.space <= after.space
        assert before.decided <= after.decided
        assert before.best_s is None or (after.best_s is not None and after.best_s <= before.best_s)
        assert before.left_s is None or (after.left_s is not None and after.left_s <= before.left_s)
    assert all(one.decided <= one.space for one in told)
    last = told[-1]
    assert last.share == pytest.approx(1)
    assert last.best_s is not None
    # The answer may be a plan that ties with the quickest and that a framework runs.
    assert last.best_s >= answer.best.estimate.step_time_s * (1 - TIE)


def test_spaces_of_one_question_add_up_and_parts_stand_behind_each_other() -> None:
    told: list[SearchProgress] = []
    with watched(told.append):
        watch = watcher()
        assert isinstance(watch, Watch)
        with part(0.5):
            for size in each_a_part([10, 30]):
                space = watch.space()
                space.tell(size, size // 2)
                found(f"of {size}", float(size))
                space.tell(size, size)
        with part(0.5), part(0.5):
            watch.space().tell(100, 0)
    assert [round(one.share, 4) for one in told] == [0.125, 0.25, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.75, 1.0]
    assert (told[-1].space, told[-1].decided) == (140, 40)
    assert (told[-1].best, told[-1].best_s) == ("of 10", 10.0)


def test_what_is_left_is_unknown_at_first_and_never_more_than_the_time_limit() -> None:
    told: list[SearchProgress] = []
    with watched(told.append), within(time_s=3.0):
        watch = watcher()
        assert watch is not None
        space = watch.space()
        space.tell(1_000_000, 500_000)
        watch._begun_s -= 100.0
        space.tell(1_000_000, 600_000)
    assert told[0].left_s is None
    assert told[1].left_s is not None
    assert told[1].left_s <= 3.0
