"""Programs as flat lists of equations: calls are opened, so that a cut can go between any two operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

CALLS = ("jit", "pjit", "closed_call", "core_call")
"""Primitives that only group equations. Derivative rules, checkpoints and loops are kept whole: they mean something."""


def flat_jaxpr(fun: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct]) -> core.ClosedJaxpr:
    """The jaxpr of a function of flat arguments, its calls opened.

    Args:
        fun: of arrays, returns a list of arrays.
        shapes: of its arguments.
    """
    traced = jax.make_jaxpr(fun)(*shapes)
    while any(eqn.primitive.name in CALLS for eqn in traced.jaxpr.eqns):
        opened = traced
        traced = jax.make_jaxpr(lambda *given: _evaluate(opened, given))(*shapes)  # noqa: B023
    return traced


def _evaluate(closed: core.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """Run a program, opening its calls."""
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        if eqn.primitive.name in CALLS:
            inner = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
            inner = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
            results = _evaluate(inner, [read(atom) for atom in eqn.invars])
        else:
            alone = piece(jaxpr, [eqn])
            results = core.jaxpr_as_fun(alone)(*(values[var] for var in alone.jaxpr.invars))
            values.update(zip(alone.jaxpr.outvars, results, strict=True))
            continue
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def piece(
    jaxpr: core.Jaxpr,
    eqns: Sequence[core.JaxprEqn],
    inputs: Sequence[core.Var] | None = None,
    outputs: Sequence[core.Var] | None = None,
) -> core.ClosedJaxpr:
    """Some equations of a program as a program of their own.

    Args:
        jaxpr: where they stand.
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
            constvars=[], invars=list(inputs), outvars=list(outputs), eqns=list(eqns), effects=effects,
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        (),
    )  # fmt: skip


def free_variables(eqns: Sequence[core.JaxprEqn]) -> list[core.Var]:
    """Variables that equations read and do not write, in order of use.

    Args:
        eqns: in order.
    """
    written: set[core.Var] = set()
    free: dict[core.Var, None] = {}
    for eqn in eqns:
        free.update((atom, None) for atom in eqn.invars if isinstance(atom, core.Var) and atom not in written)
        written.update(eqn.outvars)
    return list(free)


def is_dropped(var: core.Var) -> bool:
    """Whether nobody can read a result."""
    return str(var) == "_"
