"""Constants at the top of a program that is written with a plan, changed where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.formats.key_text import Entry, KeyText
from meshwright.targets.python_values import assigned
from meshwright.units import number_or_word


class ProgramConstants(KeyText):
    """A program whose constants can be changed, and neither added nor taken out: its other lines use them."""

    def with_value(self, path: str, value: Any) -> str | None:
        """The program with another value of a constant that it has; as it is without it."""
        return KeyText.with_value(self, path, value) if path in self.values else self.text

    def without(self, path: str) -> str | None:
        """The program as it is."""
        return self.text


def constants_of(text: str, names: Sequence[str]) -> ProgramConstants | None:
    """Constants of a program; None of text that is no Python.

    Args:
        text: the text of the program.
        names: the names of the constants.
    """
    try:
        found = [(name, entry) for name, entry in assigned(text) if name in names]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    values = {name: number_or_word(text[entry.value : entry.end]) for name, entry in found}
    entries: dict[tuple[str, ...], Entry] = {(name,): entry for name, entry in found}
    return ProgramConstants(text=text, entries=entries, said=str, key=str, values=values, joint=" = ")
