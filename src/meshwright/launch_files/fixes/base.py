"""What a fix of a user's launch files is: the options or keys that change, the diff, and the whole text."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.launch_files.secrets import masked, secret_names, without_secrets
from meshwright.records import Record, fields_of


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
        beside = {name: without_secrets(text) for name, text in self.beside}
        return {**fields_of(self), "text": without_secrets(self.text), "beside": beside}


def unified(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Lines of the diff of files by name, without secrets of theirs."""
    for name, text in after.items():
        names = secret_names(before[name])
        lines = difflib.unified_diff(
            before[name].splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        yield from (masked(line, names) for line in lines)
