"""Keys that a command sets over those of a configuration file: `KEY=VALUE`, or `--section.key VALUE`."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from meshwright.formats.shell import Word, word
from meshwright.targets.contract import Files

if TYPE_CHECKING:
    from meshwright.formats.shell import Launch

FILE = "overrides.json"
"""Stands for the words of a command among the files of a run: value by dotted path."""
UNKNOWN = "(not known)"
"""A value that nobody can know, as it stands there."""

Overrides = Mapping[str, Word]


def parted(one: Word) -> tuple[str, Word]:
    """Key and value of an override; no key for other words."""
    name, equals, _ = one.text.lstrip("+").partition("=")
    if not equals or not name.replace(".", "").replace("_", "").isalnum() or name.startswith("-"):
        return "", one
    return name, _behind(one, one.text.index("=") + 1)


def by_names(words: Iterable[Word], names: Iterable[str]) -> Overrides:
    """Values of `--name VALUE` and `--name=VALUE` words, of some names."""
    found: dict[str, Word] = {}
    last = ""
    for one in words:
        name, equals, _ = one.text.removeprefix("--").partition("=")
        if last:
            found[last], last = one, ""
        elif one.text.startswith("--") and name in names:
            last = "" if equals else name
            if equals:
                found[name] = _behind(one, len(name) + 3)
    return found


def _behind(one: Word, left: int) -> Word:
    """A word without its first letters, each piece where it was written."""
    pieces = list(one.pieces)
    while left > 0:
        size = len(pieces[0].text)
        if size > left:
            pieces[0], left = replace(pieces[0], text=pieces[0].text[left:]), 0
        else:
            pieces, left = pieces[1:], left - size
    return Word(tuple(pieces))


def keyed(key: str, value: Word) -> Word:
    """A value as an override, `KEY=VALUE`."""
    return Word((*word(f"{key}=", value.place).pieces, *value.pieces))


def by_equals(words: Iterable[Word]) -> Overrides:
    """Keys of `KEY=VALUE` words, the last of each."""
    return {key: value for key, value in map(parted, words) if key}


def by_options(words: Iterable[Word]) -> Overrides:
    """Keys of `--section.key VALUE`, `--section.key=VALUE` and `--section.key` words, the last of each."""
    return _by_names(words, lambda name: "." in name)


def by_flags(words: Iterable[Word]) -> Overrides:
    """Keys of `--some-key VALUE`, `--some_key=VALUE` and `--some-key` words before a bare `--`, the last of each."""
    return _by_names(takewhile(lambda one: one.text != "--", words), lambda name: True)


def _by_names(words: Iterable[Word], holds: Callable[[str], bool]) -> Overrides:
    """Keys of `--name VALUE`, `--name=VALUE` and `--name` words, the last of each.

    Args:
        words: the words behind the program.
        holds: whether a name with its dashes is a key; the words of others are passed over.
    """
    found: dict[str, Word] = {}
    last = ""
    for one in words:
        name, equals, _ = one.text.partition("=")
        if name.startswith("--"):
            last = ""
            if not holds(name):
                continue
            key = name.removeprefix("--").replace("-", "_")
            found[key] = _behind(one, len(name) + 1) if equals else word("true", one.place)
            last = "" if equals else key
        elif last:
            found[last], last = one, ""
    return found


def nodes(launch: Launch) -> Overrides:
    """Nodes that a command starts on, by its launcher or its environment; nothing where neither says them.

    Args:
        launch: the command.
    """
    stated = by_names(launch.launcher, ("nnodes", "num_machines"))
    held = launch.environment.get("NNODES")
    found = next(iter(stated.values()), None) or (Word(held) if held else None)
    return {} if found is None or found.unknown is not None else {"nnodes": found}


def as_file(given: Overrides) -> str:
    """Overrides as the file that stands for them."""
    values = {key: UNKNOWN if one.unknown is not None else parsed_word(one.text) for key, one in given.items()}
    return json.dumps(values)


def parsed_word(text: str) -> Any:
    """The value that a word of a command stands for."""
    text = text.strip()
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if len(text) > 1000:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text.strip("'\"")
    return value if isinstance(value, (int, float, str, list)) else text


def laid_over(keys: Mapping[str, Any], files: Files) -> tuple[dict[str, Any], frozenset[str]]:
    """Keys with those of the command over them, and the paths of these.

    Args:
        keys: the keys of a configuration, tables within tables.
        files: the files of the run.
    """
    text = files.get(FILE)
    return with_paths(keys, json.loads(text) if text else {})


def with_paths(keys: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Keys with those of others over them, and the paths of these.

    Args:
        keys: the keys of a configuration, tables within tables.
        over: value by dotted path.
    """
    made = dict(keys)
    for path, value in over.items():
        *above, last = path.split(".")
        at = made
        for name in above:
            inner = at.get(name)
            at[name] = at = dict(inner) if isinstance(inner, Mapping) else {}
        at[last] = value
    return made, frozenset(over)
