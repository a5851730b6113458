"""How a study is asked for: which tuners, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.fields.study import StudyFields
from meshwright.search.tuners.options import tune_options
from meshwright.search.tuners.run import TUNERS


def chosen(*tuners: str, **given: Any) -> list[tuple[str, str | None, str | None]]:
    found = tune_options(StudyFields(tuners=tuners, **given)).tuners
    return [(one.tuner, one.algorithm, one.scheduler) for one in found]


def refused(**given: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        tune_options(StudyFields(**given))
    return [problem.what for problem in caught.value.problems]


def test_a_tuner_is_said_with_its_algorithm_and_scheduler() -> None:
    assert chosen("optuna") == [("optuna", None, None)]
    assert chosen(" optuna:tpe ") == [("optuna", "tpe", None)]
    assert chosen("ray-tune:optuna+asha") == [("ray-tune", "optuna", "asha")]
    assert chosen("random,optuna", "smac", compare=True) == [
        (name, None, None) for name in ("random", "optuna", "smac")
    ]


def test_nobody_named_is_random_alone_and_everyone_who_is_installed_to_compare() -> None:
    assert chosen() == [("random", None, None)]
    found = tune_options(StudyFields(compare=True))
    installed = [name for name, tuner in TUNERS.items() if tuner.installed]
    assert [one.label for one in found.tuners] == installed
    assert sorted([*installed, *(name for name, _ in found.left_out)]) == sorted(TUNERS)


def test_seeds_count_up_from_the_first() -> None:
    assert tune_options(StudyFields(seed=7, repeats=3, compare=True)).seeds == (7, 8, 9)
    assert tune_options(StudyFields(seed=7)).seeds == (7,)


def test_everything_that_does_not_go_together_is_said_at_once() -> None:
    assert refused(tuners=("random", "optuna"), repeats=2, resume=True) == [
        "2 tuners",
        "--repeats is 2",
        "--resume without --storage",
    ]
    assert refused(compare=True, optimum=False) == ["--compare without the optimum"]
    assert chosen("random", optimum=False) == [("random", None, None)]
    with pytest.raises(UnsupportedError, match="optunna"):
        chosen("optunna")
