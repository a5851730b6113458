"""Settings of a schedule's own: what they may be, and how a schedule with settings is named on one line.

    token = name { "-" setting }      interleaved-group8, v-half-raw, 1f1b-pb, ftpipe-0_1_1_0

A number follows its setting's name, a flag is its name alone, a choice or a list of workers its value alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from typing import Any, Literal

from meshwright.errors import Problem

Value = int | float | str | bool | None
WORKERS = re.compile(r"[0-9]{1,5}(_[0-9]{1,5}){1,4095}", re.ASCII)
"""Workers one behind the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleParameter:
    """One setting."""

    name: str = ""
    kind: Literal["whole", "flag", "choice", "workers"]
    default: Value
    """None: the schedule chooses."""
    help: str
    """What it is, in a few words."""
    low: int = 1
    """Least whole number."""
    choices: tuple[str, ...] = ()
    tries: tuple[Value, ...] = ()
    """Values besides the default that a search tries where the schedule is named without settings."""
    schedules: tuple[str, ...] = ()
    """Names of those that take it."""

    def problem(self, owner: str, value: object) -> Problem | None:
        """Why a schedule cannot take a value; None if it can.

        Args:
            owner: name of the schedule.
            value: the value of the setting.
        """
        if value == self.default and type(value) is type(self.default):
            return None
        what = f"{owner}: {self.name} = {value!r}"
        if self.kind == "whole":
            if isinstance(value, int) and not isinstance(value, bool) and value >= self.low:
                return None
            why, fix = f"a whole number, {self.low} or more", f"{self.name} = {self.low}"
        elif self.kind == "flag":
            if isinstance(value, bool):
                return None
            why, fix = "it is set or not", f"{self.name} = {not self.default}"
        elif self.kind == "workers":
            if isinstance(value, str) and WORKERS.fullmatch(value):
                return None
            why, fix = "numbers of workers from 0 on, joined by _", f"{self.name} = 0_1_1_0"
        else:
            if value in self.choices:
                return None
            why, fix = f"one of {', '.join(self.choices)}", f"{self.name} = {' or '.join(self.choices)}"
        return Problem(what=what, why=f"{self.help.rstrip('.')}: {why}", fix=fix, field=self.name)

    @property
    def example(self) -> Value:
        """A value that is not the default."""
        if self.kind == "workers":
            return "0_1_1_0"
        return self.choices[-1] if self.choices else max(self.low, 2)

    def word(self, value: Value) -> str:
        """The value as part of a schedule's one-line name."""
        if self.kind in ("choice", "workers"):
            return str(value)
        return self.name if self.kind == "flag" else f"{self.name}{value}"

    def read(self, word: str) -> Value:
        """The value that such a part says; None where it says another setting or none."""
        if self.kind == "choice":
            return word if word in self.choices else None
        if self.kind == "workers":
            return word if WORKERS.fullmatch(word) else None
        if self.kind == "flag":
            return not self.default if word == self.name else None
        digits = word.removeprefix(self.name) if word.startswith(self.name) else ""
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def whole(default: int | None, help: str, *, low: int = 1, tries: tuple[int, ...] = ()) -> Any:
    """A field that is a whole number.

    Args:
        default: the value where nothing is said; None: the schedule chooses.
        help: what it is, in a few words.
        low: least legal value.
        tries: values besides the default that searches try.
    """
    return _declared(ScheduleParameter(kind="whole", default=default, help=help, low=low, tries=tries))


def flag(help: str, *, tried: bool = False) -> Any:
    """A field that is off by default.

    Args:
        help: what it does, in a few words.
        tried: whether searches try it set too.
    """
    return _declared(ScheduleParameter(kind="flag", default=False, help=help, tries=(True,) if tried else ()))


def workers(help: str) -> Any:
    """A field that is a list of workers, such as `0_1_1_0`; None where the schedule chooses.

    Args:
        help: what it is, in a few words.
    """
    return _declared(ScheduleParameter(kind="workers", default=None, help=help))


def choice(choices: tuple[str, ...], help: str) -> Any:
    """A field that takes one of some words, the first by default.

    Args:
        choices: the words.
        help: what it is, in a few words.
    """
    return _declared(ScheduleParameter(kind="choice", default=choices[0], help=help, choices=choices))


def _declared(parameter: ScheduleParameter) -> Any:
    return field(default=parameter.default, metadata={"parameter": parameter})


@cache
def _of_class(owner: type) -> tuple[ScheduleParameter, ...]:
    return tuple(
        replace(item.metadata["parameter"], name=item.name, schedules=(owner.name,))  # type: ignore[attr-defined]
        for item in fields(owner)
        if "parameter" in item.metadata
    )


def parameters_of(owner: Any) -> tuple[ScheduleParameter, ...]:
    """The settings that a schedule declares, in the order of its fields.

    Args:
        owner: a schedule or its class.
    """
    return _of_class(owner if isinstance(owner, type) else type(owner))


def together(declared: Iterable[ScheduleParameter]) -> tuple[ScheduleParameter, ...]:
    """Settings of many schedules by name, each once with all schedules that take it.

    Args:
        declared: the parameters that each schedule declares; those of one name are of one kind.
    """
    found: dict[str, ScheduleParameter] = {}
    for one in declared:
        known = found.get(one.name, replace(one, schedules=()))
        found[one.name] = replace(
            known,
            low=min(known.low, one.low),
            choices=tuple(dict.fromkeys((*known.choices, *one.choices))),
            schedules=(*known.schedules, *one.schedules),
        )
    return tuple(found.values())


def tried_of(schedule: Any) -> tuple[Any, ...]:
    """A schedule with every combination of the settings that a search tries and that go together, as it is first.

    Args:
        schedule: any.
    """
    axes = [(one.name, (getattr(schedule, one.name), *one.tries)) for one in parameters_of(schedule) if one.tries]
    names = [name for name, _ in axes]
    made = (replace(schedule, **dict(zip(names, values, strict=True))) for values in product(*(own for _, own in axes)))
    return tuple(one for one in made if not one.contradictions())


def token_of(schedule: Any) -> str:
    """A schedule on one line: its name and the settings that differ from their defaults.

    Args:
        schedule: any.
    """
    said = ((one, getattr(schedule, one.name)) for one in parameters_of(schedule))
    return "-".join([schedule.name, *(one.word(value) for one, value in said if value != one.default)])


def read_settings(schedule: Any, text: str) -> tuple[dict[str, Value], list[str]]:
    """The settings that the words behind a schedule's name say, and the words that say none.

    Args:
        schedule: the schedule that is named.
        text: words joined by `-`.
    """
    declared = parameters_of(schedule)
    said: dict[str, Value] = {}
    unknown = []
    for word in text.split("-"):
        found = [(one.name, value) for one in declared if (value := one.read(word)) is not None]
        said |= dict(found[:1])
        if not found:
            unknown.append(word)
    return said, unknown
