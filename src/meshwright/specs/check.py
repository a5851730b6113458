"""What specs share: problems are gathered and raised once, deep ones are hashed once, unions say how they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, get_args

from meshwright.errors import InputError, Problem


@dataclass(slots=True)
class Check:
    """Collects the problems of one noun; `done` raises them together."""

    noun: str
    problems: list[Problem] = field(default_factory=list)

    def that(self, holds: bool, name: str, value: object, rule: str, fix: str = "") -> bool:
        """Record a problem of field `name` unless `holds`."""
        if not holds:
            self.problems.append(Problem(what=f"{self.noun}: {name} is {value!r}", why=rule, fix=fix, field=name))
        return holds

    def whole(self, name: str, value: object, low: int = 1) -> bool:
        """`value` is an integer of at least `low`."""
        good = isinstance(value, int) and not isinstance(value, bool) and value >= low
        return self.that(good, name, value, f"must be a whole number of at least {low}")

    def all_whole(self, of: object, *names: str, low: int = 1) -> bool:
        """Fields of an object are whole numbers of at least `low`, each by its name."""
        good = [self.whole(name, getattr(of, name), low) for name in names]
        return all(good)

    def divisor(self, name: str, value: int, whole: tuple[str, int], units: str) -> bool:
        """`value` divides a number of units, given with the name of its field."""
        field, number = whole
        fix = f"use a divisor of the number of {units}"
        return self.that(number % value == 0, name, value, f"must divide {field} = {number}", fix)

    def positive(self, name: str, value: object, *, zero: bool = False) -> bool:
        """`value` is a finite number above zero (or at least zero)."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        good = number and (value >= 0 if zero else value > 0)  # type: ignore[operator]
        return self.that(bool(good), name, value, "must be a finite number " + ("of at least 0" if zero else "above 0"))

    def one_of(self, name: str, value: object, known: tuple[str | None, ...]) -> bool:
        """`value` is one of the known words."""
        return self.that(value in known, name, value, f"must be one of {', '.join(filter(None, known))}")

    def done(self) -> None:
        """Raise all problems together.

        Raises:
            InputError: if there are any.
        """
        if self.problems:
            raise InputError(self.problems)


Kind = TypeVar("Kind", bound="HashedOnce")


class HashedOnce:
    """Base of a frozen dataclass under `hashed_once`: the place of its hash, which is no field and is not pickled."""

    __slots__ = ("_hash",)

    _hash: int


def hashed_once(record: type[Kind]) -> type[Kind]:
    """A class decorator above `@dataclass(frozen=True, slots=True)`: the hash of all fields, computed when first asked.

    Args:
        record: the dataclass, whose base is `HashedOnce`.

    Returns:
        The same class.
    """
    of_fields = record.__hash__

    def of_record(self: Kind) -> int:
        try:
            return self._hash
        except AttributeError:
            found = of_fields(self)
            object.__setattr__(self, "_hash", found)
            return found

    record.__hash__ = of_record  # type: ignore[method-assign, assignment]
    return record


class ByKind:
    """Marks `Annotated[A | B, BY_KIND]`, or `Annotated[Base, ByKind(KINDS)]` of classes that a table has by their kind.

    A reader goes by the `kind` and reports the faults of that member alone.
    """

    __slots__ = ("kinds",)

    def __init__(self, kinds: Mapping[str, type] | None = None) -> None:
        self.kinds = kinds
        """Read from their files when something is read; None for those of the union."""

    def members(self, source: Any) -> Any:
        """The union of the kinds."""
        return source if self.kinds is None else Union[tuple(self.kinds.values())]  # noqa: UP007

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        # Asked for by pydantic only, so that it is loaded by then; specs are built without it.
        from pydantic import Field

        union = self.members(source)
        return handler(Annotated[union, Field(discriminator="kind")] if get_args(union) else union)


BY_KIND = ByKind()
"""Unions of nouns that their `kind` tells apart are marked with it."""
