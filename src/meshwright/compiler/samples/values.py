"""What a walk over the equations of a program holds of each value."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from jax.extend import core

from meshwright.compiler.samples.placements import Placement


@dataclass(frozen=True, slots=True)
class RankValue:
    """A value of the walk, as one rank holds it."""

    value: Any
    placement: Placement
    uniform: bool = False
    """Whether all of its entries are the same number."""
    moves: bool = False
    """Whether it depends on what is differentiated."""
    late: bool = False
    """Whether it depends on a sum of such values over all samples."""
    order: Any = None
    """How its samples are sorted; None where they are as in the batch."""
    known: Any = None
    """What its entries are a function of."""


class Reader(Protocol):
    """Evaluates equations with what one part of the samples holds."""

    ranks: int
    rank: Any
    plain: bool
    sorts: bool | None
    samples: int
    """Samples along the dimension that counts rows, where every part has rows of each; 1 where it has whole samples."""

    def read(self, program: core.Jaxpr, operands: Sequence[RankValue], consts: Sequence[Any] = ()) -> list[RankValue]:
        """Results of a program."""
        ...

    def inside(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """Results of the program that an equation holds."""
        ...

    def placed_equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of an equation, and which of their dimensions count samples."""
        ...

    def evaluated(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[Any]:
        """Results of an equation that reads as it does for one part."""
        ...

    def own(self, value: RankValue, dimension: Placement) -> RankValue:
        """A value of which the part for these samples is wanted."""
        ...

    def given_as(self, value: RankValue, placement: Placement) -> RankValue:
        """A value as it is wanted."""
        ...

    def nested(self) -> AbstractContextManager[None]:
        """While equations inside of an equation are read."""
        ...

    def elsewhere(self, number: Any = None) -> Reader:
        """The same inside of a function that is read later."""
        ...

    def total(self, value: RankValue) -> RankValue:
        """A sum taken over all parts; anything else as it is."""
        ...

    def placed(self, value: RankValue, placement: Placement) -> Any:
        """The same without its placement."""
        ...


def part_shape(shape: Sequence[int], placement: Placement, ranks: int) -> tuple[int, ...]:
    """Shape of what one rank holds of a value.

    Args:
        shape: the shape of the value.
        placement: its placement.
        ranks: the number of ranks that share the samples.
    """
    return tuple(size // ranks if at == placement else size for at, size in enumerate(shape))
