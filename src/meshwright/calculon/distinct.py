"""Distinct combinations of keys among many rows, by counting where few are possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.parts import in_parts
from meshwright.shapes import Int

COUNTED = 1 << 22
"""Largest range of values or combinations that is counted; wider ones are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """Which distinct combination each row has."""

    example: Int[np.ndarray, "distinct"]
    """A row that has it."""
    index: Int[np.ndarray, "rows"]


Digit = Callable[[slice], np.ndarray]


def distinct(keys: Sequence[np.ndarray]) -> Distinct:
    """Distinct combinations of keys.

    Args:
        keys: columns of whole numbers or flags, all of one length.
    """
    rows = int(keys[0].shape[0])
    possible = 1
    digits: list[tuple[Digit, int]] = []
    for key in keys:
        digit, count = _digit(key)
        if count > 1:
            digits.append((digit, count))
            possible *= count
    if possible > COUNTED:
        return _sorted(rows, digits)
    example = np.full(possible, -1, dtype=np.int64)
    code = np.empty(rows, dtype=np.int64)

    def encode(part: slice) -> None:
        number = np.zeros(part.stop - part.start, dtype=np.int64)
        for digit, count in digits:
            number *= count
            number += digit(part)
        code[part] = number
        example[number] = np.arange(part.start, part.stop)

    in_parts(rows, encode)
    used = example >= 0
    places = np.cumsum(used) - 1

    def place(part: slice) -> None:
        code[part] = places[code[part]]

    in_parts(rows, place)
    return Distinct(example=example[used], index=code)


def _digit(key: np.ndarray) -> tuple[Digit, int]:
    """A key's values as places among the values that occur, and how many occur."""
    if key.dtype == np.bool_:
        return (lambda part: key[part]), 2
    low, high = int(key.min(initial=0)), int(key.max(initial=0))
    if low >= 0 and high < 8:
        return (lambda part: key[part]), high + 1
    if low < 0 or high >= COUNTED:
        values = np.unique(key)
        return (lambda part: np.searchsorted(values, key[part])), values.size
    present = np.zeros(high + 1, dtype=np.bool_)

    def look(part: slice) -> None:
        present[key[part]] = True

    in_parts(int(key.shape[0]), look)
    places = np.cumsum(present) - 1
    return (lambda part: places[key[part]]), int(places[-1]) + 1


def _sorted(rows: int, digits: Sequence[tuple[Digit, int]]) -> Distinct:
    code = np.zeros(rows, dtype=np.int64)
    whole, possible = slice(0, rows), 1
    for digit, count in digits:
        if possible * count > 1 << 62:
            values, code = np.unique(code, return_inverse=True)
            possible = values.size
        code = code * count + digit(whole)
        possible *= count
    _, example, index = np.unique(code, return_index=True, return_inverse=True)
    return Distinct(example=example, index=index)
