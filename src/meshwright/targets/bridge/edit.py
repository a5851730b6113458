"""Overrides of Megatron-Bridge with one value changed where it is written, in a file of their own or in a script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from meshwright.formats.key_text import KeyText
from meshwright.targets.bridge.overrides import override_options

_VALUE = r"(?:'[^'\n]*'|\"[^\"\n]*\"|\$\(\([^()\n]*\)\)|[^\s'\"\\])*"
_OVERRIDE = re.compile(rf"(?<![^\s\"'(])\+{{0,2}}([a-z_]+(?:\.[a-z_0-9]+)*)=({_VALUE})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverridesText(KeyText):
    """Words of the form KEY=VALUE."""

    def with_value(self, path: str, value: Any) -> str | None:
        """The text with an override of this value; a new one stands in front of the first that is there."""
        found = self._words(path)
        if found:
            last = found[-1]  # a later one overrides an earlier one
            return f"{self.text[: last.start()]}{path}={value}{self.text[last.end() :]}"
        first = next((match for match in self._all() if match[1] in override_options()), None)
        if first is None:
            return None
        line = self.text.rfind("\n", 0, first.start()) + 1
        if not self.text[line : first.start()].strip():
            # The first word of its line: the new one gets a line of its own, continued where the command is.
            end = self.text.find("\n", first.end())
            here, before = self.text[line : end if end >= 0 else None], self.text[:line].rstrip("\n")
            joined = " \\" if here.rstrip().endswith("\\") or before.rstrip().endswith("\\") else ""
            indent = self.text[line : first.start()]
            return f"{self.text[: first.start()]}{path}={value}{joined}\n{indent}{self.text[first.start() :]}"
        return f"{self.text[: first.start()]}{path}={value} {self.text[first.start() :]}"

    def without(self, path: str) -> str | None:
        """The text with the override set to null: a recipe may hold another value."""
        return self.with_value(path, "null")

    def _all(self) -> list[re.Match[str]]:
        return [match for match in _OVERRIDE.finditer(self.text) if not self._comment(match.start())]

    def _words(self, path: str) -> list[re.Match[str]]:
        return [match for match in self._all() if match[1] == path]

    def _comment(self, at: int) -> bool:
        return self.text[self.text.rfind("\n", 0, at) + 1 : at].lstrip().startswith("#")


def overrides_text(name: str, text: str) -> KeyText | None:
    """A text of overrides that can be edited."""
    found = [match for match in _OVERRIDE.finditer(text) if match[1] in override_options()]
    values = {match[1]: match[2] for match in found}
    return OverridesText(text=text, entries={}, said=str, key=str, values=values, joint="=")
