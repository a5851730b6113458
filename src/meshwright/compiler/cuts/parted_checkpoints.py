"""Checkpoints around more than a stage, written as one for every stage, so that a pipeline can be cut between them.

`jax.checkpoint` around a whole model is one equation, which would stand in one stage. Parts of it under checkpoints of
their own compute the same numbers; what is kept more is what stages pass on, which a pipeline keeps in any case. A loop
over layers becomes a loop whose rounds are checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import eqn_flop, is_heavy
from meshwright.compiler.cuts.cut import body_of
from meshwright.compiler.cuts.layers import layer_ends
from meshwright.compiler.cuts.stacks import layer_loops
from meshwright.compiler.inline import CHECKPOINTS, free_variables, inlined, is_dropped, piece
from meshwright.compiler.traced_step import TracedStep

LARGEST = 1.1
"""Shares of the work of a stage from which a checkpoint is parted."""


def checkpoints_parted(step: TracedStep, stages: int) -> TracedStep:
    """A step whose checkpoints hold at most a stage each.

    Args:
        step: the step as it was traced.
        stages: the number of stages into which its loss is cut.
    """
    if stages < 2:
        return step
    flop = [eqn_flop(eqn) for eqn in step.loss.eqns]
    large = [
        eqn
        for eqn, own in zip(step.loss.eqns, flop, strict=True)
        if eqn.primitive.name in CHECKPOINTS and is_heavy(eqn) and own * stages > LARGEST * sum(flop)
    ]
    if not large:
        return step
    inside = {id(eqn): _opened(eqn) for eqn in large}
    eqns = [one for eqn in step.loss.eqns for one in inside.get(id(eqn), [eqn])]
    flat = step.loss.replace(eqns=eqns, debug_info=step.loss.debug_info.with_unknown_names())
    loops = {id(flat.eqns[place]) for place in layer_loops(flat, step.wrt)}
    body = body_of(flat, step.wrt)
    light = {id(eqn) for eqn in body.light}
    stage_of: dict[int, int] = {}
    if not loops and len(body.spine) >= stages:
        numbers = np.searchsorted(layer_ends(body, stages), np.arange(len(body.spine)), side="right")
        stage_of = {id(eqn): int(number) for eqn, number in zip(body.spine, numbers, strict=True)}
    read = {atom for atom in flat.outvars if isinstance(atom, core.Var)}
    made: list[core.JaxprEqn] = []
    for eqn in reversed(step.loss.eqns):
        own = [eqn] if id(eqn) not in inside else _parted(flat, eqn, inside[id(eqn)], stage_of, light, loops, read)
        read.update(free_variables(own))
        made = [*own, *made]
    loss = step.loss.replace(eqns=made, debug_info=step.loss.debug_info.with_unknown_names())
    return replace(step, loss=loss)


def _opened(eqn: core.JaxprEqn) -> list[core.JaxprEqn]:
    """The program of a checkpoint with the names of the program around it."""
    inner = inlined(core.ClosedJaxpr(eqn.params["jaxpr"], ())).jaxpr
    names: dict[Any, Any] = dict(zip(inner.invars, eqn.invars, strict=True))
    eqns = [_renamed(one, names) for one in inner.eqns]
    back = {
        names[atom]: var
        for atom, var in zip(inner.outvars, eqn.outvars, strict=True)
        if isinstance(atom, core.Var) and not is_dropped(var)
    }
    made = {var for one in eqns for var in one.outvars}
    if len(back) < sum(not is_dropped(var) for var in eqn.outvars) or not set(back) <= made:
        return [eqn]  # a result that is an operand, a number, or the same as another
    return [
        one.replace(
            invars=[back.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in one.invars],
            outvars=[back.get(var, var) for var in one.outvars],
        )
        for one in eqns
    ]


def _renamed(eqn: core.JaxprEqn, names: dict[Any, Any]) -> core.JaxprEqn:
    invars = [atom if isinstance(atom, core.Literal) else names[atom] for atom in eqn.invars]
    names.update((var, core.Var(var.aval)) for var in eqn.outvars if not is_dropped(var))
    return eqn.replace(invars=invars, outvars=[names.get(var, var) for var in eqn.outvars])


def _parted(
    flat: core.Jaxpr,
    checkpoint: core.JaxprEqn,
    eqns: Sequence[core.JaxprEqn],
    stage_of: dict[int, int],
    light: Collection[int],
    loops: Collection[int],
    read: Collection[core.Var],
) -> list[core.JaxprEqn]:
    """A checkpoint as one for every stage, with loops over layers between them.

    Args:
        flat: the loss with its checkpoint opened.
        checkpoint: the checkpoint that is parted.
        eqns: the equations in it.
        stage_of: stage of its equations.
        light: equations that each part repeats which reads them.
        loops: the loops over layers.
        read: the variables read behind the checkpoint.
    """
    if eqns == [checkpoint]:
        return [checkpoint]
    groups: list[list[core.JaxprEqn]] = []
    group_of: dict[tuple[int, int], list[core.JaxprEqn]] = {}
    passed = 0
    for eqn in eqns:
        if id(eqn) in loops:
            passed += 1
            groups.append([eqn])
        elif id(eqn) not in light:
            key = passed, stage_of.get(id(eqn), 0)
            if key not in group_of:
                groups.append(group_of.setdefault(key, []))
            group_of[key].append(eqn)
    groups.sort(key=lambda own: min(stage_of.get(id(eqn), 0) for eqn in own))
    plain = [eqn for eqn in eqns if id(eqn) in light]
    wanted = set(read).union(*(free_variables(own) for own in groups if id(own[0]) in loops))
    made: list[core.JaxprEqn] = list(_needed(plain, wanted))
    for number, own in enumerate(groups):
        if id(own[0]) in loops:
            made.append(_rounds_as_checkpoints(own[0], checkpoint))
            continue
        later = set(read).union(*(free_variables(other) for other in groups[number + 1 :]))
        beside = _needed(plain, set(free_variables(own)))
        order = {id(eqn): place for place, eqn in enumerate(eqns)}
        whole = sorted([*beside, *own], key=lambda eqn: order[id(eqn)])
        outputs = [var for eqn in own for var in eqn.outvars if var in later and not is_dropped(var)]
        inputs = free_variables(whole)
        program = _with_names_of_its_own(piece(flat, whole, inputs, outputs).jaxpr)
        made.append(checkpoint.replace(invars=inputs, outvars=outputs, params={**checkpoint.params, "jaxpr": program}))
    return made


def _needed(plain: Sequence[core.JaxprEqn], wanted: set[core.Var]) -> list[core.JaxprEqn]:
    """Equations that make what is wanted, in order."""
    found: list[core.JaxprEqn] = []
    for eqn in reversed(plain):
        if wanted.intersection(eqn.outvars):
            wanted = wanted.union(free_variables([eqn]))
            found.append(eqn)
    return found[::-1]


def _with_names_of_its_own(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """A program whose variables are no others': parts repeat equations."""
    names: dict[Any, Any] = {var: core.Var(var.aval) for var in jaxpr.invars}
    eqns = [_renamed(eqn, names) for eqn in jaxpr.eqns]
    return jaxpr.replace(
        invars=[names[var] for var in jaxpr.invars], eqns=eqns, outvars=[names[var] for var in jaxpr.outvars]
    )


def _rounds_as_checkpoints(eqn: core.JaxprEqn, checkpoint: core.JaxprEqn) -> core.JaxprEqn:
    """A loop whose rounds run again in its backward, as the checkpoint around it did."""
    body = eqn.params["jaxpr"]
    again = jax.checkpoint(
        core.jaxpr_as_fun(body), policy=checkpoint.params["policy"], prevent_cse=checkpoint.params["prevent_cse"]
    )
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in body.jaxpr.invars]
    return eqn.replace(params={**eqn.params, "jaxpr": jax.make_jaxpr(again)(*shapes)})
