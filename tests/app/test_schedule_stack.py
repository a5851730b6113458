"""Several schedules of one size side by side: each as it is alone, all problems together."""

from __future__ import annotations

import pytest

from meshwright.app.schedule import run_schedule
from meshwright.app.schedule_stack import run_schedules
from meshwright.errors import InputError, UnsupportedError


def test_each_is_what_it_is_alone() -> None:
    stack = run_schedules(["1f1b", "zb-h1", "hanayo"], 4, 8, weight_s=0.5, transfer_s=0.1)
    alone = [run_schedule(name, 4, 8, weight_s=0.5, transfer_s=0.1) for name in ("1f1b", "zb-h1", "hanayo")]
    assert stack.to_dict()["schedules"] == [run.to_dict() for run in alone]
    assert repr(stack).startswith("ScheduleStack(1f1b: ")


def test_settings_go_to_the_schedules_that_have_them() -> None:
    stack = run_schedules(["1f1b", "hanayo"], 4, 8, parameters={"waves": 2})
    assert [run.v for run in stack.runs] == [1, 4]


def test_all_problems_are_said_together() -> None:
    with pytest.raises(InputError) as caught:
        run_schedules(["zb-h2", "1f1b", "dualpipe"], 4, 3, parameters={"waves": 2})
    assert [problem.field for problem in caught.value.problems] == ["m", "m", "waves"]
    with pytest.raises(UnsupportedError, match="hanayoo"):
        run_schedules(["hanayoo", "1f1b"], 4, 8)
