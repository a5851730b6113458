"""Records as data: what a frozen dataclass says, as the dictionary that JSON takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any


class Record:
    """A dataclass whose data are its fields."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """As data: fields by name, records within them likewise."""
        return fields_of(self)


def fields_of(record: Any, *without: str) -> dict[str, Any]:
    """Fields of a dataclass by name, as data.

    Args:
        record: of any dataclass.
        without: names that are left out.
    """
    return {field.name: plain(getattr(record, field.name)) for field in fields(record) if field.name not in without}


def plain(value: Any) -> Any:
    """A value of a field as JSON takes it: records as dictionaries, tuples as lists, paths as text."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return fields_of(value)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return str(value) if isinstance(value, PurePath) else value


def as_json(document: Mapping[str, Any]) -> str:
    """One JSON object with sorted keys and a final newline; numbers that are not finite are a bug."""
    text = json.dumps(document, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False)
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that command a terminal, or turn the direction in which it shows text; tabs and new lines apart."""


def visible(text: str) -> str:
    """Text for a terminal: characters that would command it are shown as `\\x1b` instead of sent.

    Args:
        text: of anybody, such as names in files.
    """
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)
