"""Tables of keys as the text of configuration files, and that text as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.errors import InputError, Problem

Keys = dict[str, Any]


def nested_tables(flat: Mapping[str, Any]) -> Keys:
    """Tables within tables from dotted paths; entries of None are left out."""
    made: Keys = {}
    for path, value in flat.items():
        if value is None:
            continue
        *above, last = path.split(".")
        at = made
        for name in above:
            at = at.setdefault(name, {})
        at[last] = value
    return made


def json_text(keys: Mapping[str, Any]) -> str:
    """A JSON file."""
    return json.dumps(keys, indent=2) + "\n"


def yaml_text(keys: Mapping[str, Any], head: Sequence[str] = ()) -> str:
    """A YAML file of tables, lists and plain values, under comments."""
    lines = [f"# {' '.join(line.split())}" for line in head]
    return "\n".join([*lines, *_yaml_lines(keys, "")]) + "\n"


def _yaml_lines(keys: Mapping[str, Any], indent: str) -> Iterator[str]:
    from meshwright.formats.key_text import yaml_value  # searches write no files

    for name, value in keys.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {yaml_value(value)}"


def table_of(text: str, language: str, noun: str) -> Keys:
    """The table of keys that JSON or YAML text holds.

    Raises:
        InputError: the text is not of the language, or no table of keys.
        UnsupportedError: YAML where no YAML reader is installed.
    """
    from meshwright.formats.files import parsed

    data = parsed(text, language, noun)
    if not isinstance(data, dict):
        why = "it must be a table of keys at the top"
        raise InputError(Problem(what=f"the {noun} holds a {type(data).__name__}", why=why), code="MW202")
    return {str(key): value for key, value in data.items()}
