"""Records as canonical JSON: equal records give equal bytes and equal hashes on every machine.

Keys are sorted, defaults left out, and numbers that may have a fraction always written with one.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, get_args, get_type_hints

from meshwright.errors import InputError


def record_hash(record: Any) -> str:
    """`sha256:` and the digest of a record's canonical JSON.

    Args:
        record: a frozen dataclass, or plain data.
    """
    return digest(canonical_json(plain_record(record)))


def plain_record(value: Any, hint: Any = None) -> Any:
    """A noun as plain data: defaults left out except a `kind`, numbers that may have a fraction with one.

    Planning writes documents and reads none, so that this asks the dataclasses themselves and loads no schema.

    Args:
        value: a frozen dataclass, or what stands in one.
        hint: its type in the record that holds it; None for the outermost.
    """
    record = type(value)
    if record in _SAID_AS_THEY_ARE:
        return value
    if record is not tuple and is_dataclass(record):
        said = {}
        for name, kind, default in _slots(record):
            one = getattr(value, name)
            if name == "kind" or (one is not default and one != default):
                said[name] = one if type(one) in _SAID_AS_THEY_ARE else plain_record(one, kind)
        return said
    arguments = _arguments(hint)
    if isinstance(value, tuple):
        hints = repeat(arguments[0]) if ... in arguments else arguments
        return [plain_record(item, kind) for item, kind in zip(value, hints, strict=False)]
    fraction = hint is float or (float in arguments and int not in arguments)
    return float(value) if fraction and type(value) is int else value


_SAID_AS_THEY_ARE = frozenset((str, bool, float, type(None)))


@cache
def _arguments(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)


@cache
def _slots(kind: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Name, type and default of each field of a dataclass."""
    hints = get_type_hints(kind)
    slots = []
    for item in fields(kind):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        slots.append((item.name, hints[item.name], default))
    return tuple(slots)


def canonical_json(content: Any) -> str:
    """JSON that is the same on every machine: sorted keys, no spaces, ASCII.

    Args:
        content: plain data.

    Raises:
        InputError: a number is not finite.
    """
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    except ValueError as error:
        what, why = f"the plan holds a value that JSON cannot: {error}", "numbers must be finite"
        raise InputError(what=what, why=why, code="MW224") from None


@lru_cache(maxsize=256)
def _marshalled(text: str) -> bytes:
    """JSON as Python reads it fastest."""
    return marshal.dumps(json.loads(text))


def own_data(text: str) -> Any:
    """The data of canonical JSON: equal texts are parsed once, and every caller gets data of its own.

    Args:
        text: the text as `canonical_json` writes it.
    """
    return marshal.loads(_marshalled(text))


def joined_json(texts: Mapping[str, str]) -> str:
    """The canonical JSON of an object, by that of its members.

    Args:
        texts: canonical JSON by key.
    """
    return "{" + ",".join(f'"{name}":{texts[name]}' for name in sorted(texts)) + "}"


def digest(text: str) -> str:
    """`sha256:` and the digest of canonical JSON.

    Args:
        text: the text as `canonical_json` writes it.
    """
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()
