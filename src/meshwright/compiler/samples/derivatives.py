"""Functions with a rule for their derivative, written for a part of the samples together with the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters.ad import CustomVJPException
from jax._src.linear_util import StoreException
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr, piece
from meshwright.compiler.samples.placements import SUM, WHOLE, NotShared, Placement
from meshwright.compiler.samples.sorting import in_batch_order
from meshwright.compiler.samples.values import RankValue, Reader

UNREAD_PULLBACKS = (CustomVJPException, StoreException)
"""What JAX raises for a pullback that it cannot trace once more: it closes over numbers of the first trace."""


def with_own_derivative(
    reader: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue]:
    """Results of a function with a rule for its derivative.

    Args:
        reader: the reader of the program.
        program: the program in which it is called.
        eqn: a `custom_jvp_call`.
        given: operands; none is a sum.
    """
    placements = [value.placement for value in given]
    moving = [place for place, atom in enumerate(eqn.invars) if jnp.issubdtype(atom.aval.dtype, jnp.inexact)]
    derived = _derived(program, eqn, moving)
    found: list[tuple[Placement, Any]] = []
    orders = [value.order for value in given]

    # The rule is read again whenever it is asked for, when the number of the rank is another variable.
    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def function(number: Any, *values: Any) -> list[Any]:
        held = [
            RankValue(value, placement, order=order)
            for value, placement, order in zip(values, placements, orders, strict=True)
        ]
        made = _plain(reader, number).inside(eqn, held)
        found[:] = [(value.placement, value.order) for value in made]
        return [value.value for value in made]

    @function.defjvp  # type: ignore[untyped-decorator]
    def _(values: Any, changes: Any) -> tuple[list[Any], list[Any]]:
        held = zip(
            [*values[1:], *(changes[1 + at] for at in moving)],
            [*placements, *(placements[at] for at in moving)],
            [*orders, *(orders[at] for at in moving)],
            strict=True,
        )
        operands = [RankValue(value, placement, order=order) for value, placement, order in held]
        read = _plain(reader, values[0]).read(derived.jaxpr, operands, derived.consts)
        own, rest = read[: len(eqn.outvars)], iter(read[len(eqn.outvars) :])
        made = [value.value for value in own]
        return made, [
            next(rest).value if jnp.issubdtype(value.dtype, jnp.inexact) else np.zeros(value.shape, jax.dtypes.float0)
            for value in made
        ]

    number = jnp.zeros((), jnp.int32) if reader.rank is None else reader.rank
    values = [value.value for value in given]
    made = function(number, *values)
    # Whether the rule keeps samples apart has to be known at once.
    jax.eval_shape(
        lambda *own: jax.jvp(lambda *moved: function(number, *_placed(values, moving, moved)), own, own),
        *(values[at] for at in moving),
    )
    return [RankValue(value, placement, order=order) for value, (placement, order) in zip(made, found, strict=True)]


def _plain(reader: Reader, number: Any) -> Reader:
    """What a rule computes is not differentiated once more."""
    found = reader.elsewhere(number)
    found.plain = True
    return found


def with_own_backward(
    reader: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue]:
    """Results of a function with a rule for its backward: what it keeps and what it makes of it are read for the part.

    Args:
        reader: the reader of the program.
        program: the program in which it is called.
        eqn: a `custom_vjp_call`.
        given: operands; none is a sum.
    """
    if not all(jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in eqn.outvars):
        raise NotShared("a function with a backward of its own returns whole numbers")
    placements = [value.placement for value in given]
    moving = [place for place, atom in enumerate(eqn.invars) if jnp.issubdtype(atom.aval.dtype, jnp.inexact)]
    try:
        forward, backward = _both_ways(program, eqn, moving)
    except UNREAD_PULLBACKS:
        # Behind `vmap` what it closes over stands among its operands, and nothing says which they are.
        raise NotShared("a function with a backward of its own closes over numbers") from None
    count = len(eqn.outvars)
    made_placements: list[Placement] = []

    def run(number: Any, values: Sequence[Any]) -> list[Any]:
        walk = _plain(reader, number)
        held = [RankValue(value, placement) for value, placement in zip(values, placements, strict=True)]
        made = in_batch_order(walk.read(forward.jaxpr, held, forward.consts))
        made_placements[:] = [value.placement for value in made]
        return [value.value for value in made]

    def pulled(number: Any, kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        walk = _plain(reader, number)
        # Of a sum every part has the whole cotangent; that of a whole value is the sum of what the parts have.
        back = [WHOLE if one == SUM else SUM if one == WHOLE else one for one in made_placements[:count]]
        held = zip([*kept, *cotangents], [*made_placements[count:], *back], strict=True)
        operands = [RankValue(value, placement) for value, placement in held]
        found = in_batch_order(walk.read(backward.jaxpr, operands, backward.consts))
        wanted = [SUM if placements[at] == WHOLE else placements[at] for at in moving]
        return [
            walk.placed(walk.total(one) if want != SUM else one, want) for one, want in zip(found, wanted, strict=True)
        ]

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def function(number: Any, *values: Any) -> list[Any]:
        return run(number, values)[:count]

    def kept(number: Any, *values: Any) -> tuple[list[Any], tuple[Any, list[Any], tuple[Any, ...]]]:
        made = run(number, values)
        return made[:count], (number, made[count:], values)

    def gradients(residuals: tuple[Any, list[Any], tuple[Any, ...]], cotangents: Any) -> tuple[Any, ...]:
        number, saved, values = residuals
        found = dict(zip(moving, pulled(number, saved, list(cotangents)), strict=True))
        return (_nothing(number), *(found[at] if at in found else _nothing(value) for at, value in enumerate(values)))

    function.defvjp(kept, gradients)
    number = jnp.zeros((), jnp.int32) if reader.rank is None else reader.rank
    values = [value.value for value in given]
    # Whether the rule keeps samples apart has to be known at once.
    made, residuals = jax.eval_shape(kept, number, *values)
    jax.eval_shape(gradients, residuals, made)
    return [
        RankValue(value, placement)
        for value, placement in zip(function(number, *values), made_placements, strict=False)
    ]


def _nothing(value: Any) -> np.ndarray:
    return np.zeros(np.shape(value), jax.dtypes.float0)


def _both_ways(
    program: core.Jaxpr, eqn: core.JaxprEqn, moving: Sequence[int]
) -> tuple[core.ClosedJaxpr, core.ClosedJaxpr]:
    """Results of an equation and what its backward keeps; of what it keeps, and cotangents, those of its operands."""
    fresh = [core.Var(atom.aval) for atom in eqn.invars]
    outvars = [core.Var(var.aval) for var in eqn.outvars]
    alone = core.jaxpr_as_fun(piece(program, [eqn.replace(invars=fresh, outvars=outvars)], fresh, outvars))
    tree: list[Any] = []

    def forward(*operands: Any) -> list[Any]:
        made, pull = jax.vjp(
            lambda *values: alone(*_placed(operands, moving, values)), *(operands[at] for at in moving)
        )
        leaves, structure = jax.tree.flatten(pull)
        tree[:] = [structure]
        return [*made, *leaves]

    first = flat_jaxpr(forward, [_shape(var.aval) for var in fresh])
    saved = len(first.out_avals) - len(outvars)

    def backward(*operands: Any) -> list[Any]:
        return list(jax.tree.unflatten(tree[0], operands[:saved])(list(operands[saved:])))

    kept = [_shape(aval) for aval in first.out_avals[len(outvars) :]]
    return first, flat_jaxpr(backward, [*kept, *(_shape(var.aval) for var in outvars)])


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _placed(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """Values, some of them replaced."""
    found = list(values)
    for place, value in zip(places, others, strict=True):
        found[place] = value
    return found


def _derived(program: core.Jaxpr, eqn: core.JaxprEqn, moving: Sequence[int]) -> core.ClosedJaxpr:
    """Results and derivatives of an equation, its rule opened, as a function of its operands and their changes."""
    fresh = [core.Var(atom.aval) for atom in eqn.invars]
    alone = core.jaxpr_as_fun(piece(program, [eqn.replace(invars=fresh)], fresh))
    count = len(fresh)

    def run(*given: Any) -> list[Any]:
        def differentiated(*values: Any) -> list[Any]:
            return list(alone(*_placed(given[:count], moving, values)))

        values, changes = jax.jvp(differentiated, [given[at] for at in moving], list(given[count:]))
        return [*values, *(change for change in changes if change.dtype != jax.dtypes.float0)]

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in fresh]
    return flat_jaxpr(run, [*avals, *(avals[at] for at in moving)])
