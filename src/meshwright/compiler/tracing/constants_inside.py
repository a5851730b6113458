"""Constants that a step makes outside of its loss, such as the numbers of rows, made inside of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from meshwright.compiler.inline import is_dropped
from meshwright.compiler.pointwise import POINTWISE

MAKES = ("iota", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", *POINTWISE)
"""Equations that cost nothing to repeat."""


def with_constants_inside(mark: core.JaxprEqn, before: Sequence[core.JaxprEqn]) -> core.JaxprEqn:
    """The mark of a loss that makes constants of its own, where the step makes them outside and hands them in.

    What is known of a value, such as that each of its entries is its own place, is read off the equations in front of
    it; those of a loss end at its operands.

    Args:
        mark: the mark of a step.
        before: equations of the step in front of it.
    """
    made = {var: eqn for eqn in before for var in eqn.outvars}
    loss = mark.params["loss"]
    names: dict[core.Var, core.Var] = {}
    eqns: list[core.JaxprEqn] = []

    def inside(var: core.Var) -> core.Var | None:
        """The same constant inside of the loss; None for what is none."""
        if var in names:
            return names[var]
        eqn = made.get(var)
        if eqn is None or eqn.primitive.name not in MAKES or len(eqn.outvars) != 1:
            return None
        operands = [inside(atom) if isinstance(atom, core.Var) else atom for atom in eqn.invars]
        if any(atom is None for atom in operands):
            return None
        names[var] = core.Var(var.aval)
        eqns.append(eqn.replace(invars=operands, outvars=[names[var]]))
        return names[var]

    own: dict[Any, Any] = {}
    for place, (operand, var) in enumerate(zip(mark.invars, loss.invars, strict=True)):
        if place not in mark.params["wrt"] and isinstance(operand, core.Var) and not is_dropped(var):
            constant = inside(operand)
            if constant is not None:
                own[var] = constant
    if not own:
        return mark

    def renamed(atoms: Sequence[Any]) -> list[Any]:
        return [own.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in atoms]

    eqns += [eqn.replace(invars=renamed(eqn.invars)) for eqn in loss.eqns]
    loss = loss.replace(eqns=eqns, outvars=renamed(loss.outvars), debug_info=loss.debug_info.with_unknown_names())
    return mark.replace(params={**mark.params, "loss": loss})
