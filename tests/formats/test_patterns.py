"""No pattern takes time that grows faster than the text it is given: foreign text may be long, and made to be slow.

Every pattern of the source is run over texts made of repetitions: of single characters, and of what matches the first
parts of the pattern and so leads it to its loops. It does what the source does with it, `search` or `fullmatch`.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser
from typing import Any

import pytest

import meshwright

PACKAGE = Path(meshwright.__file__).parent
SHORT_TEXT, SHORT_S = 1000, 0.0002
"""Characters, and seconds for them above which a longer text is tried; most patterns take less."""
TIMES, MOST_GROWTH = 16, 64
"""So many times as long a text takes 16 times as long where time is linear, and 256 times where it is quadratic."""
CHARACTERS = ("0", "a", "A_", " ", "\t", "\n", ".", ",", "1,", "-", "/", "$", "{", "[0", '"', "'", "\\", "=", "a=", ":")
USES = "search|match|fullmatch|finditer|findall|sub|split"


OURS = {"compiler", "runtime"}
"""What they read is written by XLA and by ourselves."""
SHORT = {r",(?![^()]*\))"}
"""Patterns of texts that are cut to some thousand characters before."""


def files() -> list[Path]:
    """Of the source that look for patterns in what is foreign."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in OURS and re.search(r"\bre\.compile|\bfound\(r", path.read_text())
    ]


def patterns(path: Path) -> Iterator[tuple[re.Pattern[Any], set[str]]]:
    """Patterns of a file, each with the methods that the source calls."""
    try:
        module = importlib.import_module(
            ".".join(("meshwright", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        )
    except ImportError:
        pytest.skip("an extra is not installed")
    source = path.read_text()
    for name, value in vars(module).items():
        for one in _patterns_in(value):
            yield one, set(re.findall(rf"\b{name}\.({USES})\(", source)) or {"search"}
    for call in ast.walk(ast.parse(source) if "/logs/" in str(path) else ast.Module([], [])):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "found"
            and "/logs/" in str(path)
        ):
            text = eval(compile(ast.Expression(call.args[0]), str(path), "eval"), {**vars(module), "words": "x"})
            yield re.compile(text), {"search"}


def _patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _patterns_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _patterns_in(one)


def beginnings(pattern: re.Pattern[Any]) -> Iterator[str]:
    """What the first parts of a pattern match, the shortest text of each."""
    text = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    parts = _parser.parse(text, pattern.flags & (re.VERBOSE | re.IGNORECASE | re.DOTALL | re.MULTILINE))
    sample = ""
    for part in parts:
        if part[0] in (_constants.SUBPATTERN, _constants.BRANCH):
            for inner in _ways(part):
                made = (sample + "".join(map(_sample, inner[:count])) for count in range(1, len(inner) + 1))
                yield from filter(None, made)
        sample += _sample(part)
        if sample:
            yield sample


def _ways(part: Any) -> list[Any]:
    if part[0] is _constants.BRANCH:
        return list(part[1][1])
    inner = part[1][3]
    return (
        [way for one in inner for way in _ways(one)]
        if len(inner) == 1 and inner[0][0] is _constants.BRANCH
        else [inner]
    )


def _sample(part: Any) -> str:
    """The shortest text that a part of a pattern matches, loops once."""
    kind, value = part
    if kind is _constants.LITERAL:
        return chr(value)
    if kind is _constants.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if kind is _constants.ANY:
        return "a"
    if kind is _constants.IN:
        return _member(value)
    if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        return "".join(map(_sample, value[2])) * max(value[0], 1)
    if kind is _constants.SUBPATTERN:
        return "".join(map(_sample, value[3]))
    if kind is _constants.BRANCH:
        return "".join(map(_sample, value[1][0]))
    return ""


def _member(members: Any) -> str:
    text = "".join(chr(number) for number in range(32, 127)) + "\t\n"
    return next((one for one in "0a" + text if re.match(_class(members), one)), "a")


def _class(members: Any) -> re.Pattern[str]:
    names = {
        _constants.CATEGORY_DIGIT: r"\d",
        _constants.CATEGORY_NOT_DIGIT: r"\D",
        _constants.CATEGORY_SPACE: r"\s",
        _constants.CATEGORY_NOT_SPACE: r"\S",
        _constants.CATEGORY_WORD: r"\w",
        _constants.CATEGORY_NOT_WORD: r"\W",
    }
    text = ""
    for kind, value in members:
        if kind is _constants.NEGATE:
            text = "^" + text
        elif kind is _constants.LITERAL:
            text += re.escape(chr(value))
        elif kind is _constants.RANGE:
            text += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif kind is _constants.CATEGORY:
            text += names[value]
    return re.compile(f"[{text}]")


def slow_texts(pattern: re.Pattern[Any], uses: set[str]) -> Iterator[str]:
    """Repeated texts for which a pattern takes longer than one of linear time would."""
    for repeated in dict.fromkeys((*CHARACTERS, *beginnings(pattern))):
        for use in {use if use in ("search", "match", "fullmatch") else "findall" for use in uses}:
            for end in ("!", ""):
                if (short_s := _seconds(pattern, use, repeated, SHORT_TEXT, end)) > SHORT_S:
                    # The quickest of several, as other work of the machine lengthens some.
                    short_s = min(short_s, *(_seconds(pattern, use, repeated, SHORT_TEXT, end) for _ in range(8)))
                    most_s = MOST_GROWTH * short_s
                    if all(_seconds(pattern, use, repeated, TIMES * SHORT_TEXT, end) > most_s for _ in range(3)):
                        yield repeated


def _seconds(pattern: re.Pattern[Any], use: str, repeated: str, length: int, end: str) -> float:
    text: Any = repeated * -(-length // len(repeated)) + end
    text = text.encode() if isinstance(pattern.pattern, bytes) else text
    # The processor's clock is too coarse for short texts; the one on the wall counts other work in long ones.
    clock = time.perf_counter if length == SHORT_TEXT else time.process_time
    start_s = clock()
    getattr(pattern, use)(text)
    return clock() - start_s


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_patterns_take_linear_time(path: Path) -> None:
    for pattern, uses in patterns(path):
        slow = [] if pattern.pattern in SHORT else list(slow_texts(pattern, uses))
        assert not slow, f"{pattern.pattern!r} takes long for repetitions of {slow[:3]}"


def test_a_pattern_of_quadratic_time_is_noticed() -> None:
    assert any(text.startswith("memory=") for text in slow_texts(re.compile(r"memory=\d+.*?used=\d+"), {"search"}))
    assert "0" in slow_texts(re.compile(r"(\d+)MB"), {"search"})
    assert not list(slow_texts(re.compile(r"(?<!\d)(\d+)MB"), {"search"}))
