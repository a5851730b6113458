"""Files of keys with one value changed where it is written, and nothing else of the file: JSON and YAML."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

Path = tuple[str, ...]
"""Names of the tables above a key, and its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key of a file with its value, by where they stand in the text."""

    start: int
    """Where the key begins."""
    value: int
    """Where the value begins."""
    end: int
    """Index behind the end of the value."""
    table: bool = False
    braces: bool = False
    """A table in braces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyText:
    """A text of keys that can be edited."""

    text: str
    entries: Mapping[Path, Entry]
    said: Callable[[Any], str]
    """A value as the language writes it."""
    key: Callable[[str], str]
    """A name as the language writes it."""
    values: Mapping[str, Any]
    """What every key holds, by dotted path."""
    joint: str = ": "
    """What stands between a key and its value."""

    def with_value(self, path: str, value: Any) -> str | None:
        """The text with a key of this value; None where it cannot be written in place.

        Args:
            path: dotted.
            value: a number, a word, a list, true or false.
        """
        parts = tuple(path.split("."))
        entry = self.entries.get(parts)
        if entry is not None:
            if entry.table:
                return None
            gap = " " if self.joint == ": " and self.text[entry.value - 1 : entry.value] == ":" else ""
            return f"{self.text[: entry.value]}{gap}{self.said(value)}{self.text[entry.end :]}"
        depth = max((count for count in range(len(parts)) if self._is_table(parts[:count])), default=None)
        return None if depth is None else self._added(parts[:depth], parts[depth:], value)

    def without(self, path: str) -> str | None:
        """The text without a key; the key of a table takes the table along."""
        parts = tuple(path.split("."))
        entry, above = self.entries.get(parts), self.entries.get(parts[:-1])
        if entry is None or above is None:
            return None
        if self._beside(parts) == 0:
            return None if len(parts) == 1 else self.without(".".join(parts[:-1]))
        if not above.braces:
            first, last = self._line_start(entry.start), self.text.find("\n", entry.end)
            return self.text[:first] + ("" if last < 0 else self.text[last + 1 :])
        behind = re.compile(r"\s*,[ \t]*\n?").match(self.text, entry.end)
        if behind is not None:
            start = self._line_start(entry.start) if "\n" in behind[0] else entry.start
            start = start if not self.text[start : entry.start].strip() else entry.start
            return self.text[:start] + self.text[behind.end() :]
        before = re.compile(r",\s*$").search(self.text, 0, entry.start)
        return None if before is None else self.text[: before.start()] + self.text[entry.end :]

    def _is_table(self, path: Path) -> bool:
        entry = self.entries.get(path)
        return entry is not None and entry.table

    def _beside(self, path: Path) -> int:
        """Other keys of the same table."""
        return sum(len(other) == len(path) and other[:-1] == path[:-1] and other != path for other in self.entries)

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _added(self, above: Path, rest: Path, value: Any) -> str | None:
        """A key behind the last one of its table, with the tables that it needs."""
        table = self.entries[above]
        own = [entry for path, entry in self.entries.items() if len(path) == len(above) + 1 and path[:-1] == above]
        if not own:
            return None
        last = max(own, key=lambda entry: entry.end)
        indent = self.text[self._line_start(last.start) : last.start]
        if table.braces:
            key, new = self.key, self.said(value)
            if self.text[last.start] == '"':  # JSON in a file of YAML, which other programs may read as JSON
                key, new = json.dumps, json.dumps(value)
            for name in reversed(rest[1:]):
                new = f"{{{key(name)}: {new}}}"
            gap = f",\n{indent}" if not indent.strip() else ", "
            return f"{self.text[: last.end]}{gap}{key(rest[0])}{self.joint}{new}{self.text[last.end :]}"
        if indent.strip():
            return None
        lines = [f"{indent}{'  ' * depth}{self.key(name)}:" for depth, name in enumerate(rest)]
        newline = self.text.find("\n", last.end)
        at = len(self.text) if newline < 0 else newline
        return f"{self.text[:at]}\n{chr(10).join(lines)} {self.said(value)}{self.text[at:]}"


