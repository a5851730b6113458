"""Stretches of words as they are expanded, and the words that they make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.formats.shell.closing import BLANKS
from meshwright.formats.shell.state import MAX_FIELDS, TooMuch
from meshwright.formats.shell.values import Fragment, Value


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a word: one value, or the words of `"$@"`."""

    value: Value
    quoted: bool
    split: bool = False
    """Whether it is divided at blanks."""
    words: tuple[Value, ...] | None = None


def divided(parts: Iterator[Part], marks: str | None) -> list[Value]:
    """Words of stretches: unquoted values are divided at blanks, words of an array stay whole.

    Args:
        parts: the parts of the word.
        marks: what divides in the place of blanks, where IFS is set.
    """
    letters = re.escape(marks) if marks else BLANKS
    chunks = re.compile(r"(?s).+" if marks == "" else f"[{letters}]+|[^{letters}]+")
    blanks = "" if marks == "" else marks or BLANKS
    done: list[Value] = []
    current: Value | None = None
    for piece in (piece for part in parts for piece in _pieces(part, chunks, blanks)):
        if piece is not None:
            current = (*(current or ()), *piece)
        elif current is not None:
            done.append(current)
            current = None
        if len(done) > MAX_FIELDS:
            raise TooMuch("a command has too many words")
    return done if current is None else [*done, current]


def _pieces(part: Part, chunks: re.Pattern[str], blanks: str) -> Iterator[Value | None]:
    """What a stretch adds to a word, piece by piece; None where the word ends."""
    if part.words is not None:
        for number, word in enumerate(part.words):
            if number:
                yield None
            yield word
    elif part.split:
        for fragment in part.value:
            if fragment.unknown is not None:
                yield (fragment,)
                continue
            for chunk in chunks.findall(fragment.text):
                yield None if chunk[0] in blanks else (Fragment(chunk, fragment.place),)
    elif part.value or part.quoted:
        yield part.value
