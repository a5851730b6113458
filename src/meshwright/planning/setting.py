"""A setting of a plan with the values that it may take, and those that are near its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import Problem
from meshwright.records import Record

MOST_CHOICES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Value(Record):
    """One value of a setting."""

    value: int | str
    problem: Problem | None = None
    """Why it is not legal beside the other settings."""

    def to_dict(self) -> dict[str, Any]:
        """As data, the problem with its rule and remedy."""
        problem = self.problem
        said = None if problem is None else {"what": problem.what, "why": problem.why, "fix": problem.fix}
        return {"value": self.value, "problem": said}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Record):
    """One setting of the plan with the values near it."""

    name: str
    value: int | str
    values: tuple[Value, ...]


def with_own(own: int | str, names: Iterable[str]) -> list[int | str]:
    """The names, with a plan's own where it is none of them."""
    found: list[int | str] = list(names)
    return found if own in found else [own, *found]


def near(own: int | str, numbers: Iterable[int]) -> list[int | str]:
    """The own value and the least others, powers of two before other numbers."""
    candidates = sorted(set(numbers) - {own}, key=lambda n: (n & (n - 1) != 0, n))
    return sorted([own, *candidates[: MOST_CHOICES - 1]], key=int)
