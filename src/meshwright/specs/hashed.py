"""Deep records that are hashed once: caches ask for the hash of a model or a cluster again and again."""

from __future__ import annotations

from typing import TypeVar

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