@lru_cache(32)  # the same text is asked for with each of its keys changed or not
def key_text(name: str, text: str) -> KeyText | None:
    """A JSON or YAML file as a text that can be edited; None for others, YAML with anchors, JSON with comments
    or without keys.

    Args:
        name: the name of the file, with its suffix.
        text: the text that has been read without an error.
    """
    suffix = PurePath(name).suffix
    if suffix == ".json":
        if not text.lstrip().startswith(("{", "[")):  # YAML, to be compared with a JSON file of the same keys
            text = json.dumps(importlib.import_module("yaml").safe_load(text), indent=2)
        try:
            keys = json.loads(text)
        except ValueError:
            return None  # with comments, or words without quotes
        if not isinstance(keys, dict):
            return None  # a list holds no keys
        values = dict(leaves(keys))
        return KeyText(text=text, entries=_json_entries(text), said=json.dumps, key=json.dumps, values=values)
    if suffix in (".yaml", ".yml"):
        return _yaml_keys(text)
    return None


def leaves(keys: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths of everything that is no table, or an empty one, with its value."""
    for name, value in keys.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def yaml_value(value: Any) -> str:
    """A value as YAML 1.1 and 1.2 both read it: text that could be anything else is quoted."""
    if isinstance(value, str):
        plain = value.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
        words = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
        bare = plain.isascii() and plain.isalnum() and value[0].isalpha() and value.lower() not in words
        return value if bare else json.dumps(value)
    return json.dumps(value)


_GAP = re.compile(r"[\s,:]*")


def _json_entries(text: str) -> dict[Path, Entry]:
    """Keys of JSON text that has been read without an error."""
    decoder, found = json.JSONDecoder(), dict[Path, Entry]()

    def skip(at: int) -> int:
        match = _GAP.match(text, at)
        return match.end() if match is not None else at

    def table(at: int, path: Path) -> int:
        """Add the keys of the table that begins here; the index behind it."""
        at = skip(at + 1)
        while text[at] != "}":
            name, behind = decoder.raw_decode(text, at)
            start, value = at, skip(behind)
            own = (*path, str(name))
            is_table = text[value] == "{"
            end = table(value, own) if is_table else decoder.raw_decode(text, value)[1]
            found[own] = Entry(start=start, value=value, end=end, table=is_table, braces=is_table)
            at = skip(end)
        return at + 1

    first = text.index("{")
    end = table(first, ())
    found[()] = Entry(start=first, value=first, end=end, table=True, braces=True)
    return found


def _yaml_keys(text: str) -> KeyText | None:
    """Keys of YAML text that has been read without an error; None where a value stands in two places."""
    from meshwright.formats.yaml_text import read_yaml  # few files are YAML

    def keys_of(loader: Any) -> KeyText | None:
        root = loader.get_single_node()
        if root is None or root.id != "mapping" or _has_aliases(text):
            return None
        entries = _yaml_entries(text, root)  # before values are made, which moves merged keys
        values = dict(leaves(loader.construct_document(root)))
        return KeyText(text=text, entries=entries, said=yaml_value, key=str, values=values)

    return read_yaml(text, keys_of)


def _has_aliases(text: str) -> bool:
    if "*" not in text:
        return False
    yaml = importlib.import_module("yaml")
    return any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))


def _yaml_entries(text: str, root: Any) -> dict[Path, Entry]:
    """Keys of YAML text by its composed table."""
    found: dict[Path, Entry] = {}

    def table(node: Any, path: Path) -> int:
        """Add the keys of a table; the index behind its last value."""
        end = node.end_mark.index if node.flow_style else node.start_mark.index
        for key, value in node.value:
            own = (*path, str(key.value))
            is_table = value.id == "mapping"
            last = table(value, own) if is_table else value.end_mark.index
            if not is_table:
                last = value.start_mark.index + len(text[value.start_mark.index : last].rstrip())
            found[own] = Entry(
                start=key.start_mark.index,
                value=value.start_mark.index,
                end=last,
                table=is_table,
                braces=is_table and bool(value.flow_style),
            )
            end = max(end, last)
        return int(end)

    end = table(root, ())
    found[()] = Entry(start=0, value=0, end=end, table=True, braces=bool(root.flow_style))
    return found
