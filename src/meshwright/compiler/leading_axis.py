"""Values split along their first axis: which equations carry a partition on, and what parts compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
from jax.extend import core

from meshwright.compiler.inline import is_dropped
from meshwright.compiler.pointwise import POINTWISE

Bounds = tuple[int, ...]
"""Where parts begin along the first axis, and the size of the axis."""
COMBINED = {
    "reduce_sum": jax.lax.add_p, "reduce_max": jax.lax.max_p, "reduce_min": jax.lax.min_p,
    "reduce_prod": jax.lax.mul_p, "reduce_and": jax.lax.and_p, "reduce_or": jax.lax.or_p,
    "dot_general": jax.lax.add_p,
}  # fmt: skip
"""What puts the results of parts together, by the equation that removes the first axis."""


@dataclass(frozen=True, slots=True)
class Tie:
    """Operands and results of an equation whose first axes are one and the same, entry by entry or block by block."""

    operands: tuple[bool, ...]
    results: tuple[bool, ...]

    @property
    def combines(self) -> bool:
        """Whether the axis is gone behind the equation, so that results of parts are put together."""
        return not any(self.results)


def tie_of(eqn: core.JaxprEqn) -> Tie | None:
    """How a partition of first axes goes through an equation; None where it does not.

    Args:
        eqn: any.
    """
    name, params = eqn.primitive.name, eqn.params
    made = eqn.outvars[0].aval.shape if eqn.outvars else ()
    read = [atom.aval.shape for atom in eqn.invars]
    here = (True,) * len(eqn.outvars)
    if name in POINTWISE:
        # Operands of one entry along an axis serve all entries of the result.
        fitting = all(
            not shape or (len(shape) == len(made) and all(a in (1, b) for a, b in zip(shape, made, strict=True)))
            for shape in read
        )
        tied = tuple(shape[:1] == made[:1] for shape in read)
        return Tie(tied, here) if made and fitting else None
    match name:
        case "broadcast_in_dim" if made:
            places = params["broadcast_dimensions"]
            along = read[0][places.index(0)] if 0 in places else 1
            if len(read) == 1 and (along == 1 or (along == made[0] and places[0] == 0)):
                return Tie((along != 1,), here)
        case "transpose" if params["permutation"][:1] == (0,):
            return Tie((True,), here)
        case "squeeze" if made and 0 not in params["dimensions"]:
            return Tie((True,), here)
        case "reshape" if made and read[0] and params["dimensions"] is None:
            return Tie((True,), here)
        case "concatenate" if params["dimension"] != 0:
            return Tie((True,) * len(read), here)
        case "dot_general":
            (left, right), (left_batch, right_batch) = params["dimension_numbers"]
            if left_batch[:1] == right_batch[:1] == (0,):
                return Tie((True, True), here)
            if (0, 0) in zip(left, right, strict=True):
                return Tie((True, True), (False,))
        case _ if name in COMBINED and read[0] and len(read) == 1:
            return Tie((True,), (0 not in params["axes"],))
    return None


def spread_partition(
    eqns: Sequence[core.JaxprEqn], known: dict[core.Var, Bounds], fixed: Iterable[core.Var] = ()
) -> None:
    """Carry partitions along equations in both directions, until nothing is added.

    Args:
        eqns: the equations in order.
        known: partitions that are given; grows.
        fixed: variables that stay whole.
    """
    whole = set(fixed)
    ties = [(eqn, tie) for eqn in eqns if (tie := tie_of(eqn)) is not None]
    count = -1
    while len(known) != count:
        count = len(known)
        for eqn, tie in [*ties, *reversed(ties)]:
            tied = [
                atom
                for atom, is_tied in zip([*eqn.invars, *eqn.outvars], [*tie.operands, *tie.results], strict=True)
                if is_tied and isinstance(atom, core.Var)
            ]
            first = next((var for var in tied if var in known), None)
            if first is None:
                continue
            for var in tied:
                if var not in known and var not in whole and not is_dropped(var):
                    bounds = scaled_partition(known[first], var.aval.shape[0])
                    if bounds is not None:
                        known[var] = bounds


def scaled_partition(bounds: Bounds, size: int) -> Bounds | None:
    """The same partition of an axis of another size; None where an entry would be cut.

    Args:
        bounds: the bounds of a partition.
        size: the size of the other axis.
    """
    if any(bound * size % bounds[-1] for bound in bounds):
        return None
    return tuple(bound * size // bounds[-1] for bound in bounds)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Stacking:
    """What the user of a step sees stacked and the step itself takes and returns in parts."""

    in_tree: Any
    """Tree of the arguments as the user passes them."""
    out_tree: Any
    inputs: tuple[Bounds | None, ...]
    """First row of each part, for every leaf that the user passes; None where a leaf is not stacked."""
    outputs: tuple[Bounds | None, ...]

    def parted(self, leaves: Sequence[Any], part: Callable[[Any, Bounds], Sequence[Any]]) -> list[Any]:
        """Inputs of the step, of what the user passes.

        Args:
            leaves: the leaves as the user passes them; the state alone, or all of them.
            part: parts of a leaf.
        """
        found: list[Any] = []
        for leaf, bounds in zip(leaves, self.inputs, strict=False):
            found += [leaf] if bounds is None else part(leaf, bounds)
        return found

    def first_of(self, leaf: int) -> int:
        """Input of the step that is a leaf, or its first part.

        Args:
            leaf: its number among those that the user passes.
        """
        return sum(1 if own is None else len(own) - 1 for own in self.inputs[:leaf])

    def joined(self, outputs: Sequence[Any], join: Callable[[Sequence[Any], Bounds], Any]) -> list[Any]:
        """What the user gets, of the outputs of the step.

        Args:
            outputs: the outputs of the step.
            join: parts to one value.
        """
        return _grouped(outputs, self.outputs, join)

    def joined_inputs(self, inputs: Sequence[Any], join: Callable[[Sequence[Any], Bounds], Any]) -> list[Any]:
        """What the user passes, of the inputs of the step.

        Args:
            inputs: the inputs of the step; the state alone, or all of them.
            join: parts to one value.
        """
        return _grouped(inputs, self.inputs, join)


def _grouped(
    values: Sequence[Any], partitions: Sequence[Bounds | None], join: Callable[[Sequence[Any], Bounds], Any]
) -> list[Any]:
    found: list[Any] = []
    at = 0
    for bounds in partitions:
        if at == len(values):
            break
        parts = 1 if bounds is None else len(bounds) - 1
        found.append(values[at] if bounds is None else join(values[at : at + parts], bounds))
        at += parts
    return found


def tree_in_parts(tree: Any, partitions: Sequence[Bounds | None]) -> Any:
    """The tree with a tuple of parts for each leaf that is split.

    Args:
        tree: structure, of whole leaves.
        partitions: the partitions of each leaf.
    """
    return jax.tree.structure(
        jax.tree.unflatten(tree, [0 if own is None else (0,) * (len(own) - 1) for own in partitions])
    )


Origin = tuple[int, float]
"""Equation that another was made of, and where its part begins as a share of the axis; 1 behind all parts."""


class Parting:
    """Equations written anew, on parts where their values are split."""

    def __init__(self, known: Mapping[core.Var, Bounds]) -> None:
        """Nothing is written yet.

        Args:
            known: partition of each variable that is split.
        """
        self.known = known
        self.eqns: list[core.JaxprEqn] = []
        self.origins: list[Origin] = []
        self.parts: dict[core.Var, tuple[core.Var, ...]] = {}
        self._sliced: dict[tuple[Any, Bounds], tuple[Any, ...]] = {}
        self._joined: dict[core.Var, core.Var] = {}

    def operand(self, var: core.Var) -> tuple[core.Var, ...]:
        """An operand in parts, which become operands.

        Args:
            var: the variable whose partition is known.
        """
        self.parts[var] = tuple(_part_of(var, high - low) for low, high in spans(self.known[var]))
        return self.parts[var]

    def write(self, eqn: core.JaxprEqn, place: int) -> None:
        """An equation, on parts where they go through it.

        Args:
            eqn: the equation.
            place: its number, for `origins`.
        """
        tie = tie_of(eqn)
        bounds = None if tie is None else self._bounds(eqn, tie)
        if tie is None or bounds is None:
            self.add(eqn.replace(invars=[self.whole(atom, eqn, place) for atom in eqn.invars]), (place, 0.0))
        else:
            self._on_parts(eqn, place, tie, bounds)

    def add(self, eqn: core.JaxprEqn, origin: Origin) -> None:
        """An equation as it is.

        Args:
            eqn: the equation on variables of the new program.
            origin: the origin where it comes from.
        """
        self.eqns.append(eqn)
        self.origins.append(origin)

    def whole(self, atom: Any, reader: core.JaxprEqn, place: int) -> Any:
        """A value in one piece.

        Args:
            atom: a variable or literal of the old program.
            reader: equation that wants it.
            place: the place of the reader.
        """
        if not isinstance(atom, core.Var) or atom not in self.parts:
            return atom
        if atom not in self._joined:
            joined = self._joined[atom] = core.Var(atom.aval)
            self.add(_helper(reader, jax.lax.concatenate_p, self.parts[atom], joined, dimension=0), (place, 1.0))
        return self._joined[atom]

    def in_parts(self, atom: Any, bounds: Bounds, reader: core.JaxprEqn, place: int) -> tuple[Any, ...]:
        """A value in parts.

        Args:
            atom: a variable or literal of the old program.
            bounds: the bounds of the parts.
            reader: equation that wants them.
            place: the place of the reader.
        """
        if isinstance(atom, core.Var) and atom in self.parts and self.known[atom] == bounds:
            return self.parts[atom]
        if (atom, bounds) not in self._sliced:
            found = []
            given = self.whole(atom, reader, place)
            for low, high in spans(bounds):
                part = _part_of(atom, high - low)
                start, limit = [0] * len(atom.aval.shape), list(atom.aval.shape)
                start[0], limit[0] = low, high
                self.add(
                    _helper(
                        reader,
                        jax.lax.slice_p,
                        [given],
                        part,
                        start_indices=tuple(start),
                        limit_indices=tuple(limit),
                        strides=None,
                    ),
                    (place, low / bounds[-1]),
                )
                found.append(part)
            self._sliced[atom, bounds] = tuple(found)
        return self._sliced[atom, bounds]

    def _bounds(self, eqn: core.JaxprEqn, tie: Tie) -> Bounds | None:
        """Partition of the results, or where the axis is gone that of the first operand in parts."""
        if not tie.combines:
            found = {self.known.get(var) for var in eqn.outvars}
            return found.pop() if len(found) == 1 else None
        of_operands = [atom for atom, tied in zip(eqn.invars, tie.operands, strict=True) if tied]
        return next(
            (self.known[atom] for atom in of_operands if isinstance(atom, core.Var) and atom in self.parts), None
        )

    def _on_parts(self, eqn: core.JaxprEqn, place: int, tie: Tie, bounds: Bounds) -> None:
        read: list[tuple[Any, ...]] = []
        for atom, tied in zip(eqn.invars, tie.operands, strict=True):
            own = scaled_partition(bounds, atom.aval.shape[0]) if tied else None
            parts = len(bounds) - 1
            given = self.in_parts(atom, own, eqn, place) if own else (self.whole(atom, eqn, place),) * parts
            read.append(given)
        made: list[list[core.Var]] = [[] for _ in eqn.outvars]
        for (low, high), invars in zip(spans(bounds), zip(*read, strict=True) if read else (), strict=True):
            outvars = [
                var
                if is_dropped(var) or (tie.combines and len(bounds) == 2)
                else core.Var(var.aval)
                if tie.combines
                else _part_of(var, high - low)
                for var in eqn.outvars
            ]
            for own_made, var in zip(made, outvars, strict=True):
                own_made.append(var)
            params = _params(eqn, high - low)
            self.add(eqn.replace(invars=list(invars), outvars=outvars, params=params), (place, low / bounds[-1]))
        if not tie.combines:
            self.parts.update((var, tuple(own)) for var, own in zip(eqn.outvars, made, strict=True))
            return
        together = COMBINED[eqn.primitive.name]
        (result,), (sums,) = eqn.outvars, made
        so_far = sums[0]
        for number, part in enumerate(sums[1:], 1):
            after = result if number + 1 == len(sums) else core.Var(result.aval)
            self.add(_helper(eqn, together, [so_far, part], after), (place, bounds[number] / bounds[-1]))
            so_far = after


def spans(bounds: Bounds) -> list[tuple[int, int]]:
    """Where each part begins and ends.

    Args:
        bounds: the bounds of a partition.
    """
    return list(pairwise(bounds))


def _part_of(var: Any, size: int) -> core.Var:
    return core.Var(var.aval.update(shape=(size, *var.aval.shape[1:])))


def _params(eqn: core.JaxprEqn, size: int) -> dict[str, Any]:
    """Parameters of an equation that makes a part of its result."""
    match eqn.primitive.name:
        case "reshape":
            return {**eqn.params, "new_sizes": (size, *eqn.params["new_sizes"][1:])}
        case "broadcast_in_dim":
            return {**eqn.params, "shape": (size, *eqn.params["shape"][1:])}
    return dict(eqn.params)


def _helper(
    like: core.JaxprEqn, primitive: core.Primitive, invars: Sequence[Any], outvar: core.Var, **params: Any
) -> core.JaxprEqn:
    """A small equation that stands for the same line of the user's code as another."""
    return like.replace(
        primitive=primitive, invars=list(invars), outvars=[outvar], params=params, effects=core.no_effects
    )
