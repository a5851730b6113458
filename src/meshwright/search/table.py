"""Columns of one length as a value: the rows of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

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
        number: at least 1.
    """
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]
