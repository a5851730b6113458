"""The options Megatron-LM knows, and reading a list of words as its parser would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from meshwright.errors import Problem, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of the parser."""

    flags: tuple[str, ...]
    kind: str
    """`switch`, `int`, `float` or `str`."""
    default: str
    choices: tuple[str, ...]
    takes: str
    """Values it takes: `0`, `1`, another number, `+` one or more, `*` any."""


@cache
def known_options() -> dict[str, Option]:
    """Every option by each of its flags."""
    found = {}
    text = (files(__package__) / "options.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        flags, kind, default, choices, takes = line.split("\t")
        option = Option(
            flags=tuple(flags.split(",")),
            kind=kind,
            default=default,
            choices=tuple(choices.split(",")) if choices else (),
            takes=takes,
        )
        found.update(dict.fromkeys(option.flags, option))
    return found


@dataclass(frozen=True, slots=True)
class Values:
    """Options read from words: the first flag of each with its values as text."""

    given: dict[str, tuple[str, ...]]
    problems: tuple[Problem, ...]
    """Unknown options with their nearest, missing values, wrong types and choices."""

    def has(self, flag: str) -> bool:
        """Whether the option was given."""
        return flag in self.given

    def text(self, flag: str, default: str = "") -> str:
        """The first value, or the default."""
        values = self.given.get(flag)
        return values[0] if values else default

    def whole(self, flag: str, default: int = 0) -> int:
        """The first value as an integer; one that is none is a problem already."""
        try:
            return int(self.text(flag, str(default)))
        except ValueError:
            return default

    def number(self, flag: str, default: float = 0.0) -> float:
        """The first value as a number; one that is none is a problem already."""
        try:
            return float(self.text(flag, str(default)))
        except ValueError:
            return default


def read_options(words: Sequence[str]) -> Values:
    """Sort words into options and values; what does not fit is a problem, never an exception."""
    options = known_options()
    given: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--") or len(word) == 2:
            problems.append(
                Problem(what=f"{word!r} belongs to no option", why="options start with --", field=word[:80])
            )
            continue
        flag, equals, attached = word.partition("=")
        option = options.get(flag)
        values = [attached] if equals else []
        if option is None:
            while at < len(words) and not words[at].startswith("--"):
                at += 1
            problems.append(_unknown(flag))
            continue
        wanted = 0 if option.takes == "0" else int(option.takes) if option.takes.isdigit() else len(words)
        while len(values) < wanted and at < len(words) and not words[at].startswith("--") and not equals:
            values.append(words[at])
            at += 1
        problems += _value_problems(flag, option, values)
        given[option.flags[0]] = tuple(values)
    return Values(given=given, problems=tuple(problems))


def _unknown(flag: str) -> Problem:
    close = nearest(flag, known_options())
    return Problem(
        what=f"unknown option {flag}",
        why="Megatron-LM has no such option",
        fix=f"did you mean {' or '.join(close)}?" if close else "",
        field=flag,
    )


def _value_problems(flag: str, option: Option, values: list[str]) -> list[Problem]:
    least = int(option.takes) if option.takes.isdigit() else 1 if option.takes == "+" else 0
    if len(values) < least:
        return [Problem(what=f"{flag} has no value", why=f"it takes {_count(option.takes)}", field=flag)]
    if option.takes == "0" and values:
        return [Problem(what=f"{flag} is given the value {values[0]!r}", why="it is a switch", field=flag)]
    problems = []
    for value in values:
        if option.kind in ("int", "float") and not _reads(value, option.kind):
            noun = "a whole number" if option.kind == "int" else "a number"
            problems.append(Problem(what=f"{flag} is {value!r}", why=f"must be {noun}", field=flag))
        elif option.choices and value not in option.choices:
            close = nearest(value, option.choices, count=1)
            fix = f"did you mean {close[0]}?" if close else ""
            why = f"must be one of {', '.join(option.choices)}"
            problems.append(Problem(what=f"{flag} is {value!r}", why=why, fix=fix, field=flag))
    return problems


def _count(takes: str) -> str:
    return {"1": "one value", "+": "one or more values"}.get(takes, f"{takes} values")


def _reads(value: str, kind: str) -> bool:
    try:
        number = int(value) if kind == "int" else float(value)
    except ValueError:
        return False
    return number == number and abs(number) < 1e18
