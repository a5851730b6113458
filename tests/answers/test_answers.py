"""Every question still has the answer that was recorded for it, but for corrections that say why not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import pytest

from tests.answers.ask import Answer, ask
from tests.answers.questions import MADE, QUESTIONS, QUICK, verb_of
from tests.answers.recording import CORRECTIONS, differences, read_corrections, read_recording, same, unexplained
from tests.answers.reduce import Value, columns_of
from tests.mutants_in_place import ASKED

SHOWN = 20
"""Differences that a failure names."""

VERBS = {
    *("plan", "estimate", "check", "explain", "compare", "trace", "schedule", "export", "size", "tune", "validate"),
    *("calibrate", "run", "verify", "doctor", "models list", "models show", "models add", "gpus list", "gpus show"),
    *("gpus add", "clusters show", "calculon estimate", "calculon search", "calculon what-if", "calculon tune"),
    *("calculon sweep", "sweep"),
}
"""All but `profile`, which measures the machine."""


@cache
def recorded() -> dict[str, Answer]:
    return read_recording()


@pytest.fixture(scope="module")
def answer_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Answer]]:
    """Asks in a process of its own, where array shapes are not checked on every call: that takes ten times as long."""
    folder = tmp_path_factory.mktemp("answers")
    if ASKED in os.environ:
        yield lambda line: ask(line, folder)  # here is where code has been exchanged
        return
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        yield lambda line: process.submit(ask, line, folder).result()


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=line, marks=() if line in QUICK else pytest.mark.slow) for line in QUESTIONS]
)
def test_the_answer_is_the_recorded_one(answer_to: Callable[[str], Answer], line: str) -> None:
    found = unexplained(line, recorded()[line], answer_to(line), read_corrections())
    told = "\n  ".join(map(str, found[:SHOWN]))
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    assert not found, f"{line}\n  {told}{more}\n(numbers that were wrong: say why in {CORRECTIONS.name})"


def test_every_question_is_recorded_once_and_nothing_else() -> None:
    assert len(QUESTIONS) == len(set(QUESTIONS))
    assert list(recorded()) == list(QUESTIONS)


def test_every_verb_is_asked() -> None:
    assert {verb_of(line) for line in QUESTIONS} >= VERBS


def test_corrections_say_why_and_are_of_questions_that_are_asked() -> None:
    for correction in read_corrections():
        assert correction.reason
        assert any(correction.allows(line, correction.paths[0]) for line in QUESTIONS), correction


def test_files_are_made_by_lines_that_name_them() -> None:
    for name, line in MADE.items():
        assert name in line.split()


def test_numbers_and_names_stay_and_words_and_seconds_taken_go() -> None:
    plans = [{"name": "tp8", "step_time_s": 1.5, "text": "quick"}, {"name": "two words", "step_time_s": 2.0}]
    document = {"plans": plans, "timing": {"search_s": 0.1}, "shape: too slow": 3, "tied": None}
    assert columns_of(document) == {"plans.*.name": ["tp8"], "plans.*.step_time_s": [1.5, 2.0], "tied": [None]}


@pytest.mark.parametrize("changed", [{700: 5.0}, {30: -1.0, 31: 4.0}, {0: 1.0 + 1e-6}])
def test_a_change_anywhere_in_a_long_column_is_seen(changed: dict[int, float]) -> None:
    column = [1.0 + place % 3 for place in range(1000)]
    before, after = columns_of({"of": column}), columns_of({"of": [changed.get(n, x) for n, x in enumerate(column)]})
    assert len(before["of.*"]) < 50
    assert not differences(Answer(0, before), Answer(0, before))
    assert differences(Answer(0, before), Answer(0, after))


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1, 1.0, True),
        (1.3e-18, 0.0, True),
        (3.4e-6, 3.5e-6, False),
        (1.0, 1.0 + 1e-8, False),
        (1, True, False),
        (0, None, False),
        ("yes", "tight", False),
    ],
)
def test_values_are_the_same_up_to_rounding(old: Value, new: Value, equal: bool) -> None:
    assert same(old, new) == equal


def test_what_differs_is_said_with_its_path() -> None:
    before = Answer(0, {"fits": ["yes"], "mfu": [0.5], "ranks": [1], "step_time_s": [2.0, 3.0]})
    after = Answer(0, {"fits": ["yes"], "more": [1], "ranks": [1, 2], "step_time_s": [2.0, 3.3]})
    assert [str(one) for one in differences(before, after)] == [
        "mfu: is gone, was [0.5]",
        "ranks: 1 -> 2 values: [1] -> [1, 2]",
        "step_time_s: 1 of 2 differ, first at 1: 3.0 -> 3.3 (+0.1)",
    ]
    assert [one.path for one in differences(before, Answer(2, {"code": ["MW200"]}))] == ["exit"]
