"""Patterns of `case`, `[[ == ]]` and `${NAME%...}`."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_PATTERN = 500
MAX_TEXT = 20_000


class BadPattern(ValueError):
    """A pattern that is too long or means nothing."""


@lru_cache(maxsize=256)
def pattern(text: str, *, greedy: bool = True) -> re.Pattern[str]:
    """A glob as a regular expression; a backslash takes the meaning off the letter behind it.

    Raises:
        BadPattern: it is too long, or has more stars than a match may try.
    """
    if len(text) > MAX_PATTERN or text.count("*") > 12:
        raise BadPattern("a pattern is too long")
    body, _ = _translated(text, 0, "", greedy)
    try:
        return re.compile(body, re.DOTALL)
    except re.error as error:
        raise BadPattern(str(error)) from None


def _translated(text: str, at: int, stops: str, greedy: bool) -> tuple[str, int]:
    lazy = "" if greedy else "?"
    out: list[str] = []
    while at < len(text) and text[at] not in stops:
        char = text[at]
        if char in "?*+@!" and text[at + 1 : at + 2] == "(":
            ways, at = _ways(text, at + 2, greedy)
            body = "|".join(ways)
            if char == "!":
                out.append(f"(?:(?!(?:{body})$).)*")
            else:
                out.append(f"(?:{body})" + {"?": "?", "*": "*", "+": "+", "@": ""}[char])
            continue
        if char == "*":
            out.append(f".*{lazy}")
        elif char == "?":
            out.append(".")
        elif char == "[" and (end := _class_end(text, at)):
            inner = text[at + 1 : end]
            inner = "^" + inner[1:] if inner[0] in "!^" else inner
            for name, letters in (("digit", "0-9"), ("alpha", "a-zA-Z"), ("alnum", "a-zA-Z0-9"), ("space", r"\s")):
                inner = inner.replace(f"[:{name}:]", letters)
            out.append(f"[{inner}]")
            at = end
        elif char == "\\" and at + 1 < len(text):
            at += 1
            out.append(re.escape(text[at]))
        else:
            out.append(re.escape(char))
        at += 1
    return "".join(out), at


def _ways(text: str, at: int, greedy: bool) -> tuple[list[str], int]:
    """Alternatives of `@(a|b)` from behind its bracket, and the position behind its end."""
    ways = []
    while True:
        body, at = _translated(text, at, "|)", greedy)
        ways.append(body)
        if at >= len(text):
            raise BadPattern("a ( is not closed")
        at += 1
        if text[at - 1] == ")":
            return ways, at


def _class_end(text: str, at: int) -> int:
    """Position of the ] that closes the [ at `at`; 0 where none does."""
    start = at + 1 + (text[at + 1 : at + 2] in ("!", "^"))
    end = start + 1
    while end < len(text):
        if text.startswith("[:", end):
            end = text.find(":]", end) + 2
            if end < 2:
                return 0
        elif text[end] == "]":
            return end
        else:
            end += 1
    return 0


def quoted(text: str) -> str:
    """Text as a pattern of itself."""
    return re.sub(r"([\\*?\[\]()|!@+])", r"\\\1", text)


def matches(glob: str, text: str) -> bool:
    """Whether the whole of a text is what a pattern means."""
    _check(text)
    return pattern(glob).fullmatch(text) is not None


def without_start(text: str, glob: str, *, longest: bool) -> str:
    """`${NAME#glob}`: the text behind its shortest, or longest, start of that form."""
    _check(text)
    found = pattern(glob)
    ends = range(len(text) + 1)
    end = next((end for end in (reversed(ends) if longest else ends) if found.fullmatch(text, 0, end)), 0)
    return text[end:]


def without_end(text: str, glob: str, *, longest: bool) -> str:
    """`${NAME%glob}`: the text before its shortest, or longest, end of that form."""
    _check(text)
    found = pattern(glob)
    starts = range(len(text) + 1)
    start = next((s for s in (starts if longest else reversed(starts)) if found.fullmatch(text, s)), len(text))
    return text[:start]


def replaced(text: str, glob: str, by: str, mark: str) -> str:
    """`${NAME/glob/by}`; mark is `/` for all of them, `#` and `%` for a start or an end, empty for the first."""
    _check(text)
    if not glob and mark not in ("#", "%"):
        return text
    found = pattern(glob)
    if mark == "#":
        match = found.match(text)
        return by + text[match.end() :] if match else text
    if mark == "%":
        start = next((s for s in range(len(text) + 1) if found.fullmatch(text, s)), None)
        return text if start is None else text[:start] + by
    return found.sub(lambda _: by, text, count=0 if mark == "/" else 1)


def _check(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise BadPattern("a text is too long to be matched")
