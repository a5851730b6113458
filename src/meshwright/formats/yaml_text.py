"""YAML as values. Apart from other text since few files are YAML, and since it is read by two readers that must agree.

PyYAML's own scanner takes several times as long as libyaml's, which its wheels bring along. They differ in a few
characters: text with one of these, and text that libyaml refuses, is read by the former, whose words every error has.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from meshwright.errors import UnsupportedError

MOST_VALUES = 1_000_000
"""Most values of a YAML file, each alias counted as all that it names."""
Found = TypeVar("Found")
_READ_OTHERWISE = re.compile(
    r"[^\n -~\xa1-\u1fff\u2030-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[!?]|[|>]#"
)
"""Tabs, line ends but `\\n`, byte order marks, controls, tags, `?` and a comment right behind a block's indicator."""


def yaml_values(text: str, noun: str) -> object:
    """What YAML text holds.

    Args:
        text: the text of a file.
        noun: what the text is of, for the error.

    Raises:
        ValueError: its syntax is wrong, a value does not suit its tag, or its aliases stand for too much.
        UnsupportedError: no YAML reader is installed.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise UnsupportedError(
            what=f"{noun} is YAML, and no YAML reader is installed",
            why="the core reads TOML and JSON",
            fix="pip install pyyaml, or write the same keys as TOML or JSON",
            code="MW405",
        ) from None
    try:
        return read_yaml(text, _values if "&" in text and "*" in text else _plain_values)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except (KeyError, IndexError, AttributeError, TypeError, OverflowError):
        # PyYAML's constructors of tagged scalars check nothing: `!!bool maybe`, `!!int ""`, `!!timestamp soon`.
        raise ValueError("a value does not suit its tag") from None


def read_yaml(text: str, act: Callable[[Any], Found]) -> Found:
    """What a loader of YAML text gives, libyaml's or, where that does not read it, PyYAML's own.

    Args:
        text: the text of a file.
        act: called with a loader.

    Raises:
        yaml.YAMLError: the syntax is wrong, in the words of PyYAML's own loader.
    """
    yaml = importlib.import_module("yaml")
    quick = None if _READ_OTHERWISE.search(text) else quick_loader()
    if quick is not None:
        with contextlib.suppress(yaml.YAMLError):
            return _given_by(quick, text, act)
    return _given_by(yaml.SafeLoader, text, act)


def _given_by(kind: Any, text: str, act: Callable[[Any], Found]) -> Found:
    loader = kind(text)
    try:
        return act(loader)
    finally:
        loader.dispose()


@cache
def quick_loader() -> Any:
    """A loader that scans with libyaml and composes in Python, whose depth is limited; None without libyaml."""
    try:
        parser = importlib.import_module("yaml.cyaml").CParser
    except (ImportError, AttributeError):
        return None
    names = (("composer", "Composer"), ("constructor", "SafeConstructor"), ("resolver", "Resolver"))
    composer, constructor, resolver = (
        getattr(importlib.import_module(f"yaml.{module}"), name) for module, name in names
    )

    def begin(self: Any, text: str) -> None:
        parser.__init__(self, text)
        for part in (composer, constructor, resolver):
            part.__init__(self)

    return type("QuickLoader", (composer, parser, constructor, resolver), {"__init__": begin})


def _plain_values(loader: Any) -> object:
    return loader.get_single_data()


def _values(loader: Any) -> object:
    """The same of text with aliases, which may stand for much more than they say."""
    node = loader.get_single_node()
    if node is None:
        return None
    _expanded(node, {})
    return loader.construct_document(node)


def _expanded(node: Any, known: dict[int, int]) -> int:
    """Values below a YAML node with every alias in full: nine lines of aliases of aliases can stand for a billion.

    Args:
        node: composed, not yet constructed.
        known: counts by identity of a node; 0 while it is counted.

    Raises:
        ValueError: there are too many, or an alias is inside what it names.
    """
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias is inside what it names")
        return known[id(node)]
    known[id(node)] = 0
    inner = node.value if isinstance(node.value, list) else []
    below = [one for entry in inner for one in (entry if isinstance(entry, tuple) else (entry,))]
    count = 1 + sum(_expanded(one, known) for one in below)
    if count > MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
    known[id(node)] = count
    return count
