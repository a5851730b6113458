"""What a fix of a user's launch files is: the options or keys that change, the diff, and the text, secrets masked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.records import Record, fields_of

_SECRET = re.compile(
    r"""(?<![\w-])(?!(?:pad|eos|bos|unk)_token\b)"""
    r"""((?:[\w-]*[-_])?(?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:[-_]id)?(?:\s*[=:]\s*|\s+)["']?)"""
    r"""(?!["'$\s\\-])[^\s"']+""",
    re.IGNORECASE,
)
"""A name that ends in a word for a secret, and its value, unless that is a variable."""
_SECRET_VARIABLE = re.compile(
    r"""((?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:[-_]id)?(?:\s*[=:]\s*|\s+)["']?)\$\{?(\w+)""",
    re.IGNORECASE,
)
"""The same with a variable behind it."""
_ASSIGNED = re.compile(r"""((?<!\w)(\w+)(?:=|:[-=])["']?)(?!["'$\s}])[^\s"'}]+""")
"""A variable that is set, or has a default, and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange(Record):
    """An option that another plan sets otherwise."""

    option: str
    old: str | None
    """None where the script does not give it."""
    new: str | None
    """None where it is taken out."""
    place: str
    """Where it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFix(Record):
    """A launch file edited to another plan."""

    plan: str
    noun: str = "script"
    """What the file is."""
    changes: tuple[OptionChange, ...]
    diff: str
    """Unified; empty where the script cannot be edited."""
    why_not: str = ""
    """Why there is no diff; the changes are told all the same."""
    text: str = ""
    """The whole edited file."""
    beside: tuple[tuple[str, str], ...] = ()
    """Name and text of files beside it that change with it."""
    notes: tuple[str, ...] = ()
    """What to change besides."""

    def to_dict(self) -> dict[str, Any]:
        """As data, with what stands for a secret left out of the text."""
        beside = {name: _without_secrets(text) for name, text in self.beside}
        return {**fields_of(self), "text": _without_secrets(self.text), "beside": beside}


def _without_secrets(text: str) -> str:
    names = secret_names(text)
    return "".join(masked(line, names) for line in text.splitlines(keepends=True))


def secret_names(text: str) -> frozenset[str]:
    """Variables of a script that are given where a key, a token or a password stands."""
    return frozenset(found[2] for found in _SECRET_VARIABLE.finditer(text))


def masked(line: str, names: frozenset[str] = frozenset()) -> str:
    """A line to show, with what stands for a key, a token or a password left out; the file that is written keeps it.

    Args:
        line: of a script.
        names: variables whose values are secrets.
    """
    line = _SECRET.sub(lambda found: f"{found[1]}***", line)
    return _ASSIGNED.sub(lambda found: f"{found[1]}***" if found[2] in names else found[0], line)


def unified(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Lines of the diff of files by name, without secrets of theirs."""
    for name, text in after.items():
        names = secret_names(before[name])
        lines = difflib.unified_diff(
            before[name].splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        yield from (masked(line, names) for line in lines)
