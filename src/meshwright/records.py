"""Records as data: what a frozen dataclass says, as the dictionary that JSON takes."""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
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
        record: the record of any dataclass.
        without: names that are left out.
    """
    return {name: plain(getattr(record, name)) for name in _names(record.__class__) if name not in without}


@cache
def _names(record: Any) -> tuple[str, ...]:
    """Names of a dataclass's fields: `fields` makes them anew each time it is asked."""
    return tuple(field.name for field in fields(record))


def plain(value: Any) -> Any:
    """A value of a field as JSON takes it: records as dictionaries, tuples as lists, paths as text."""
    if type(value) in _SCALARS:
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return fields_of(value)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return str(value) if isinstance(value, PurePath) else value


_SCALARS = frozenset((str, int, float, bool, type(None)))


def as_json(document: Mapping[str, Any]) -> str:
    """One JSON object with sorted keys and a final newline; numbers that are not finite are a bug."""
    text = _indented(document, "\n") + "\n"
    # Of ASCII, which is most of it, JSON leaves one of them as it is; looking through texts takes long.
    if text.isascii() and "\x7f" not in text:
        return text
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _indented(value: Any, line: str) -> str:
    """What `json.dumps` writes with an indent of 1, in half the time: that does it value by value through generators.

    Args:
        value: plain data.
        line: a new line, and the indent of the value.
    """
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is dict:
        if not value:
            return "{}"
        inner = line + " "
        if _of_c is not None and _SCALARS.issuperset(map(type, value.values())):
            return f"{{{inner}{''.join(_flat(inner)(value, 0))[1:-1]}{line}}}"
        items = [f"{_key(n)}{(_again if n in _OFTEN else _indented)(value[n], inner)}" for n in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(items)}{line}}}"
    if kind is list or kind is tuple:
        if not value:
            return "[]"
        inner = line + " "
        if _of_c is not None and len(value) > 1 and _SCALARS.issuperset(map(type, value)):
            return f"[{inner}{''.join(_flat(inner)(value, 0))[1:-1]}{line}]"
        return f"[{inner}{f',{inner}'.join([_indented(one, inner) for one in value])}{line}]"
    if kind is float and -math.inf < value < math.inf:
        return float.__repr__(value)
    if kind is int:
        return int.__repr__(value)
    if kind in _WORDS:
        return _WORDS[kind][bool(value)]
    return _DUMPED.encode(value).replace("\n", line)


_OFTEN = frozenset(("cluster", "model", "pipelines", "strategies"))
"""Members that the documents of many questions have alike."""
_LONGEST_BYTES = 1 << 16
"""Largest text that is remembered, for its size in memory."""


def _again(value: Any, line: str) -> str:
    """`_indented` of what may have been written before: told by its content, for which a tenth of the time does."""
    try:
        content = marshal.dumps(value, 2)
    except ValueError:  # of other types than those of JSON
        return _indented(value, line)
    return _written(content, line) if len(content) <= _LONGEST_BYTES else _indented(value, line)


@lru_cache(maxsize=64)
def _written(content: bytes, line: str) -> str:
    return _indented(marshal.loads(content), line)


_of_c: Callable[..., Callable[[Any, int], tuple[str, ...]]] | None = getattr(json.encoder, "c_make_encoder", None)
"""What `json` writes with where nothing is indented; None where Python has none of its own in C."""


@lru_cache(maxsize=64)
def _flat(inner: str) -> Callable[[Any, int], tuple[str, ...]]:
    """Writes an object of plain values, one a line, each but the first behind a new line with its indent."""
    assert _of_c is not None
    return _of_c(None, _DUMPED.default, _text, None, ": ", f",{inner}", True, False, False)


_WORDS = {bool: ("false", "true"), type(None): ("null", "null")}
_DUMPED = json.JSONEncoder(sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False)
_text = json.encoder.encode_basestring


@lru_cache(maxsize=4096, typed=True)
def _key(name: Any) -> str:
    """A key with its colon, as in the dictionary of it alone: numbers and truth values become texts."""
    return json.dumps({name: 0}, ensure_ascii=False)[1:-2]


_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that command a terminal, turn the direction in which it shows text, or are none of Unicode; tabs and new
lines apart."""


def visible(text: str) -> str:
    """Text for a terminal: characters that would command it are shown as `\\x1b` instead of sent.

    Args:
        text: the text of anybody, such as names in files.
    """
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)
