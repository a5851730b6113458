"""Questions for what would settle the unknowns of a script: one for all that the same answer settles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.formats.shell.values import ScriptLine, Unknown

_ARGUMENTS, _VARIABLES = "arguments", "variables"
_MOST = 8
"""Things of one question that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Something that is not known."""

    what: str
    unknown: Unknown
    place: ScriptLine | None
    field: str


def questions_for(found: Iterable[Open]) -> Iterator[Problem]:
    """What is not known, one question for all that the same variables or arguments settle."""
    groups: dict[object, list[Open]] = {}
    for one in found:
        names = one.unknown.names
        key: object = names or one.unknown
        if names and all(name.isdigit() for name in names):
            key = _ARGUMENTS
        elif one.unknown.unset and len(names) == 1:
            key = _VARIABLES
        groups.setdefault(key, []).append(one)
    for key, group in groups.items():
        alone = len({one.unknown.names for one in group}) == 1
        several = _of_variables if key == _VARIABLES and not alone else _question
        yield (_of_arguments if key == _ARGUMENTS else several)(group)


def _of_variables(group: list[Open]) -> Problem:
    """Variables that nobody set are given in one go."""
    places = {one.unknown.names[0]: one.unknown.place for one in group}
    names = list(places)
    why = f"{', '.join(f'${name} ({place})' for name, place in places.items())} are not set in the script"
    return _problem(group, why, f"give {' '.join(f'--env {name}=VALUE' for name in names)}")


def _question(group: list[Open]) -> Problem:
    unknown = group[0].unknown
    ways = [f"--arg (argument {name})" if name.isdigit() else f"--env {name}=VALUE" for name in unknown.names[:3]]
    ways = ["--arg VALUE ..." if name == "--env @=VALUE" else name for name in ways]
    fix = f"give {' or '.join(ways)}" if ways else "write the value into the script"
    return _problem(group, f"{unknown.why} ({unknown.place})", fix)


def _of_arguments(group: list[Open]) -> Problem:
    """Positions go in order: one cannot be given without those before it."""
    places = {int(name): one.unknown.place for one in group for name in one.unknown.names}
    numbers = sorted(places)
    if numbers == [1]:
        return _problem(group, f"{group[0].unknown.why} ({group[0].unknown.place})", "give --arg (argument 1)")
    shown = ", ".join(f"{number} ({places[number]})" for number in numbers)
    what = "argument" if len(numbers) == 1 else "arguments"
    fix = f"give --arg VALUE {numbers[-1]} times, for the arguments 1 to {numbers[-1]} in order"
    return _problem(group, f"the script is started without {what} {shown}", fix)


def _problem(group: list[Open], why: str, fix: str) -> Problem:
    names = list(dict.fromkeys(one.what for one in group))
    first = group[0]
    if len(names) == 1:
        where = f" ({first.place})" if first.place is not None and first.place.line else ""
        return Problem(what=f"{names[0]} is not known{where}", why=why, fix=fix, field=first.field)
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    shown = ", ".join(names[:_MOST]) if more else f"{', '.join(names[:-1])} and {names[-1]}"
    return Problem(what=f"{shown}{more} are not known", why=why, fix=fix, field=first.field)
