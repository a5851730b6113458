"""The published JSON Schemas of what verbs print, gathered as other descriptions hold them.

The files are made from answers by `make schemas`; each says which verbs print its document. OpenAPI and MCP take
several of them into one document, where a file cannot be referred to by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("schemas")
PRINTED = "x-printed-by"
"""Key of a schema: the verbs whose `--json` prints the document."""
_OF_A_FILE = ("$id", "$schema", PRINTED)
"""Keys that a schema has as a file of its own; an `$id` would turn references away from the document around it."""


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by the name of its file without the ending: `plan-set-1`."""
    found = {one.name: one for one in FOLDER.iterdir() if one.name.endswith(".json")}
    return {name.removesuffix(".json"): json.loads(found[name].read_text("utf-8")) for name in sorted(found)}


def printed_by(verb: str) -> tuple[str, ...]:
    """Names of the documents that a verb prints."""
    return tuple(name for name, schema in schemas().items() if verb in schema[PRINTED])


def embedded_schema(name: str, place: Callable[[str], str]) -> dict[str, Any]:
    """A schema as a part of another document.

    Args:
        name: the name of the schema.
        place: the place of any schema's name, the reference that finds it in that document.
    """
    schema = {key: value for key, value in schemas()[name].items() if key not in _OF_A_FILE}
    moved: dict[str, Any] = _moved(schema, place(name), place)
    return moved


def with_those_named(names: Iterable[str]) -> list[str]:
    """Names of schemas, and of all that they refer to."""
    found, waiting = [], list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting += _named(schemas()[name])
    return found


def _moved(value: Any, own: str, place: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_moved(one, own, place) for one in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str):
        inner = own + reference[1:] if reference.startswith("#") else place(reference.removesuffix(".json"))
        return {**{key: _moved(one, own, place) for key, one in value.items()}, "$ref": inner}
    return {key: _moved(one, own, place) for key, one in value.items()}


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _named(one)
    elif isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            yield reference.removesuffix(".json")
        for one in value.values():
            yield from _named(one)
