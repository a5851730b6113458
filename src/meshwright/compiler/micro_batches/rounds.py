"""Loops whose samples meet in every round, as batch norm in stacked layers, written round by round: micro-batches then
go through the rounds in phases, as through layers that are written one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr, inlined, is_dropped
from meshwright.compiler.micro_batches.program import renamed_atom, renamed_equations

MOST_EQUATIONS = 4096
"""Largest number of equations of a loop that is written out, over all rounds: they are compiled one by one."""


def meets_in_rounds(eqn: core.JaxprEqn) -> bool:
    """Whether an equation is a loop that can be written out.

    Args:
        eqn: the equation at which samples meet.
    """
    if eqn.primitive.name != "scan" or eqn.params["jaxpr"].consts:
        return False
    return eqn.params["length"] * len(inlined(eqn.params["jaxpr"]).jaxpr.eqns) <= MOST_EQUATIONS


def round_by_round(program: core.Jaxpr, loops: Collection[core.JaxprEqn]) -> core.Jaxpr:
    """A program without some of its loops.

    Args:
        program: flat.
        loops: scans of it.
    """
    written, names, eqns = set(map(id, loops)), dict[Any, Any](), list[core.JaxprEqn]()
    for eqn in program.eqns:
        if id(eqn) in written:
            eqns += _rounds(eqn, names)
        else:
            eqns += renamed_equations([eqn], names)
    outvars = [renamed_atom(atom, names) for atom in program.outvars]
    return program.replace(eqns=eqns, outvars=outvars, debug_info=program.debug_info.with_unknown_names())


def _rounds(loop: core.JaxprEqn, names: dict[Any, Any]) -> list[core.JaxprEqn]:
    """The rounds of a loop in order; what its results are called is added to the names."""
    length, fixed, carried = (loop.params[name] for name in ("length", "num_consts", "num_carry"))
    given = [renamed_atom(atom, names) for atom in loop.invars]
    constants, carry, rows = given[:fixed], given[fixed : fixed + carried], given[fixed + carried :]
    body = inlined(loop.params["jaxpr"]).jaxpr
    found: list[core.JaxprEqn] = []

    def made(fun: Callable[..., Any], atoms: Sequence[Any]) -> Any:
        shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms]
        (result,) = _renewed(flat_jaxpr(lambda *values: [fun(*values)], shapes).jaxpr, atoms, found, loop)
        return result

    results: dict[int, list[Any]] = {}
    for number in reversed(range(length)) if loop.params["reverse"] else range(length):
        own = [made(lambda row: row[number], [row]) for row in rows]  # noqa: B023 (read at once)
        after = _renewed(body, [*constants, *carry, *own], found)
        carry, results[number] = after[:carried], after[carried:]
    names.update(zip(loop.outvars[:carried], carry, strict=True))
    for place, var in enumerate(loop.outvars[carried:]):
        if not is_dropped(var):
            names[var] = made(lambda *each: jnp.stack(each), [results[number][place] for number in range(length)])
    return found


def _renewed(
    body: core.Jaxpr, given: Sequence[Any], found: list[core.JaxprEqn], source: core.JaxprEqn | None = None
) -> list[Any]:
    """Results of a program for what it is given; its equations go behind those found, with names of their own.

    Args:
        body: flat, without constants.
        given: variables and literals.
        found: grows.
        source: equation whose line they stand for; their own without it.
    """
    names: dict[Any, Any] = dict(zip(body.invars, given, strict=True))
    names |= {var: core.Var(var.aval) for eqn in body.eqns for var in eqn.outvars if not is_dropped(var)}
    own = renamed_equations(body.eqns, names)
    found += own if source is None else [eqn.replace(source_info=source.source_info) for eqn in own]
    return [renamed_atom(atom, names) for atom in body.outvars]
