"""Programs as flat lists of equations: calls are opened, so that a cut can go between any two operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.source_line import line_of

CALLS = ("jit", "pjit", "closed_call", "core_call")
"""Primitives that only group equations. Derivative rules, checkpoints and loops are kept whole: they mean something."""
CHECKPOINTS = ("checkpoint", "remat2")
"""Primitives whose program runs once more where its backward reads it."""


def flat_jaxpr(fun: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct]) -> core.ClosedJaxpr:
    """The jaxpr of a function of flat arguments, its calls opened.

    Args:
        fun: the function of arrays, returns a list of arrays.
        shapes: the shapes of its arguments.
    """
    return inlined(jax.make_jaxpr(fun)(*shapes))


def inlined(closed: core.ClosedJaxpr, calls: Collection[str] = CALLS) -> core.ClosedJaxpr:
    """A program with its calls opened, at any depth of calls.

    Args:
        closed: the program.
        calls: primitives that are opened.
    """
    jaxpr = closed.jaxpr
    constants: dict[core.Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    names: dict[core.Var, Any] = {}
    eqns = _opened_body(jaxpr, names, constants, calls)
    return core.ClosedJaxpr(
        jaxpr.replace(
            constvars=list(constants),
            eqns=eqns,
            outvars=[_named(atom, names) for atom in jaxpr.outvars],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        list(constants.values()),
    )


def _opened_body(
    jaxpr: core.Jaxpr,
    names: dict[core.Var, Any],
    constants: dict[core.Var, Any],
    calls: Collection[str],
    caller: core.JaxprEqn | None = None,
) -> list[core.JaxprEqn]:
    """Equations of a body with the bodies of its calls in their place.

    Args:
        jaxpr: the body.
        names: what its variables are called outside; grows. Every result gets a name of its own, as one body may be
            called many times.
        constants: the constants of opened calls; grows.
        calls: primitives that are opened.
        caller: the call that the body is of; None for the whole program.
    """
    eqns: list[core.JaxprEqn] = []
    for eqn in jaxpr.eqns:
        invars = [_named(atom, names) for atom in eqn.invars]
        if eqn.primitive.name not in calls:
            names.update((var, core.Var(var.aval)) for var in eqn.outvars if not is_dropped(var))
            # What JAX's own functions call stands for the line that calls them.
            source = eqn.source_info if caller is None or line_of(eqn) else caller.source_info
            outvars = [names.get(var, var) for var in eqn.outvars]
            eqns.append(eqn.replace(invars=invars, outvars=outvars, source_info=source))
            continue
        held = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
        inner, consts = (held.jaxpr, held.consts) if isinstance(held, core.ClosedJaxpr) else (held, ())
        inside = dict(zip(inner.invars, invars, strict=True))
        for var, value in zip(inner.constvars, consts, strict=True):
            inside[var] = core.Var(var.aval)
            constants[inside[var]] = value
        call = eqn if caller is None or line_of(eqn) else caller
        eqns += _opened_body(inner, inside, constants, calls, call)
        names.update((var, _named(atom, inside)) for var, atom in zip(eqn.outvars, inner.outvars, strict=True))
    return eqns


def _named(atom: Any, names: dict[core.Var, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else names.get(atom, atom)


def piece(
    jaxpr: core.Jaxpr,
    eqns: Sequence[core.JaxprEqn],
    inputs: Sequence[core.Var] | None = None,
    outputs: Sequence[core.Var] | None = None,
) -> core.ClosedJaxpr:
    """Some equations of a program as a program of their own.

    Args:
        jaxpr: the jaxpr where they stand.
        eqns: the equations, in order.
        inputs: variables it takes; without it what the equations read and do not write, in order of use.
        outputs: variables it returns; without it all that the equations write.
    """
    if inputs is None:
        inputs = free_variables(eqns)
    if outputs is None:
        outputs = [var for eqn in eqns for var in eqn.outvars if not is_dropped(var)]
    effects = frozenset().union(*(eqn.effects for eqn in eqns)) if eqns else frozenset()
    return core.ClosedJaxpr(
        jaxpr.replace(
            constvars=[],
            invars=list(inputs),
            outvars=list(outputs),
            eqns=list(eqns),
            effects=effects,
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        (),
    )


def free_variables(eqns: Sequence[core.JaxprEqn]) -> list[core.Var]:
    """Variables that equations read and do not write, in order of use.

    Args:
        eqns: the equations in order.
    """
    written: set[core.Var] = set()
    free: dict[core.Var, None] = {}
    for eqn in eqns:
        free.update((atom, None) for atom in eqn.invars if isinstance(atom, core.Var) and atom not in written)
        written.update(eqn.outvars)
    return list(free)


def is_dropped(var: core.Var) -> bool:
    """Whether nobody can read a result."""
    # Only these have a class of their own, which JAX does not name in public; to print a variable takes long.
    return type(var) is not core.Var and str(var) == "_"


HOLDS = (core.ClosedJaxpr, core.Jaxpr, tuple, list)
"""Types of parameters that may hold programs."""


def programs_of(eqn: core.JaxprEqn) -> list[core.Jaxpr]:
    """Programs inside an equation: bodies of loops, branches, functions with rules of their own.

    Args:
        eqn: the equation of a traced program.
    """
    # Asked of every equation several times: most parameters are numbers and shapes.
    return [inner for value in eqn.params.values() if isinstance(value, HOLDS) for inner in programs_in(value)]


def holds(eqn: core.JaxprEqn, name: str) -> bool:
    """Whether an equation is of a primitive, or one inside of it is, at any depth.

    Args:
        eqn: the equation of a traced program.
        name: the name of the primitive.
    """
    return eqn.primitive.name == name or any(holds(one, name) for inner in programs_of(eqn) for one in inner.eqns)


def programs_in(value: Any) -> list[core.Jaxpr]:
    """Programs that a parameter of an equation holds.

    Args:
        value: the value of the parameter.
    """
    held = value if isinstance(value, tuple | list) else (value,)
    return [getattr(one, "jaxpr", one) for one in held if isinstance(one, core.ClosedJaxpr | core.Jaxpr)]


def with_programs(value: Any, rewrite: Callable[[core.ClosedJaxpr | core.Jaxpr], Any]) -> Any:
    """A parameter of an equation with other programs in it; one that holds none as it is.

    Args:
        value: the value of the parameter.
        rewrite: the function from a program to the one in its place.
    """
    if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
        return rewrite(value)
    if not (isinstance(value, tuple | list) and programs_in(value)):
        return value
    found = [with_programs(one, rewrite) for one in value]
    # Solvers of linear systems hold theirs in a tuple with names.
    return value._make(found) if hasattr(value, "_make") else type(value)(found)


def reached(start: Iterable[Any], eqns: Sequence[core.JaxprEqn], *, by_gradient: bool = False) -> set[Any]:
    """Values that depend on some others, which are among them.

    Args:
        start: the others.
        eqns: the equations in order.
        by_gradient: whether only those count that have a gradient by them.
    """
    found = set(start)
    for eqn in eqns:
        if by_gradient and eqn.primitive.name == "stop_gradient":
            continue
        if any(isinstance(atom, core.Var) and atom in found for atom in eqn.invars):
            found.update(var for var in eqn.outvars if not by_gradient or has_gradient(var.aval.dtype))
    return found


def depended_on(wanted: Iterable[Any], made: Mapping[Any, core.JaxprEqn], *, by_gradient: bool = False) -> set[int]:
    """Equations (their `id`) that some values need, or only those that they have a gradient by.

    Args:
        wanted: variables or literals.
        made: equation of each variable.
        by_gradient: whether what stands before a `stop_gradient`, or before whole numbers, is left out.
    """
    left, found = list(wanted), set()
    while left:
        atom = left.pop()
        eqn = made.get(atom) if isinstance(atom, core.Var) else None
        if by_gradient and not has_gradient(atom.aval.dtype):
            continue
        if eqn is not None and id(eqn) not in found:
            found.add(id(eqn))
            left += [] if by_gradient and eqn.primitive.name == "stop_gradient" else eqn.invars
    return found


def has_gradient(dtype: Any) -> bool:
    """Whether gradients go through values of a type: not through whole numbers, such as how many words chose an expert.

    Args:
        dtype: the number format of NumPy or JAX.
    """
    return bool(jax.dtypes.issubdtype(dtype, jnp.inexact))
