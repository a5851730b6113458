"""What makes bad input of good: values that readers forget, and changes of texts and of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = (
    *("0", "-1", "1", "2", "3", "7", "64", "0.5", "1e308", "1e-308", "1e400", "-0.0", "nan", "inf", "-inf", "NaN"),
    *("2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616"),
    *("1" * 40, "9" * 4400, "0x10", "0b1", "1_000", "1,000", "1e+5", ".e5", "e5", "1.", ".5", "+3", " 3 ", "3 3"),
    *("1e12", "1e18", "١٢", "２", "½", "1/2", "1e", "--1", "1048576", "16777217", "100000", "00", "007"),
)
WORDS = (
    *("", " ", "\t", "null", "None", "true", "false", "x", "é", "日本", "\u202e", "a" * 300, "a/b", "../x", "/", "."),
    *("-", "--", "#", "#1", "a#b#c", "=", ",", ",,", ":", ";", "*", "%s", "{}", "$(id)", "\\", "'", '"', "\x1b[31m"),
    *("!!bool x", '!!int ""', "!!timestamp x", "!!python/name:os", "&a", "*a", "&a [*a]", "<<: *a", "%YAML 9.9", "? x"),
    *("H100", "llama-3.1-8b", "bf16", "fp8", "list", "all", "best", "auto", "a" * 5000, "\n", "\r", "~", "[", "nan"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, 1e308, -0.0, 10**18, 2**63, 2**64, 10**400, float("nan"), float("inf")),
    *([], {}, [[]], [None], {"a": 1}, "", "x", "1", "nan", [1, 2, 3], ["x"], {"": {}}, "a" * 300, [0], [-1], 1e-308),
)
TOKEN = re.compile(r"[0-9][0-9_.eE+-]*|[A-Za-z_][\w-]*|\S")


def number(chance: Random) -> str:
    """A number as nobody should write it, or as somebody may."""
    if chance.random() < 0.3:
        return str(chance.choice([chance.randint(0, 20), 2 ** chance.randint(0, 40), chance.uniform(0, 1000)]))
    return chance.choice(NUMBERS)


def word(chance: Random) -> str:
    """A text for where a name is expected."""
    return chance.choice(WORDS) if chance.random() < 0.7 else number(chance)


def text(chance: Random, source: str, *, changes: int = 3) -> str:
    """A text with some of its tokens, lines and characters changed.

    Args:
        chance: draws.
        source: as somebody wrote it.
        changes: at most.
    """
    for _ in range(chance.choice([0, 1, 1, 1, 2, changes])):
        source = chance.choice(_TEXT)(chance, source)
    return source


def _tokens(chance: Random, source: str) -> str:
    found = list(TOKEN.finditer(source[:20_000]))
    if not found:
        return source + word(chance)
    one = chance.choice(found)
    new = number(chance) if one[0][0].isdigit() else word(chance)
    if chance.random() < 0.2:
        new = chance.choice(found)[0]
    return source[: one.start()] + new + source[one.end() :]


def _numbers(chance: Random, source: str) -> str:
    found = [one for one in TOKEN.finditer(source[:20_000]) if one[0][0].isdigit()]
    if not found:
        return source
    one = chance.choice(found)
    return source[: one.start()] + number(chance) + source[one.end() :]


def _lines(chance: Random, source: str) -> str:
    lines = source.splitlines(keepends=True)
    if not lines:
        return "\n"
    at = chance.randrange(len(lines))
    what = chance.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, lines[at])
    elif what == 2:
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3:
        lines[at] = lines[at].rstrip("\n") + chance.choice(["\r", "\r\n", "", "\0", "\x1c", "\u2028", " \\\n"])
    else:
        lines[at:at] = lines[at : at + 1] * chance.choice([2, 50])
    return "".join(lines)


def _characters(chance: Random, source: str) -> str:
    at = chance.randint(0, len(source))
    what = chance.randrange(4)
    if what == 0:
        return source[:at] + chance.choice("\r\n\t\0,;:=#\"'{}[]()$\\/.-éx0 ") + source[at:]
    if what == 1:
        return source[:at] + source[at + chance.randint(1, 8) :]
    if what == 2:
        return source[:at]
    return source[:at] + source[at : at + 20] * chance.choice([2, 5, 200]) + source[at:]


_TEXT = (_tokens, _tokens, _numbers, _numbers, _lines, _characters)


def data(chance: Random, source: Any, *, changes: int = 3) -> Any:
    """A JSON value with some of its values changed, its keys renamed, taken out or moved.

    Args:
        chance: draws.
        source: the value; it is not changed itself.
        changes: at most.
    """
    changed = json.loads(json.dumps(source))
    for _ in range(chance.choice([0, 1, 1, 1, 2, changes])):
        places = list(_places(changed))
        if not places:
            return deepcopy(chance.choice(VALUES))
        home, key = chance.choice(places)
        what = chance.randrange(8)
        if what < 4:
            home[key] = _like(chance, home[key])
        elif what == 4:
            home[key] = deepcopy(chance.choice(VALUES))
        elif what == 5:
            del home[key]
        elif what == 6 and isinstance(home, dict):
            home[word(chance)] = home.pop(key)
        else:
            other, there = chance.choice(places)
            home[key] = json.loads(json.dumps(other[there])) if _still(other, there) else None
    return changed


def _like(chance: Random, value: Any) -> Any:
    """Another value of the same kind, mostly."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice([0, -value, value + 1, value * 2, value // 2, 1, 3, 10**9, 2**62, 10**30, value * 1000])
    if isinstance(value, float):
        return chance.choice([0.0, -value, value * 1e6, value * 1e-6, 1e308, 1e-308, float("nan"), float("inf")])
    if isinstance(value, str):
        return word(chance)
    if isinstance(value, list):
        return chance.choice([[], value[:1], value * 2, [value], value[::-1]])
    return chance.choice([{}, [], None]) if isinstance(value, dict) else deepcopy(chance.choice(VALUES))


def _places(value: Any) -> Sequence[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left and len(found) < 3000:
        one = left.pop()
        keys: Any = one.keys() if isinstance(one, dict) else range(min(len(one), 40)) if isinstance(one, list) else ()
        for key in keys:
            found.append((one, key))
            left.append(one[key])
    return found


def _still(home: Any, key: Any) -> bool:
    return key in home if isinstance(home, dict) else key < len(home)


def written(chance: Random, value: Any) -> bytes:
    """JSON, or JSON with characters changed."""
    content = json.dumps(value, indent=chance.choice([None, 1]))
    return (text(chance, content) if chance.random() < 0.15 else content).encode("utf-8", "surrogatepass")


def encoded(chance: Random, content: str) -> bytes:
    """Text as bytes; seldom with bytes that are no text."""
    found = content.encode("utf-8", "surrogatepass")
    if chance.random() < 0.02:
        at = chance.randint(0, len(found))
        return found[:at] + chance.choice([b"\xff\xfe", b"\0", b"\x80", b"\xef\xbb\xbf", b"\x1f\x8b\x08"]) + found[at:]
    return found
