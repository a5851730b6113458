"""All problems of one input, raised together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError

T = TypeVar("T")

OPTION = "MW206"
"""The code of an option's own problem: it names the whole where problems of several codes meet."""


@dataclass(slots=True)
class Gather:
    """Problems of several values: malformed input before unsupported names."""

    errors: list[MeshwrightError] = field(default_factory=list)

    def problem(self, problem: Problem, code: str = OPTION) -> None:
        """Note a problem of the input."""
        self.errors.append(InputError(problem, code=code))

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of a function, or None with its problems noted."""
        try:
            return work()
        except (InputError, UnsupportedError) as error:
            self.errors.append(error)
            return None

    def done(self) -> None:
        """Raise what was noted.

        Raises:
            InputError: any input is malformed.
            UnsupportedError: all that is wrong are unknown names.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            problems: Sequence[Problem] = [problem for error in self.errors for problem in error.problems]
            wrong = [error for error in self.errors if isinstance(error, InputError)]
            kind = InputError if wrong else UnsupportedError
            codes = [error.code for error in wrong or self.errors]
            raise kind(problems, code=OPTION if OPTION in codes else codes[0])
