"""What a decision is about: nodes that choose, values that belong to them, equations that may be held to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend import core

from meshwright.compiler.sharding.cost import WHOLE, Placements
from meshwright.compiler.sharding.rules import SplitRule
from meshwright.compiler.sharding.strategies import Strategies
from meshwright.shapes import Bool, Float


@dataclass(eq=False, slots=True)
class DecisionNode:
    """One decision."""

    label: str
    placements: Placements
    """Placements of the first result, or of the operand, for each choice."""
    communication_s: Float[np.ndarray, " choices"]
    compute_s: Float[np.ndarray, " choices"]
    memory_bytes: Float[np.ndarray, " choices"]
    state_bytes: Float[np.ndarray, " choices"]
    """Part of the memory that is there once, whatever is in flight: parameters, gradients, optimizer state."""
    forward_s: Float[np.ndarray, " choices"]
    """Part of the seconds that is spent in the forward."""
    strategies: Strategies | None = None
    rule: SplitRule | None = None
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChosenValue:
    """Sharding of a variable for each choice of the node it belongs to."""

    node: int
    placements: Placements
    size_bytes: int
    differentiable: bool
    depth: int
    parameter: bool = False
    dims: tuple[int, ...] | None = None
    """Source dimension of each dimension of a broadcast, which is never materialised, or -1; None otherwise."""

    def seen(self) -> Placements:
        """Placements in the dimensions of the variable itself."""
        if self.dims is None:
            return self.placements
        found = [self.dims.index(dim) if dim in self.dims else WHOLE for dim in range(max(self.dims, default=-1) + 1)]
        inner = np.where(self.placements < len(found), self.placements, WHOLE)
        return np.array([*found, WHOLE])[inner]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HeldValue:
    """Where a value is held for each choice of a node."""

    node: int
    placements: Placements


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MovedValue:
    """A move of a value that several operators take part in, for each choice of its node."""

    node: int
    sums: Bool[np.ndarray, "choices axes"]
    """Axes along which the gradient that comes back is a sum still to be taken, added up over the operators."""


@dataclass(eq=False, slots=True, kw_only=True)
class Operand:
    """A value that an equation takes which chooses for itself."""

    var: Any
    use: ChosenValue
    node: int
    """Node of the equation."""
    target: Placements
    """Where the equation wants it, for each of its choices."""
    sums: Bool[np.ndarray, "choices axes"]
    """Axes along which its gradient is a sum still to be taken."""
    adds: bool
    """Whether that gradient can be added to those of other equations before the sum is taken (`copies`)."""
    sizes: tuple[int, ...]
    """Devices along each axis."""
    scale: float
    """Trip count of the loops around the equation."""
    again: float
    """How often the backward runs the equation once more."""
    through: MovedValue | None = None
    """The move by which it comes, where other operators take the value, too."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class EquationSite:
    """An equation of the stage that may be given constraints."""

    eqn: core.JaxprEqn
    given: tuple[HeldValue | None, ...] = ()
    """Where each operand comes from."""
    operands: tuple[HeldValue | None, ...] = ()
    """Where it wants each operand; None for those that are free."""
    made: tuple[HeldValue | None, ...] = ()
    """Where each result is before a sum is scattered, and where its gradient is wanted."""
    results: tuple[HeldValue | None, ...] = ()
    taken: tuple[Operand | None, ...] = ()
    """How operands come to an equation that chooses for itself."""
    inner: tuple[EquationSite, ...] = ()
    """Equations of the program that it holds."""
    entries: tuple[HeldValue | None, ...] = ()
    """Where operands of that program are."""
    exits: tuple[HeldValue | None, ...] = ()
    """Where its results are."""
