"""Axes of plans and their values as users write them: `tp=4,8`, `pp4`, `rc-full`, a schedule with its settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from meshwright.errors import MeshwrightError, Problem, nearest
from meshwright.estimate.stages import refusal
from meshwright.schedules import PLAN_SCHEDULES, known_names, schedule_named
from meshwright.schedules.parameters import tried_of
from meshwright.search.axes import AXES, is_recompute

COUNTED = tuple(axis.name for axis in AXES.values() if axis.counted)
_OTHER_NAMES = {other: axis.name for axis in AXES.values() for other in axis.other_names}


def axis_called(name: str) -> str | None:
    """The axis of a name, or of a name that other programs use for it; None where there is none.

    Args:
        name: the name as an option or a key, such as `--tensor-parallel-size`.
    """
    plain = name.strip("-").replace("-", "_").lower()
    return plain if plain in AXES else _OTHER_NAMES.get(plain)


def _tokens() -> dict[str, tuple[str, str]]:
    """Tokens of the one-line form that state one axis, with its value."""
    return {
        token: (axis.name, word)
        for axis in AXES.values()
        if axis.token
        for word in axis.values()
        if (token := axis.token(word))
    }


def note_blank(verb: str, said: str | Iterable[str], problems: list[Problem]) -> None:
    """Note a text that names no axis: a variable of a script that is not set."""
    if any(not str(text).strip(" ,") for text in ([said] if isinstance(said, str) else said)):
        what, fix = f"{verb} is empty", "leave it out, or say tp=8" if verb == "pin" else "leave it out, or say pp"
        problems.append(Problem(what=what, why="it names no axis", fix=fix, field=verb))


def entries_of(said: str | Iterable[str]) -> list[str]:
    """`tp=4,8,sharding=z1` as `tp=4,8` and `sharding=z1`: what is no value of the entry before starts a new one."""
    found: list[str] = []
    for text in [said] if isinstance(said, str) else said:
        for part in (part.strip() for part in str(text).split(",")):
            axis = found[-1].partition("=")[0] if found and "=" in found[-1] else ""
            axis = _OTHER_NAMES.get(axis, axis)
            value = (
                part.isdigit()
                if axis in COUNTED
                else (axis in AXES and axis_value(axis, part) is not None) or _schedule(axis, part)
            )
            if value:
                found[-1] += f",{part}"
            elif part:
                found.append(part)
    return found


def read_entry(entry: str, verb: str, problems: list[Problem]) -> tuple[str, tuple[object, ...]]:
    """Axis and values of one entry; an empty axis where it is not understood."""
    name, equals, rest = entry.partition("=")
    name = name.strip().lower().replace("-", "_") if equals else entry.strip()
    axis = _OTHER_NAMES.get(name, name)
    if not equals and axis not in AXES:
        return _read_token(entry, verb, problems)
    if axis not in AXES:
        problems.append(_unknown(entry, name, verb))
        return "", ()
    values: list[object] = []
    for text in (part.strip() for part in rest.split(",") if part.strip()):
        value = axis_value(axis, text)
        if value is None:
            problems.append(_wrong_value(axis, text, verb))
            return "", ()
        values.append(value)
    return axis, tuple(values)


def _read_token(entry: str, verb: str, problems: list[Problem]) -> tuple[str, tuple[object, ...]]:
    if found := _tokens().get(entry):
        return found[0], (found[1],)
    if _schedule("schedule", entry):
        return "schedule", (axis_value("schedule", entry),)
    if entry.startswith("rc-") and (word := axis_value("recompute", entry)):
        return "recompute", (word,)
    match = re.fullmatch(r"([a-z]+)([0-9]{1,9})", entry)
    if match and match[1] in COUNTED and int(match[2]) >= 1:
        return match[1], (int(match[2]),)
    problems.append(_unknown(entry, entry, verb))
    return "", ()


def axis_value(axis: str, text: str) -> object | None:
    if axis in COUNTED:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1 else None
    word = text.lower().removeprefix("rc-") if axis == "recompute" else text.lower()
    if axis == "schedule":
        return next(iter(schedules_of(word, [])), None)
    if axis == "recompute":
        return word if is_recompute(word) else None
    word = f"z{word}" if axis == "sharding" and word.isdigit() else word
    return word if word in AXES[axis].values() else None


def _schedule(axis: str, text: str) -> bool:
    """Whether an entry is the name of a schedule that plans may run, with its settings or without."""
    return axis == "schedule" and axis_value(axis, text) is not None


def _unknown(entry: str, name: str, verb: str) -> Problem:
    close = nearest(name, [*AXES, *_tokens(), *PLAN_SCHEDULES])
    fix = f"did you mean {' or '.join(close)}?" if close else f"axes: {', '.join(AXES)}"
    return Problem(what=f"{verb} {entry[:60]!r}: unknown axis {name[:40]!r}", why="no plan has it", fix=fix, field=verb)


def _wrong_value(axis: str, text: str, verb: str) -> Problem:
    if axis in COUNTED:
        why, fix = "degrees are whole numbers from 1 on", f"for example {axis}=8"
        return Problem(what=f"{verb} {axis}={text[:40]}", why=why, fix=fix, field=axis)
    close = nearest(text, AXES[axis].values())
    fix = f"did you mean {' or '.join(close)}?" if close else ""
    return Problem(
        what=f"{verb} {axis}={text[:40]}", why=f"{axis} is one of {', '.join(AXES[axis].values())}", fix=fix, field=axis
    )


def _of_another_axis(name: str) -> tuple[Problem, ...]:
    """A name that is no schedule and a value of another axis: weights of WeiPipe go round under any schedule."""
    axis = next((one.name for one in AXES.values() if name in one.values()), None)
    if axis is None:
        return ()
    what, why = f"unknown schedule {name!r}", f"it is a value of {axis}"
    return (Problem(what=what, why=why, fix=f"say --pin {axis}={name}", field="schedule"),)


def schedules_of(
    named: str | Iterable[str], problems: list[Problem], allowed: Sequence[str] = PLAN_SCHEDULES, *, tries: bool = False
) -> list[str]:
    """Schedules by their tokens; with `tries` one that is named without settings stands for those a search tries."""
    names: list[str] = []
    for text in [named] if isinstance(named, str) else named:
        for name in (part.strip().lower() for part in str(text).split(",") if part.strip()):
            if name == "all":
                names += list(allowed)
                continue
            try:
                schedule = schedule_named(name[:80])
            except MeshwrightError as error:
                problems += _of_another_axis(name) or error.problems
                continue
            if schedule.name in allowed and not (allowed is PLAN_SCHEDULES and schedule.not_searched):
                bare = tries and name in known_names()
                names += [one.token for one in (tried_of(schedule) if bare else (schedule,))]
            else:
                problems.append(refusal(schedule))
    return list(dict.fromkeys(names))
