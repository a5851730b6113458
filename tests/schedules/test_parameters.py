"""Settings of schedules: declared once, checked, and read back from one-line names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.schedules import SCHEDULES, Schedule, parameters, schedule_named
from meshwright.schedules.named.hanayo import Hanayo
from meshwright.schedules.parameters import ScheduleParameter


def every_setting() -> list[tuple[Schedule, ScheduleParameter]]:
    return [(schedule, one) for schedule in SCHEDULES.values() for one in schedule.parameters()]


@pytest.mark.parametrize(("schedule", "one"), every_setting(), ids=lambda value: value.name)
def test_every_setting_has_one_word_in_the_name_and_is_read_back(schedule: Schedule, one: ScheduleParameter) -> None:
    value = {"whole": 3, "flag": True, "choice": (one.choices or ("",))[-1], "workers": "0_1_1_0"}[one.kind]
    changed = replace(schedule, **{one.name: value})
    assert changed.token == f"{schedule.name}-{one.word(value)}"
    assert schedule_named(changed.token) == changed
    assert schedule_named(schedule.token) == schedule
    assert one.help.strip()


def test_settings_of_one_name_stand_once_with_all_schedules_that_take_them() -> None:
    found = {one.name: one for one in parameters()}
    assert found["group"].schedules == ("interleaved", "interleaved-zb")
    assert (found["warmup"].kind, found["warmup"].choices, found["warmup"].default) == ("choice", ("pa", "pb"), "pa")
    assert {(one.name, one.kind) for _, one in every_setting()} == {(one.name, one.kind) for one in found.values()}


RANGED = [(schedule, one) for schedule, one in every_setting() if one.kind != "flag"]


@pytest.mark.parametrize(("schedule", "one"), RANGED, ids=lambda value: value.name)
def test_a_value_outside_the_range_is_refused_by_its_name(schedule: Schedule, one: ScheduleParameter) -> None:
    wrong = one.low - 1 if one.kind == "whole" else "neither"
    problems = replace(schedule, **{one.name: wrong}).problems(4, 8, 2)
    assert [problem.field for problem in problems] == [one.name]
    assert problems[0].fix


def test_a_name_with_an_unknown_setting_says_which_there_are() -> None:
    with pytest.raises(InputError, match=r"'wavs2' is no setting of hanayo[\s\S]*waves2, admit2, backward_ticks2"):
        schedule_named("hanayo-wavs2")
    with pytest.raises(InputError, match="zb-v has no settings"):
        schedule_named("zb-v-raw")
    with pytest.raises(UnsupportedError, match="unknown schedule"):
        schedule_named("hana-waves2")


def test_an_alias_takes_settings_too() -> None:
    assert schedule_named("dapple-pb").token == "1f1b-pb"
    assert schedule_named("hanayo-waves2-backward_ticks1") == Hanayo(waves=2, backward_ticks=1)
