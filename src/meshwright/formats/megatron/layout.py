"""Layers of each virtual stage as Megatron-LM's layout text `Et*3|t*4|t*4|t*3L`, and back.

E embedding, t layer, m multi-token-prediction module, L loss; | parts virtual stages in order; x*n and (...)*n repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import InputError

MAX_LETTERS = 100_000


def write_layout(layers: Sequence[int], mtp: int) -> str:
    """The layout of these layers per virtual stage, multi-token-prediction modules in the last."""
    stages = []
    for number, count in enumerate(layers):
        last = number == len(layers) - 1
        stages.append(("E" if number == 0 else "") + _times("t", count) + (_times("m", mtp) + "L" if last else ""))
    return "|".join(stages)


def _times(letter: str, count: int) -> str:
    return letter if count == 1 else f"{letter}*{count}" if count else ""


def read_layout(text: str) -> tuple[tuple[int, ...], int]:
    """Layers of each virtual stage, and how many multi-token-prediction modules there are.

    Raises:
        InputError: if the text is no layout.
    """

    try:
        return _read(text.replace(",", "").replace(" ", ""))
    except ValueError as error:
        flag = "--pipeline-model-parallel-layout"
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise InputError(what=f"{flag} is {shown!r}", why=str(error), field=flag, code="MW231") from None


def _read(text: str) -> tuple[tuple[int, ...], int]:
    letters = _expand(text)
    stages = letters.split("|")
    if letters.count("E") != 1 or not stages[0].startswith("E"):
        raise ValueError("it must start with E, the embedding, and hold no other")
    if letters.count("L") != 1 or not stages[-1].endswith("L"):
        raise ValueError("it must end with L, the loss, and hold no other")
    if "m" in letters and "t" in letters[letters.index("m") :]:
        raise ValueError("layers t must come before multi-token-prediction modules m")
    return tuple(stage.count("t") for stage in stages), letters.count("m")


def _expand(text: str) -> str:
    """Letters with repeats written out."""
    groups = [""]
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "(":
            groups.append("")
            continue
        if char == ")" and len(groups) > 1:
            unit = groups.pop()
        elif char in "EtmL|":
            unit = char
        else:
            raise ValueError(f"{char!r} is out of place; it is made of E t m L | * ( )")
        if text[at : at + 1] == "*":
            digits = len(text[at + 1 :]) - len(text[at + 1 :].lstrip("0123456789"))
            if not 1 <= digits <= 6 or not text[at + 1 : at + 1 + digits].isascii():
                raise ValueError("a * must be followed by a number")
            times = int(text[at + 1 : at + 1 + digits])
            at += 1 + digits
            if len(unit) * times > MAX_LETTERS:
                raise ValueError("it expands to more layers than any model has")
            unit *= times
        groups[-1] += unit
        if len(groups[-1]) > MAX_LETTERS:
            raise ValueError("it expands to more layers than any model has")
    if len(groups) > 1:
        raise ValueError("a ( is not closed")
    return groups[0]
