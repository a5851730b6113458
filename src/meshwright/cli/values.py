"""Words of the command line as values; what is wrong with several of them is said at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError

T = TypeVar("T")

MOST = 2**31 - 1
"""Largest whole number an option takes; products of two still fit 64 bits."""


def required(name: str, value: str | None) -> str:
    """An argument that must be there.

    Raises:
        InputError: it is not.
    """
    if value is None:
        raise InputError(missing(name), code="MW206")
    return value


def missing(name: str, fix: str = "") -> Problem:
    """The problem of an argument that is not there."""
    return Problem(what=f"{name} is missing", why="the verb needs it", fix=fix or "see --help", field=name)


@dataclass(slots=True)
class Gather:
    """Reads many values and raises all their problems together."""

    errors: list[MeshwrightError] = field(default_factory=list)

    def problem(self, problem: Problem, code: str = "MW206") -> None:
        """Note a problem of the input."""
        self.errors.append(InputError(problem, code=code))

    def attempt(self, function: Callable[[], T]) -> T | None:
        """The result of a function, or None with its problems noted."""
        try:
            return function()
        except (InputError, UnsupportedError) as error:
            self.errors.append(error)
            return None

    def whole(self, name: str, text: str | None, low: int = 1, high: int = MOST) -> int | None:
        """A whole number of an option, None if it is not given or wrong."""
        if text is None:
            return None
        plain = text.strip().replace("_", "").replace(",", "")
        value = None
        if re.fullmatch(r"[+-]?[0-9]{1,30}", plain):
            value = int(plain)
        elif re.fullmatch(r"[+-]?[0-9.]{1,30}e\+?[0-9]{1,2}", plain, re.IGNORECASE) and plain.count(".") < 2:
            number = float(plain)
            value = int(number) if number.is_integer() else None
        if value is None or not low <= value <= high:
            rule = f"must be a whole number from {low:,} to {high:,}"
            self.problem(
                Problem(what=f"{name} is {text[:80]!r}", why=rule, fix=f"for example {name} {max(low, 4)}", field=name)
            )
            return None
        return value

    def number(self, name: str, text: str | None, *, zero: bool = False, high: float = 1e18) -> float | None:
        """A positive number of an option, None if it is not given or wrong."""
        if text is None:
            return None
        try:
            value = float(text.strip().replace(",", ""))
        except ValueError:
            value = math.nan
        if not (value >= 0 if zero else value > 0) or value > high:
            rule = f"must be a number {'of at least' if zero else 'above'} 0, at most {high:g}"
            self.problem(Problem(what=f"{name} is {text[:80]!r}", why=rule, fix=f"for example {name} 2.5", field=name))
            return None
        return value

    def with_inputs(self, model: str | None, inputs: dict[str, Any]) -> None:
        """Raise what is wrong so far, together with what is wrong with model, cluster and workload."""
        if self.errors:
            from meshwright.planning.job_inputs import job_inputs

            self.attempt(lambda: job_inputs(model or "", **inputs))
        self.done()

    def done(self) -> None:
        """Raise all problems together.

        Raises:
            InputError: anything but unknown names is wrong.
            UnsupportedError: only unknown names are wrong.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            problems: Sequence[Problem] = [problem for error in self.errors for problem in error.problems]
            wrong = [error for error in self.errors if isinstance(error, InputError)]
            kind = InputError if wrong else UnsupportedError
            raise kind(problems, code=(wrong or self.errors)[0].code)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; what is left out takes the default of the function that is called."""
    return {name: value for name, value in options.items() if value not in (None, [])}
