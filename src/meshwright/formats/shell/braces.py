"""Braces opened: `a{1,2}` is two words, `{1..8}` is eight."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.formats.shell.closing import BLANKS, closing, closing_brace, closing_quote
from meshwright.formats.shell.state import MAX_FIELDS, TooMuch

_SEQUENCE = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d{1,3}))?")


def braces(text: str) -> Iterator[str]:
    """`a{1,2}` as `a1` and `a2`; quotes, and braces of `${...}`, are left alone."""
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char in "'\"":
            at = (closing_quote(text, at + 1, len(text)) if char == '"' else max(text.find("'", at + 1), at)) + 1
        elif text.startswith("${", at):
            at = closing_brace(text, at + 2, len(text)) + 1
        elif text.startswith("$(", at):
            at = closing(text, at + 2, len(text)) + 1
        elif char == "{" and (found := _brace_ways(text, at)) is not None:
            ways, behind = found
            for way in ways:
                for rest in braces(way + text[behind:]):
                    yield text[:at] + rest
            return
        else:
            at += 1
    yield text


def _brace_ways(text: str, at: int) -> tuple[list[str], int] | None:
    depth, start, ways = 0, at + 1, []
    for position in range(at, len(text)):
        char = text[position]
        if char in "'\"$\\" + BLANKS:
            return None
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 1:
            ways.append(text[start:position])
            start = position + 1
        if depth == 0:
            inside = text[at + 1 : position]
            if ways:
                return [*ways, text[start:position]], position + 1
            match = _SEQUENCE.fullmatch(inside)
            return None if match is None else (_sequence(match), position + 1)
    return None


def _sequence(match: re.Match[str]) -> list[str]:
    letters = bool(match[4])
    first, last = (ord(match[4]), ord(match[5])) if letters else (int(match[1]), int(match[2]))
    step = abs(int(match[6 if letters else 3] or 1)) or 1
    if abs(last - first) // step > MAX_FIELDS:
        raise TooMuch("a sequence is too long")
    numbers = range(first, last + (1 if last >= first else -1), step if last >= first else -step)
    if letters:
        return [chr(code) for code in numbers]
    # Where an end begins with a zero, all are as wide as the wider one.
    padded = any(re.match(r"-?0\d", end) for end in (match[1], match[2]))
    width = max(len(match[1]), len(match[2])) if padded else 0
    return [f"{number:0{width}d}" if width else str(number) for number in numbers]
