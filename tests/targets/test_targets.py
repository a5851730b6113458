"""Targets by the names that people use."""

from __future__ import annotations

import pytest

from meshwright.errors import UnsupportedError
from meshwright.targets import _MEANT, TARGETS, TRAINERS, target_named


@pytest.mark.parametrize(
    ("name", "target"), [("TRL", "accelerate"), ("Megatron-LM", "megatron"), ("titan", "torchtitan")]
)
def test_a_target_answers_to_the_names_of_what_it_starts(name: str, target: str) -> None:
    assert target_named(name) is TARGETS[target]


@pytest.mark.parametrize("name", TRAINERS.names())
def test_a_trainer_whose_files_are_only_read_names_the_nearest_that_are_written(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"no files are written for .*\n.*check.*\n.*nearest: ") as error:
        target_named(name)
    nearest = error.value.problems[0].fix.removeprefix("nearest: ").split(", ")
    assert set(nearest) <= set(TARGETS)


def test_a_name_of_several_trainers_names_them() -> None:
    with pytest.raises(UnsupportedError, match=r"'nemo' is not one target\n.*several.*\n.*bridge, automodel"):
        target_named("nemo")
    with pytest.raises(UnsupportedError, match=r"unknown target 'xyz'"):
        target_named("xyz")


def test_every_name_that_is_no_target_leads_to_targets() -> None:
    assert {target for targets in _MEANT.values() for target in targets} <= set(TARGETS)
    assert set(TRAINERS) <= set(_MEANT)
