"""HJSON: JSON as people write it, with comments, names and words without quotes, and lines in the place of commas.

Source: the syntax at https://hjson.github.io/syntax.html (2026).
"""

from __future__ import annotations

import json
import re
from typing import Any

_BLANK = re.compile(r"(?:[\s,]|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""What may stand between values: a comma is as good as a line."""
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
_NAME = re.compile(r"[^\s,:\[\]{}\"']+")
_WORD = re.compile(r"[^\n]*")
_LITERAL = re.compile(r"(true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)[ \t]*(?=[,\]}\n]|#|//|/\*|$)")
_DEPTH = 60


def parse(text: str) -> Any:
    """The value that a text holds; the braces of a table around all of it may be left out.

    Args:
        text: the text in HJSON.

    Raises:
        ValueError: its syntax is wrong, with the line.
    """
    reader = _Reader(text)
    reader.blank()
    if reader.next() not in "{[":
        return reader.table("")
    value = reader.value(0)
    reader.blank()
    if reader.at < len(text):
        raise reader.wrong("more text follows the end")
    return value


class _Reader:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def wrong(self, why: str) -> ValueError:
        line = self.text.count("\n", 0, self.at) + 1
        return ValueError(f"line {line}: {why}")

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def next(self) -> str:
        return self.text[self.at : self.at + 1] or "\0"

    def value(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise self.wrong("tables are nested too deeply")
        mark = self.next()
        if mark in "{[":
            self.at += 1
            return self.table("}", depth + 1) if mark == "{" else self.list(depth + 1)
        if self.text.startswith("'''", self.at):
            end = self.text.find("'''", self.at + 3)
            if end < 0:
                raise self.wrong("a text of several lines has no end")
            found, self.at = self.text[self.at + 3 : end], end + 3
            return found.strip("\n")
        if mark in "\"'":
            return self.quoted()
        literal = _LITERAL.match(self.text, self.at)
        if literal is not None:
            self.at = literal.end()
            return json.loads(literal[1])
        if mark in "]}:,\0":
            raise self.wrong("a value is missing")
        word = _WORD.match(self.text, self.at)
        assert word is not None
        self.at = word.end()
        return word[0].strip()

    def quoted(self) -> str:
        match = _QUOTED.match(self.text, self.at)
        if match is None:
            raise self.wrong("a quote has no end")
        self.at = match.end()
        inner = match[0] if match[0][0] == '"' else '"' + match[0][1:-1].replace('"', '\\"').replace("\\'", "'") + '"'
        return str(json.loads(inner, strict=False))

    def table(self, end: str, depth: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while True:
            self.blank()
            if self.next() == (end or "\0"):
                self.at += len(end)
                return found
            if self.next() in "\"'":
                name = self.quoted()
            else:
                match = _NAME.match(self.text, self.at)
                if match is None:
                    raise self.wrong("a name is missing" if self.next() != "\0" else f"{end} is missing")
                name, self.at = match[0], match.end()
            self.blank()
            if self.next() != ":":
                raise self.wrong(f"a colon is missing behind {name[:40]!r}")
            if name in found:
                raise self.wrong(f"{name[:40]!r} appears twice")
            self.at += 1
            self.blank()
            found[name] = self.value(depth)

    def list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while True:
            self.blank()
            if self.next() == "]":
                self.at += 1
                return found
            if self.next() == "\0":
                raise self.wrong("] is missing")
            found.append(self.value(depth))
