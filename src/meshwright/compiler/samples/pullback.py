"""A function with a pullback of its own (`jax.custom_vjp`) for the samples of one rank: both programs are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr, piece
from meshwright.compiler.samples.placements import SUM, NotShared, Placement

RULES = ("custom_jvp_call", "custom_vjp_call")


def with_own_pullback(walk: Any, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[Any]) -> list[Any]:
    """Results of a `custom_vjp_call`, whose rule is that of the function.

    Args:
        walk: of the rank (`Walk`, which reads such equations by this function).
        program: the equation stands in.
        eqn: the equation.
        given: its operands (`RankValue`); no sums.

    Raises:
        NotShared: the function or its pullback mixes samples.
    """
    value_of = type(given[0])
    placements = [value.placement for value in given]
    moving = [at for at, atom in enumerate(eqn.invars) if jnp.issubdtype(atom.aval.dtype, jnp.inexact)]
    forward, backward, results = _programs(program, eqn, moving)
    # The rule is read when it is asked for, when the number of the rank is no longer at hand.
    inner = walk.without_number()
    made_as: list[Placement] = []
    kept_as: list[Placement] = []

    def read_forward(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        held = [value_of(value, placement) for value, placement in zip(values, placements, strict=True)]
        read = [inner.total(one) for one in inner.read(forward.jaxpr, held, forward.consts)]
        made_as[:] = [one.placement for one in read[:results]]
        kept_as[:] = [one.placement for one in read[results:]]
        return [one.value for one in read[:results]], [one.value for one in read[results:]]

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def function(*values: Any) -> list[Any]:
        return read_forward(values)[0]

    def pulled_back(kept: Sequence[Any], changes: Sequence[Any]) -> tuple[Any, ...]:
        held = [value_of(value, placement) for value, placement in zip(kept, kept_as, strict=True)]
        held += [value_of(value, placement) for value, placement in zip(changes, made_as, strict=True)]
        found: list[Any] = [None] * len(eqn.invars)
        for at, one in zip(moving, inner.read(backward.jaxpr, held, backward.consts), strict=True):
            found[at] = _share(inner, one, placements[at])
        return tuple(found)

    function.defvjp(lambda *values: read_forward(values), pulled_back)
    values = [value.value for value in given]
    made = function(*values)
    if walk.rank is not None:
        # Whether the pullback keeps samples apart has to be known at once.
        jax.eval_shape(lambda *own: jax.vjp(function, *own)[1](list(function(*own))), *values)
    return [value_of(value, placement) for value, placement in zip(made, made_as, strict=True)]


def _share(walk: Any, change: Any, placement: Placement) -> Any:
    """What a rank has of the change of an operand: of samples its own, of weights its part of the sum."""
    if placement >= 0:
        return walk.own(change, placement).value
    if change.placement >= 0:
        raise NotShared("a pullback makes values for samples of what counts none")
    return (change if change.placement == SUM else walk.summand(change)).value


def _programs(
    program: core.Jaxpr, eqn: core.JaxprEqn, moving: Sequence[int]
) -> tuple[core.ClosedJaxpr, core.ClosedJaxpr, int]:
    """The forward program, which also returns what the pullback keeps, the pullback, and how many results there are."""
    fresh = [core.Var(atom.aval) for atom in eqn.invars]
    alone = core.jaxpr_as_fun(piece(program, [eqn.replace(invars=fresh)], fresh))
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in fresh]
    tree: list[Any] = []

    def forward(*values: Any) -> list[Any]:
        def differentiated(*own: Any) -> list[Any]:
            given = list(values)
            for at, value in zip(moving, own, strict=True):
                given[at] = value
            return list(alone(*given))

        made, pullback = jax.vjp(differentiated, *(values[at] for at in moving))
        kept, structure = jax.tree.flatten(pullback)
        tree[:] = [structure]
        return [*made, *kept]

    first = _undifferentiated(flat_jaxpr(forward, shapes))
    results = len(eqn.outvars)
    kept = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in first.jaxpr.outvars]

    def backward(*given: Any) -> list[Any]:
        pullback = jax.tree.unflatten(tree[0], given[: len(kept) - results])
        return list(pullback(list(given[len(kept) - results :])))

    return first, _undifferentiated(flat_jaxpr(backward, [*kept[results:], *kept[:results]])), results


def _undifferentiated(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program of a rule: what it calls is differentiated no more, such as the function that it is the rule of."""
    if not any(eqn.primitive.name in RULES for eqn in closed.jaxpr.eqns):
        return closed

    def run(*given: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(closed.jaxpr.invars, given, strict=True))
        values |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        for eqn in closed.jaxpr.eqns:
            read = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in eqn.invars]
            if eqn.primitive.name in RULES:
                made = core.jaxpr_as_fun(eqn.params["call_jaxpr"])(*read)
            else:
                made = eqn.primitive.bind(*read, **eqn.primitive.get_bind_params(eqn.params))
            several = isinstance(made, list | tuple)
            values.update(zip(eqn.outvars, made if several else [made], strict=True))
        return [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in closed.jaxpr.outvars]

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.invars]
    return _undifferentiated(flat_jaxpr(run, shapes))
