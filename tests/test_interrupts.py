"""A few of the moments of `python -m tests.interrupts`: the verbs that cost least."""

from __future__ import annotations

import pytest

from tests.interrupts import QUESTIONS, drawn, faults, undisturbed

CHEAP = ("export", "trace", "schedule", "validate", "gpus", "models")
MOMENTS = 5


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name.startswith(CHEAP)])
def test_a_verb_that_is_interrupted_ends_with_130_and_whole_files(name: str) -> None:
    lines, whole = undisturbed(QUESTIONS[name])
    found = list(faults(QUESTIONS[name], iter(drawn(lines, MOMENTS, 1)), whole, 1))
    assert len(found) == MOMENTS
    assert not list(filter(None, found))
