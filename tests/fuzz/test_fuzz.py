"""A short run through every door; `make fuzz` is the long one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.cases import Door, case_of, fault_of
from tests.fuzz.doors import DOORS
from tests.fuzz.readers import READERS

SHORT = (*DOORS, *(door for door in READERS if door.name in ("read-http", "read-mcp")))

EXAMPLES = 12
BUDGET_S = 60.0
"""Far above any answer of the short run: other work on the machine must not fail it."""


@pytest.mark.parametrize("door", SHORT, ids=lambda door: door.name)
@settings(max_examples=EXAMPLES)
@given(chance=st.randoms(use_true_random=True))
def test_an_input_is_answered_or_refused(door: Door, chance: Random) -> None:
    assert not fault_of(door.draw(chance), BUDGET_S)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_a_kept_input_is_the_one_that_was_drawn(door: Door) -> None:
    case = door.draw(Random(7))
    again = case_of(case.to_json())
    assert again.words == case.words
    assert dict(again.files) == dict(case.files)
    assert repr(dict(again.values)) == repr(dict(case.values))
    assert door.draw(Random(7)).to_json() == case.to_json()


def test_an_uncaught_error_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr("tests.fuzz.cases.main", broken)
    assert fault_of(DOORS[0].draw(Random(0)), BUDGET_S).startswith("uncaught: KeyError")
