"""Problems of several inputs, noted one by one and raised together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.errors import InputError, MeshwrightError, UnsupportedError


class InputCheck:
    """Notes what is wrong with several inputs, and raises it together."""

    def __init__(self) -> None:
        self.errors: list[MeshwrightError] = []

    def attempt(self, function: Callable[[], Any]) -> Any:
        """The result, or None with the problem noted."""
        try:
            return function()
        except (InputError, UnsupportedError) as error:
            self.errors.append(error)
            return None

    def problem(self, what: str, why: str, fix: str, field: str) -> None:
        """Note one problem."""
        self.errors.append(InputError(what=what, why=why, fix=fix, field=field, code="MW240"))

    def whole(self, field: str, value: Any, most: int) -> None:
        """A whole number from 1."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            why = f"it is a whole number from 1 to {most:,}"
            self.problem(f"{field} is {str(value)[:60]!r}", why, f"for example {field} {min(512, most)}", field)

    def done(self) -> None:
        """Raise what was noted.

        Raises:
            InputError: anything but unknown names is wrong.
            UnsupportedError: only unknown names are.
        """
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        problems = [problem for error in self.errors for problem in error.problems]
        wrong = [error for error in self.errors if isinstance(error, InputError)]
        kind = InputError if wrong else UnsupportedError
        raise kind(problems, code=(wrong or self.errors)[0].code)
