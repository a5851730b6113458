"""A program as it is evaluated for one micro-batch, and pieces of it in the names of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr, is_dropped
from meshwright.compiler.micro_batches.walk import MicroBatchWalk
from meshwright.compiler.samples.placements import WHOLE, Placement
from meshwright.compiler.samples.sorting import in_batch_order
from meshwright.compiler.samples.values import RankValue, part_shape


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SampleProgram:
    """A program as it is evaluated for one micro-batch; `total_p` stands where values of the whole batch do."""

    jaxpr: core.Jaxpr
    consts: Sequence[Any]
    placements: Sequence[Placement]
    """Placements of the program's results."""

    @property
    def made(self) -> dict[Any, core.JaxprEqn]:
        """Equation of each variable."""
        return {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}


def evaluated(
    program: core.Jaxpr,
    placements: Sequence[Placement],
    moving: Iterable[int],
    parts: int,
    *,
    sums: bool,
    kind: type[MicroBatchWalk] = MicroBatchWalk,
) -> SampleProgram:
    """A program for one micro-batch, whose number it takes last.

    Args:
        program: the program, without constants.
        placements: the placements of its operands.
        moving: operands that are differentiated.
        parts: micro-batches.
        sums: whether the first result is made a sum if it is none.
        kind: the kind of walk.
    """
    found: list[Placement] = []
    moved = set(moving)

    def run(*given: Any) -> list[Any]:
        walk = kind(parts, given[-1])
        values = [
            RankValue(value, placement, moves=place in moved)
            for place, (value, placement) in enumerate(zip(given, placements, strict=False))
        ]
        made = list(in_batch_order(walk.read(program, values)))
        if sums and made[0].placement == WHOLE and not made[0].late:
            made[0] = walk.summand(made[0])
        made = [walk.total(value) for value in made]
        found[:] = [value.placement for value in made]
        return [value.value for value in made]

    shapes = [
        jax.ShapeDtypeStruct(part_shape(var.aval.shape, placement, parts), var.aval.dtype)
        for var, placement in zip(program.invars, placements, strict=True)
    ]
    closed = flat_jaxpr(run, [*shapes, jax.ShapeDtypeStruct((), jnp.int32)])
    return SampleProgram(jaxpr=closed.jaxpr, consts=closed.consts, placements=tuple(found))


def renamed_atom(atom: Any, names: Mapping[Any, Any]) -> Any:
    """A variable under its name in another program; literals, and variables without another name, as they are.

    Args:
        atom: variable or literal.
        names: the names of variables.
    """
    return names.get(atom, atom) if isinstance(atom, core.Var) else atom


def renamed_equations(eqns: Sequence[core.JaxprEqn], names: Mapping[Any, Any]) -> list[core.JaxprEqn]:
    """Equations in other names.

    Args:
        eqns: the equations to rename.
        names: the names of their variables; the others keep theirs.
    """
    return [
        eqn.replace(
            invars=[renamed_atom(atom, names) for atom in eqn.invars],
            outvars=[var if is_dropped(var) else renamed_atom(var, names) for var in eqn.outvars],
        )
        for eqn in eqns
    ]
