"""A JSON object of an input file, key by key: each look-up notes what is wrong and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.errors import Problem, nearest

MOST = 1e60
"""Largest number, so that products of some stay finite."""
LARGEST = 2**40
"""Whole numbers above it are taken for mistakes; products of three of them still fit a float."""


class JsonTable:
    """A mapping being read: each look-up notes what is wrong and goes on."""

    def __init__(self, data: Any, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self.data: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
        self.broken = not isinstance(data, Mapping)
        if self.broken:
            self.note("", data, "it is a table of keys", "write { ... }")

    def name(self, key: str | int) -> str:
        if isinstance(key, int):
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def note(self, key: str, value: Any, rule: str, fix: str) -> None:
        field = self.name(key) or "the file"
        self.problems.append(Problem(what=f"{field} is {shown(value)}", why=rule, fix=fix, field=field))

    def only(self, allowed: Sequence[str], ignored: frozenset[str] = frozenset()) -> None:
        """Note every key that is not allowed."""
        for key in self.data:
            name = str(key)
            if name in allowed or name in ignored or (ignored and name.startswith("_")):
                continue
            close = nearest(name, allowed)
            field = self.name(name)
            self.problems.append(
                Problem(
                    what=f"unknown key {field!r}",
                    why=f"the keys are {', '.join(allowed)}",
                    fix=f"did you mean {' or '.join(close)}?" if close else "remove it",
                    field=field,
                )
            )

    def missing(self, key: str, fix: str) -> None:
        field = self.name(key)
        self.problems.append(Problem(what=f"key {field!r} is missing", why="it is required", fix=fix, field=field))

    def get(self, key: str, kind: str, fix: str, test: Callable[[Any], bool], rule: str) -> Any:
        """A value that passes a test, or nothing and a problem."""
        if self.broken:
            return None
        if key not in self.data:
            self.missing(key, f"add {key}: {fix}")
            return None
        value = self.data[key]
        if not is_kind(value, kind):
            self.note(key, value, f"it is {KINDS[kind]}", fix)
            return None
        if not test(value):
            self.note(key, value, rule, fix)
            return None
        return value

    def whole(self, key: str, *, low: int = 1, high: int = LARGEST) -> int:
        found = self.get(
            key,
            "whole",
            f"a whole number such as {max(low, 8)}",
            lambda x: low <= x <= high,
            f"it is at least {low} and at most {high}",
        )
        return 0 if found is None else int(found)

    def _plain(self, key: str) -> float:
        value = self.data.get(key) if isinstance(self.data, dict) else None
        return value if isinstance(value, (int, float)) else 0.0

    def number(self, key: str, test: Callable[[float], bool], rule: str) -> float:
        rule = f"{rule}, and at most {MOST:g}" if abs(self._plain(key)) > MOST else rule
        fix = f"give a number that {rule.removeprefix('it ')}"
        found = self.get(key, "number", fix, lambda x: abs(x) <= MOST and test(x), rule)
        return 0.0 if found is None else float(found)

    def table(self, key: str) -> JsonTable:
        if not self.broken and key not in self.data:
            self.missing(key, "add it, as in Calculon's system files")
        inner = JsonTable(self.data.get(key, {}), self.name(key), self.problems)
        inner.broken = inner.broken or key not in self.data
        return inner


KINDS = {
    "whole": "a whole number",
    "number": "a number",
    "flag": "true or false",
    "text": "a text",
    "list": "a list",
}


def is_kind(value: Any, kind: str) -> bool:
    """Whether a value is of a kind of KINDS."""
    if kind == "flag":
        return isinstance(value, bool)
    if kind == "whole":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return isinstance(value, str if kind == "text" else list | tuple)


def shown(value: Any) -> str:
    """A value as JSON has it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
