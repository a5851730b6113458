"""Ways to split one equation or one operand of a stage over the axes of a logical mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.compiler.sharding.cost import WHOLE, LogicalMesh, Placements
from meshwright.compiler.sharding.rules import SplitRule
from meshwright.shapes import Bool, Int

MOST_SCATTERED_AXES = 2
"""Axes of a mesh up to which contracted factors may also be reduce-scattered: 3 axes have 10 times the ways."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Strategies:
    """Ways to split an equation, one a row."""

    factors: Placements
    """Factor that each axis splits while the equation runs."""
    placed: Placements
    """Factor that each axis splits in the first result: the same, or the one that a sum is scattered over."""

    def __len__(self) -> int:
        return len(self.factors)


def equation_strategies(rule: SplitRule, mesh: LogicalMesh) -> Strategies:
    """Every factor on any axis or none, wherever the devices divide it; contracted ones all-reduced or scattered.

    Args:
        rule: the rule of the equation.
        mesh: its axes.
    """
    kept = [factor for factor in dict.fromkeys(rule.results[0]) if factor != WHOLE]
    options = [(WHOLE, WHOLE)]
    for factor in range(len(rule.sizes)):
        options.append((factor, factor if factor in kept else WHOLE))
        if factor not in kept and len(mesh.axes) <= MOST_SCATTERED_AXES:
            options += [(factor, onto) for onto in kept]
    table = np.array(options)
    rows = table[_every(len(options), len(mesh.axes))]
    factors, placed = rows[..., 0], rows[..., 1]
    fits = divides(rule.sizes, factors, mesh).all(-1) & divides(rule.sizes, placed, mesh).all(-1)
    factors, placed = factors[fits], placed[fits]
    # Where costs are equal the first way is taken: the one that leaves the smallest result.
    order = np.argsort(-mesh.shards(placed), kind="stable")
    return Strategies(factors=factors[order], placed=placed[order])


def operand_placements(shape: Sequence[int], mesh: LogicalMesh) -> Placements:
    """Every dimension of a value on any axis or none, wherever the devices divide it; most parts first.

    Args:
        shape: the shape of the value.
        mesh: its axes.
    """
    rows = _every(len(shape) + 1, len(mesh.axes)) - 1
    rows = rows[divides(shape, rows, mesh).all(-1)]
    return rows[np.argsort(-mesh.shards(rows), kind="stable")]


def moved_once(
    source: Placements, wanted: Sequence[tuple[Placements, Bool[np.ndarray, "choices axes"]]]
) -> tuple[Placements, Bool[np.ndarray, "choices axes"]]:
    """Where a value may go on its way to several equations, and axes along which its gradient is a sum on the way back.

    Args:
        source: placements of the value.
        wanted: where each equation, in each of its ways, wants the value and whose sums it sends back.
    """
    rows = [np.stack([source, np.zeros_like(source)], -1)]
    rows += [np.stack([target, sums.astype(target.dtype)], -1) for target, sums in wanted]
    joined = np.concatenate(rows)
    # First come the value's own places: where costs are equal it does not move.
    _, first = np.unique(joined.reshape(len(joined), -1), axis=0, return_index=True)
    kept = joined[np.sort(first)]
    return kept[..., 0], kept[..., 1].astype(bool)


def spread_axes(shape: Sequence[int], placements: Placements, mesh: LogicalMesh) -> Placements:
    """Placements with every axis that splits nothing put on the largest dimension it still divides.

    Args:
        shape: the shape of the value.
        placements: the placements of it.
        mesh: its axes.
    """
    found = placements.copy()
    for axis in range(len(mesh.axes)):
        for dim in sorted(range(len(shape)), key=lambda place: -shape[place]):
            tried = found.copy()
            tried[found[:, axis] == WHOLE, axis] = dim
            fits = divides(shape, tried, mesh).all(-1)
            found[fits] = tried[fits]
    return found


def divides(
    sizes: Sequence[int], rows: Int[np.ndarray, "choices axes"], mesh: LogicalMesh
) -> Bool[np.ndarray, "choices axes"]:
    """Whether the devices on each split factor or dimension divide its size.

    Args:
        sizes: the sizes of factors or dimensions.
        rows: the dimensions that each axis splits.
        mesh: its axes.
    """
    fits = np.ones(rows.shape, bool)
    for number, size in enumerate(sizes):
        here = rows == number
        parts = np.where(here, mesh.sizes, 1).prod(-1)
        fits &= ~here | ((parts > 0) & (size % parts == 0))[..., None]
    return fits


def _every(options: int, axes: int) -> Int[np.ndarray, "choices axes"]:
    return np.indices((options,) * axes).reshape(axes, options**axes).T
