"""Columns of one length as a value: the rows of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from meshwright.shapes import Int

Own = TypeVar("Own", bound="Table")


class Table:
    """Base of frozen dataclasses whose arrays are columns; fields that are no arrays hold for all rows."""

    __slots__ = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        # Only the first column is looked at: some columns are made when they are read.
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return next(len(value) for value in values if isinstance(value, np.ndarray))

    def take(self: Own, index: Any) -> Own:
        """The rows of an index, a mask or a slice."""
        values = self._values().items()
        return type(self)(**{key: value[index] if isinstance(value, np.ndarray) else value for key, value in values})

    @classmethod
    def joined(cls: type[Own], parts: Sequence[Own]) -> Own:
        """The rows of several, one after the other."""
        first = parts[0]._values()
        return cls(
            **{
                key: np.concatenate([getattr(part, key) for part in parts]) if isinstance(value, np.ndarray) else value
                for key, value in first.items()
            }
        )

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


def divisors(number: int) -> list[int]:
    """Divisors, ascending: those up to the square root by trial, the others as their cofactors.

    Args:
        number: the number, at least 1.
    """
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]


def of_each_pair(
    left: Int[np.ndarray, "rows"], right: Int[np.ndarray, "rows"]
) -> Iterator[tuple[int, int, Int[np.ndarray, "here"]]]:
    """The values of two columns that occur together, each pair with its rows by number, in the order of their first."""
    code = left * (1 << 32) + right
    values, first = np.unique(code, return_index=True)
    for value in values[np.argsort(first)].tolist():
        yield value >> 32, value & ((1 << 32) - 1), np.flatnonzero(code == value)


def per_pair(
    left: Int[np.ndarray, "rows"], right: Int[np.ndarray, "rows"], count: Callable[[int, int], int]
) -> Int[np.ndarray, "rows"]:
    """A number that depends on two columns, computed once per distinct pair."""
    # Both columns have few and small values: tables find them without a sort of all rows.
    lefts, place_left = _places(left)
    rights, place_right = _places(right)
    code = place_left * len(rights) + place_right
    present = np.flatnonzero(np.bincount(code, minlength=len(lefts) * len(rights)))
    counts = np.zeros(len(lefts) * len(rights), dtype=np.int64)
    counts[present] = [count(int(lefts[pair // len(rights)]), int(rights[pair % len(rights)])) for pair in present]
    return counts[code]


def _places(values: Int[np.ndarray, "rows"]) -> tuple[Int[np.ndarray, "distinct"], Int[np.ndarray, "rows"]]:
    """The distinct values of a column, ascending, and the place of each row's among them."""
    distinct_codes = np.flatnonzero(np.bincount(values))
    place = np.zeros(int(distinct_codes[-1]) + 1, dtype=np.int64)
    place[distinct_codes] = np.arange(len(distinct_codes))
    return distinct_codes, place[values]


def distinct_rows(*keys: Int[np.ndarray, "rows"]) -> tuple[Int[np.ndarray, "distinct"], Int[np.ndarray, "rows"]]:
    """First row of every distinct combination, and each row's combination."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        values, inverse = distinct_values(key)
        code = code * len(values) + inverse
    size = int(code.max()) + 1 if len(code) else 0
    if size <= 4 * len(code) + 1024:
        # Codes are dense enough for a table, which is quicker than sorting.
        first = np.full(size, -1, dtype=np.int64)
        first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
        used = np.flatnonzero(first >= 0)
        place = np.zeros(size, dtype=np.int64)
        place[used] = np.arange(len(used))
        return first[used], place[code]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def distinct_values(key: Int[np.ndarray, "rows"]) -> tuple[Int[np.ndarray, "values"], Int[np.ndarray, "rows"]]:
    """Distinct values of a column and the rank of each row's value."""
    top = int(key.max()) if len(key) else 0
    if top > 1 << 22:
        # A table up to the largest value would not fit the cache, or the memory.
        values, inverse = np.unique(key, return_inverse=True)
        return values, inverse.reshape(-1)
    present = np.zeros(top + 1, dtype=bool)
    present[key] = True
    values = np.flatnonzero(present)
    rank = np.zeros(top + 1, dtype=np.int64)
    rank[values] = np.arange(len(values))
    return values, rank[key]


def combinations(*keys: Int[np.ndarray, "rows"]) -> list[tuple[int, ...]]:
    """Every combination of values that some row has, once."""
    first, _ = distinct_rows(*keys)
    return list(zip(*(key[first].tolist() for key in keys), strict=True))


def distinct_codes(
    codes: Int[np.ndarray, "many"], most: int
) -> tuple[Int[np.ndarray, "distinct"], Int[np.ndarray, "many"]]:
    """The numbers below `most` that occur, ascending, and the place of each code among them.

    Args:
        codes: numbers from 0.
        most: above all of them.
    """
    place = np.zeros(most, dtype=np.int64)
    place[codes] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    return found, place[codes]
