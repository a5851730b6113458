"""Distinct combinations of keys among many rows, by counting where few are possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.search.parts import in_parts
from meshwright.shapes import Int

COUNTED = 1 << 22
"""Largest range of values or combinations that is counted; wider ones are sorted."""
NARROW, MOST_NARROW = np.uint16, (1 << 16) - 1
SMALL = 8
"""Values below it are taken for places as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """Which distinct combination each row has."""

    example: Int[np.ndarray, "distinct"]
    """A row that has it."""
    index: Int[np.ndarray, "rows"]
    numbering: Numbering | None
    """None where combinations were sorted."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A key's values as places among those that occur."""

    key: int
    """Which of the keys."""
    count: int
    places: np.ndarray | None = None
    """Place by value; none where values are places."""
    values: Int[np.ndarray, "values"] | None = None
    """Ascending, where there are too many for a table."""

    def of(self, key: np.ndarray) -> np.ndarray:
        """The places of values that occurred."""
        if self.values is not None:
            return np.searchsorted(self.values, key)
        return key if self.places is None else self.places[key]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Numbers for the combinations that occurred, which other rows can be looked up in."""

    digits: tuple[Digit, ...]
    places: Int[np.ndarray, "possible"]

    def of(self, keys: Sequence[np.ndarray]) -> Int[np.ndarray, "rows"]:
        """The number of each row's combination.

        Args:
            keys: columns like those that were numbered; only combinations that occurred there.
        """
        return self.places[_code(self.digits, keys)]


def distinct(keys: Sequence[np.ndarray]) -> Distinct:
    """Distinct combinations of keys.

    Args:
        keys: columns of whole numbers or flags, all of one length.
    """
    rows = int(keys[0].shape[0])
    digits = tuple(digit for number, key in enumerate(keys) if (digit := _digit(number, key)).count > 1)
    possible = 1
    for digit in digits:
        possible *= digit.count
    if possible > COUNTED:
        return _sorted(rows, digits, keys)
    example = np.full(possible, -1, dtype=np.int64)
    code = np.empty(rows, dtype=np.int64)

    def encode(part: slice) -> None:
        number = _code(digits, [key[part] for key in keys])
        code[part] = number
        example[number] = np.arange(part.start, part.stop)

    in_parts(rows, encode)
    used = example >= 0
    places = np.cumsum(used) - 1

    def place(part: slice) -> None:
        code[part] = places[code[part]]

    in_parts(rows, place)
    return Distinct(example=example[used], index=code, numbering=Numbering(digits, places))


def _code(digits: Sequence[Digit], keys: Sequence[np.ndarray]) -> Int[np.ndarray, "rows"]:
    """Each row's digits as one number; as many of them as fit are joined in narrow integers, which are quicker."""
    number = np.zeros(keys[0].shape[0], dtype=np.int64)
    narrow, held = np.zeros(number.shape, dtype=NARROW), 1
    for digit in digits:
        if held > 1 and held * digit.count > MOST_NARROW:
            number *= held
            number += narrow
            narrow, held = np.zeros(number.shape, dtype=NARROW), 1
        if digit.count > MOST_NARROW:
            number *= digit.count
            number += digit.of(keys[digit.key])
            continue
        narrow *= NARROW(digit.count)
        narrow += digit.of(keys[digit.key]).astype(NARROW, copy=False)
        held *= digit.count
    if held > 1:
        number *= held
        number += narrow
    return number


def _digit(number: int, key: np.ndarray) -> Digit:
    if key.dtype == np.bool_:
        return Digit(number, 2)
    low, high = int(key.min(initial=0)), int(key.max(initial=0))
    if low >= 0 and high < SMALL:
        return Digit(number, high + 1)
    if low < 0 or high >= COUNTED:
        values = np.unique(key)
        return Digit(number, values.size, values=values)
    present = np.zeros(high + 1, dtype=np.bool_)

    def look(part: slice) -> None:
        present[key[part]] = True

    in_parts(int(key.shape[0]), look)
    places = np.cumsum(present) - 1
    count = int(places[-1]) + 1
    return Digit(number, count, places=places.astype(NARROW) if count <= MOST_NARROW else places)


def _sorted(rows: int, digits: Sequence[Digit], keys: Sequence[np.ndarray]) -> Distinct:
    code = np.zeros(rows, dtype=np.int64)
    possible = 1
    for digit in digits:
        if possible * digit.count > 1 << 62:
            values, code = np.unique(code, return_inverse=True)
            possible = values.size
        code = code * digit.count + digit.of(keys[digit.key])
        possible *= digit.count
    _, example, index = np.unique(code, return_index=True, return_inverse=True)
    return Distinct(example=example, index=index, numbering=None)
