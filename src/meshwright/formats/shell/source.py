"""Text of a script with the line each letter was written on."""

from __future__ import annotations

import re
from bisect import bisect_right

from meshwright.formats.shell.values import Fragment, ScriptLine, Unknown, Value

_FIRST = 0xE000
_LETTERS = 0x1000
_MARKS = f"{chr(_FIRST)}-{chr(_FIRST + _LETTERS - 1)}"


class Source:
    """Text and its places: a file's lines, or pieces put together while a script was read."""

    def __init__(
        self, text: str, starts: list[int], places: list[ScriptLine], unknowns: dict[str, Unknown] | None = None
    ) -> None:
        self.text = text
        self._starts = starts
        self._places = places
        self.unknowns = unknowns or {}
        """Unknowns by the private letter that stands for each in the text."""

    @staticmethod
    def of_file(text: str, name: str) -> Source:
        """A file; lines are counted from 1."""
        starts = [0]
        for line in text.split("\n")[:-1]:
            starts.append(starts[-1] + len(line) + 1)
        return Source(text, starts, [ScriptLine(name, number) for number in range(1, len(starts) + 1)])

    @staticmethod
    def of_value(value: Value, place: ScriptLine) -> Source:
        """A string that is read as a script of its own."""
        starts, places, at = [0], [place], 0
        unknowns: dict[str, Unknown] = {}
        texts = []
        for piece in value:
            starts.append(at)
            places.append(piece.place)
            text = piece.text
            if piece.unknown is not None and len(unknowns) < _LETTERS:
                mark = chr(_FIRST + len(unknowns))
                unknowns[mark] = piece.unknown
                text += mark
            texts.append(text)
            at += len(text)
        return Source("".join(texts), starts, places, unknowns)

    def part(self, text: str, at: int) -> Source:
        """Another text in the place of a stretch."""
        return Source(text, [0], [self.place(at)], self.unknowns)

    def place(self, at: int) -> ScriptLine:
        """Where the letter at a position was written."""
        return self._places[max(0, bisect_right(self._starts, at) - 1)]

    def pieces(self, text: str, at: int) -> Value:
        """Text that starts at a position, as one piece a line."""
        if "\n" not in text and not self.unknowns:
            return (Fragment(text, self.place(at)),) if text else ()
        found = []
        for line in re.split(f"(?<=\n)|(?=[{_MARKS}])|(?<=[{_MARKS}])", text):
            unknown = self.unknowns.get(line)
            if line:
                found.append(Fragment("" if unknown else line, self.place(at), unknown))
            at += len(line)
        return tuple(found)
