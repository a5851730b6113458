"""Tensor groups that are grids of ranks: their sides, and how plans name them: `tp2d2`, `tp25d2x2`, `tp3d2`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

Sides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorGrid:
    """A shape of tensor groups."""

    name: str
    """Name of the strategy in the catalogue."""
    shape: str
    """The shape in words."""
    sides: Callable[[int], Sides | None]
    """Sides of a group of so many ranks; None where no such grid has as many."""
    degree: Callable[..., int]
    """Ranks of a group with these sides."""
    count: int
    """Numbers that name it."""

    def token(self, degree: int) -> str:
        """Token of the group in one-line plans."""
        sides = self.sides(degree)
        return f"tp{degree}-{self.name}" if sides is None else f"tp{self.name}{'x'.join(map(str, sides))}"

    def degrees(self, most: int) -> list[int]:
        """Ranks of every group of this shape up to so many."""
        return [degree for degree in range(2, most + 1) if self.sides(degree)]

    def nearest(self, degree: int) -> int:
        """Ranks of the group of this shape that has the number of ranks nearest to this one."""
        return min(self.degrees(2 * degree + 8), key=lambda one: (abs(one - degree), one))


def _square(degree: int) -> Sides | None:
    side = isqrt(degree)
    return (side,) if side * side == degree else None


def _cube(degree: int) -> Sides | None:
    side = round(degree ** (1 / 3))
    return (side,) if side**3 == degree else None


def _deep(degree: int) -> Sides | None:
    """The deepest grid where there are several: 512 ranks are 8 x 8 x 8, not 16 x 16 x 2."""
    if degree == 1:
        return (1, 1)
    sides = ((side, degree // side**2) for side in range(2, isqrt(degree) + 1) if degree % side**2 == 0)
    return next((found for found in sides if 2 <= found[1] <= found[0]), None)


GRIDS: dict[str, TensorGrid] = {
    grid.name: grid
    for grid in (
        TensorGrid("2d", "q x q", _square, lambda q: q * q, 1),
        TensorGrid("25d", "q x q x d with 2 <= d <= q", _deep, lambda q, d: q * q * d, 2),
        TensorGrid("3d", "q x q x q", _cube, lambda q: q**3, 1),
    )
}
"""The grids by the name of their strategy."""

_TOKEN = re.compile(rf"^tp({'|'.join(GRIDS)})([0-9]{{1,3}})((?:x[0-9]{{1,3}})*)$")


def grid_token(token: str) -> tuple[TensorGrid, Sides] | None:
    """Shape and sides that a token of a plan names; None for any other token.

    Args:
        token: the token as `tp2d2`.
    """
    match = _TOKEN.match(token)
    if match is None:
        return None
    return GRIDS[match[1]], (int(match[2]), *(int(side) for side in match[3].split("x")[1:]))


def grid_problem(grid: TensorGrid, sides: Sides) -> tuple[str, str] | None:
    """Why sides make no group of a shape, and the nearest one that they could mean.

    Args:
        grid: the shape.
        sides: the sides as a plan names them.
    """
    whole = (*sides, *(2,) * grid.count)[: grid.count]
    if len(sides) == grid.count and grid.sides(grid.degree(*sides)) == sides:
        return None
    near = grid.token(grid.nearest(max(grid.degree(*whole), 2)))
    return f"{grid.name} groups are grids of {grid.shape}", f"use {near}"
