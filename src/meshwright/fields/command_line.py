"""The command line that asks what a request asks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.fields.field import Field
from meshwright.fields.kinds import Devices, Texts
from meshwright.fields.request import Request, request_fields

NOT_OF_THE_ANSWER = ("output", "svg", "window", "format", "port", "no_browser")
"""Fields that change where and how an answer is shown, and no number of it."""


def command_line(verb: str, request: Request, *, without: tuple[str, ...] = ()) -> str:
    """The line, with what was given as it was given; an object that was passed stands by its name.

    Args:
        verb: the verb that is called.
        request: the request whose stated fields are its options.
        without: names of fields that are left out.
    """
    words = [*verb.split()]
    for one in request_fields(type(request)):
        if one.name in request.stated and one.cli and one.name not in without:
            words += _words(one, request.stated[one.name])
    return shlex.join(["meshwright", *words])


def stated_texts(request: Request, *, without: tuple[str, ...] = ()) -> dict[str, str | bool]:
    """What was given, by the names of fields, as a form takes it: texts, and True for switches.

    Args:
        request: the request whose stated fields are taken.
        without: names of fields that are left out.
    """
    found: dict[str, str | bool] = {}
    for one in request_fields(type(request)):
        if one.name in request.stated and one.cli and one.name not in without:
            value = _as_typed(one, request.stated[one.name])
            several = isinstance(value, (list, tuple))
            found[one.name] = True if one.flag else ",".join(map(_text, value)) if several else _text(value)
    return found


def _words(one: Field, value: Any) -> Iterator[str]:
    value = _as_typed(one, value)
    if one.argument and not one.words:
        yield _text(value)
    elif one.flag:
        yield one.spelled
    elif one.repeated and not isinstance(value, str):
        for each in value:
            yield from (one.spelled, _text(each))
    else:
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (one.spelled, ",".join(_text(each) for each in values))


def _as_typed(one: Field, value: Any) -> Any:
    """A table or pairs that a program passed as a command line says them; a config by the name of such a file."""
    if isinstance(value, Mapping):
        return one.kind.read(one.name, value) if isinstance(one.kind, (Devices, Texts)) else "config.json"
    if isinstance(value, (list, tuple)) and value and all(isinstance(pair, tuple) for pair in value):
        return f"histogram:{','.join(f'{length:g}={share:g}' for length, share in value)}"
    return value


_SECRET = re.compile(r"(?i)(?<![\w-])([\w-]*(?:key|token|secret|passw(?:or)?d|credentials?))=\S+")
"""A variable or an option whose name ends in a word for a secret, and its value."""


def _text(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return _SECRET.sub(r"\1=...", os.fspath(value))
    return str(getattr(value, "name", value))
