"""Numbers of Python that a step reads: which places are found, and when they have changed."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from meshwright.compiler.python_effects.state import PythonState

RATE = 0.1
MODULE = types.ModuleType("settings")
MODULE.rate = 0.1  # type: ignore[attr-defined]


class Settings:
    depth = 2

    def __init__(self) -> None:
        self.rate, self.unread = 0.1, 0

    @property
    def asked(self) -> float:
        raise AssertionError("code of the user's runs in the step alone")

    def step(self, x: float) -> float:
        return x * self.rate * self.depth + self.asked


SETTINGS = Settings()


def helper(x: float) -> float:
    return x * RATE


def through_a_helper(x: float) -> float:
    return helper(x)


def through_a_module(x: float) -> float:
    def inner(x: float) -> float:
        return x * float(MODULE.rate)

    return inner(x)


def through_an_object(x: float) -> float:
    return x * SETTINGS.rate


def hidden(x: float) -> float:
    def inner(SETTINGS: Settings) -> float:
        return SETTINGS.rate

    return x + len(str(inner))


@pytest.mark.parametrize(
    ("step", "where", "name", "seen"),
    [
        (through_a_helper, globals(), "RATE", "RATE was 0.1 and is 0.2"),
        (through_a_module, vars(MODULE), "rate", "MODULE.rate was 0.1 and is 0.2"),
        (through_an_object, vars(SETTINGS), "rate", "SETTINGS.rate was 0.1 and is 0.2"),
        (SETTINGS.step, vars(SETTINGS), "rate", "self.rate was 0.1 and is 0.2"),
        (SETTINGS.step, vars(SETTINGS), "unread", ""),
        (through_a_helper, vars(SETTINGS), "rate", ""),
    ],
)
def test_a_number_that_changes_is_said_where_the_step_reads_it(
    step: Callable[..., Any], where: dict[str, Any], name: str, seen: str
) -> None:
    held = PythonState(step)
    assert held.changed() == []
    before = where[name]
    where[name] = 0.2
    try:
        said = held.changed()
    finally:
        where[name] = before
    assert len(said) == bool(seen)
    assert all(one.startswith(seen) and "test_state.py:" in one for one in said)


def test_a_variable_around_a_step_is_followed() -> None:
    rate, kept = 0.1, [1]

    def step(x: float) -> float:
        return x * rate + len(kept)

    held = PythonState(step)
    rate = 0.2
    kept.append(2)
    assert [one.split(":")[0] for one in held.changed()] == ["rate was 0.1 and is 0.2"]
    assert [one.split(":")[0] for one in held.grown()] == ["kept had 1 entries and has 2"]


def test_what_is_no_number_any_more_has_changed_and_what_is_equal_has_not() -> None:
    rate: Any = float("nan")

    def step(x: float) -> float:
        return x * rate

    held = PythonState(step)
    rate = float("nan")
    assert held.changed() == []
    rate = None
    assert len(held.changed()) == 1
