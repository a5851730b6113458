"""A loss that loops over stacked layers, written as one loop per stage, each over its own rows of the stacks.

`jax.lax.scan` over weights of shape [layers, ...] is one equation. Before a loss is cut it is written with one loop of
one round for every layer, so that cuts and prices see layers; behind, with one loop per stage. Stacked operands become
one operand per part; so do the inputs of the step, their gradients and the state of their optimizer (`parted_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import is_heavy
from meshwright.compiler.inline import is_dropped
from meshwright.compiler.leading_axis import (
    Bounds,
    Origin,
    Parting,
    Stacking,
    spans,
    spread_partition,
    tie_of,
    tree_in_parts,
)
from meshwright.compiler.traced_step import TracedStep, around_mark

Loops = Mapping[int, Bounds]
"""Partition of the rounds of a loop over layers, by the place of its equation in the loss."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PartedLoss:
    """A loss whose loops over layers are written in parts."""

    jaxpr: core.Jaxpr
    wrt: tuple[int, ...]
    """Operands that are differentiated."""
    bounds: tuple[Bounds | None, ...]
    """Partition of each operand of the loss it was made of."""
    origins: tuple[Origin, ...]
    """Origin of each equation."""


def layer_loops(loss: core.Jaxpr, wrt: Sequence[int]) -> tuple[int, ...]:
    """Places of the loops over stacked layers: they hold products of matrices and take rows of differentiated operands.

    Args:
        loss: a flat program.
        wrt: positions of its differentiated operands.
    """
    differentiated = {loss.invars[place] for place in wrt}
    made = {var: eqn for eqn in loss.eqns for var in eqn.outvars}

    def of_weights(var: Any) -> bool:
        if not isinstance(var, core.Var) or var in differentiated:
            return isinstance(var, core.Var)
        eqn = made.get(var)
        tie = None if eqn is None else tie_of(eqn)
        if eqn is None or tie is None or tie.combines:
            return False
        return any(of_weights(atom) for atom, tied in zip(eqn.invars, tie.operands, strict=True) if tied)

    return tuple(
        place
        for place, eqn in enumerate(loss.eqns)
        if eqn.primitive.name == "scan"
        and eqn.params["length"] > 1
        and any(of_weights(atom) for atom in stack_rows(eqn))
        and is_heavy(eqn)
    )


def stack_rows(eqn: core.JaxprEqn) -> list[Any]:
    """What a loop takes a row of in every round.

    Args:
        eqn: a scan.
    """
    return list(eqn.invars[eqn.params["num_consts"] + eqn.params["num_carry"] :])


def parted_loss(
    loss: core.Jaxpr, wrt: Sequence[int], loops: Loops, operands: Mapping[int, Bounds] | None = None
) -> PartedLoss:
    """The loss with loops in parts.

    Args:
        loss: a flat program.
        wrt: positions of its differentiated operands.
        loops: partition of each loop over layers.
        operands: partition of operands, where it is known beside that of loops.
    """
    if not loops and not operands:
        origins = tuple((place, 0.0) for place in range(len(loss.eqns)))
        return PartedLoss(jaxpr=loss, wrt=tuple(wrt), bounds=(None,) * len(loss.invars), origins=origins)
    known = _partitions(loss, loops, operands or {})
    writing = Parting(known)
    invars: list[core.Var] = []
    bounds: list[Bounds | None] = []
    differentiated: list[int] = []
    for place, var in enumerate(loss.invars):
        own = writing.operand(var) if var in known else (var,)
        if place in wrt:
            differentiated += range(len(invars), len(invars) + len(own))
        invars += own
        bounds.append(known.get(var))
    for place, eqn in enumerate(loss.eqns):
        if place in loops:
            _write_loop(writing, eqn, place, loops[place])
        else:
            writing.write(eqn, place)
    last = len(loss.eqns) - 1
    outvars = [writing.whole(atom, loss.eqns[last], last) for atom in loss.outvars]
    jaxpr = loss.replace(
        invars=invars, eqns=writing.eqns, outvars=outvars, debug_info=loss.debug_info.with_unknown_names()
    )
    return PartedLoss(jaxpr=jaxpr, wrt=tuple(differentiated), bounds=tuple(bounds), origins=tuple(writing.origins))


def by_layer(loss: core.Jaxpr, wrt: Sequence[int]) -> PartedLoss:
    """The loss with one loop for every stacked layer.

    Args:
        loss: a flat program.
        wrt: positions of its differentiated operands.
    """
    loops = {place: tuple(range(loss.eqns[place].params["length"] + 1)) for place in layer_loops(loss, wrt)}
    return parted_loss(loss, wrt, loops)


def parted_along(step: TracedStep, inputs: Mapping[int, Bounds]) -> TracedStep:
    """The step with some inputs in parts, and its loops over rows of these in the same parts.

    Args:
        step: the step whose loss takes its inputs as they are.
        inputs: partition of each that is split.
    """
    place_of = {var: place for place, var in enumerate(step.jaxpr.invars)}
    operands = {
        operand: inputs[place_of[atom]]
        for operand, atom in enumerate(step.mark.invars)
        if isinstance(atom, core.Var) and place_of.get(atom) in inputs
    }
    known = _partitions(step.loss, {}, operands)
    loops = {}
    for place in layer_loops(step.loss, tuple(operands)):
        found = [known[var] for var in stack_rows(step.loss.eqns[place]) if isinstance(var, core.Var) and var in known]
        if found:
            loops[place] = found[0]
    return parted_step(step, parted_loss(step.loss, step.wrt, loops, operands))


def parted_step(step: TracedStep, loss: PartedLoss) -> TracedStep:
    """The step with another way to write its loss, and all state that belongs to stacks of the loss in the same parts.

    Args:
        step: the step whose inputs are stacked.
        loss: the loss of the step, in parts.
    """
    samples = {*(step.jaxpr.invars[place] for place in step.batch), *step.wholes}
    known = {
        atom: bounds
        for atom, bounds in zip(step.mark.invars, loss.bounds, strict=True)
        if bounds is not None and isinstance(atom, core.Var) and atom not in samples
    }
    gradient_of = dict(zip(step.wrt, step.gradients, strict=True))
    known.update(
        (gradient_of[place], bounds)
        for place, bounds in enumerate(loss.bounds)
        if bounds is not None and place in gradient_of
    )
    spread_partition([*step.before, *step.after], known, samples)
    writing = Parting(known)
    inputs = [writing.operand(var) if var in known else (var,) for var in step.jaxpr.invars]
    for place, eqn in enumerate(step.before):
        writing.write(eqn, place)
    here = len(step.before)
    operands: list[Any] = []
    for atom, bounds in zip(step.mark.invars, loss.bounds, strict=True):
        if bounds is None:
            operands.append(writing.whole(atom, _anchor(step), here))
        else:
            operands += writing.in_parts(atom, bounds, _anchor(step), here)
    results: list[core.Var] = list(step.mark.outvars[: len(step.loss.outvars)])
    for operand, gradient in zip(step.wrt, step.gradients, strict=True):
        results += writing.operand(gradient) if loss.bounds[operand] is not None else (gradient,)
    mark = step.mark.replace(
        invars=operands,
        outvars=results,
        params={"loss": loss.jaxpr, "consts": step.mark.params["consts"], "wrt": loss.wrt},
    )
    writing.add(mark, (here, 0.0))
    for place, eqn in enumerate(step.after, here + 1):
        writing.write(eqn, place)
    outputs = [
        writing.parts.get(atom, (atom,)) if isinstance(atom, core.Var) else (atom,) for atom in step.jaxpr.outvars
    ]
    jaxpr = step.jaxpr.replace(
        invars=[var for own in inputs for var in own],
        outvars=[atom for own in outputs for atom in own],
        eqns=writing.eqns,
        debug_info=step.jaxpr.debug_info.with_unknown_names(),
    )
    before, after = around_mark(jaxpr, mark)
    starts = np.cumsum([0, *(len(own) for own in inputs)])
    stacking = Stacking(
        in_tree=step.in_tree,
        out_tree=step.out_tree,
        inputs=tuple(_several(known.get(var)) for var in step.jaxpr.invars),
        outputs=tuple(
            _several(known[atom]) if isinstance(atom, core.Var) and atom in writing.parts else None
            for atom in step.jaxpr.outvars
        ),
    )
    several = any([*stacking.inputs, *stacking.outputs])
    return replace(
        step,
        jaxpr=jaxpr,
        loss=loss.jaxpr,
        wrt=loss.wrt,
        mark=mark,
        before=before,
        after=after,
        batch=tuple(int(starts[place]) for place in step.batch),
        stacking=stacking if several else None,
        whole=step,
        wholes={var: int(starts[place]) for var, place in step.wholes.items()},
        in_tree=tree_in_parts(step.in_tree, stacking.inputs),
        out_tree=tree_in_parts(step.out_tree, stacking.outputs),
    )


def _several(bounds: Bounds | None) -> Bounds | None:
    return None if bounds is None or len(bounds) == 2 else bounds


def _anchor(step: TracedStep) -> core.JaxprEqn:
    """An equation for the slices of operands to stand beside."""
    return step.loss.eqns[0]


def _partitions(loss: core.Jaxpr, loops: Loops, operands: Mapping[int, Bounds]) -> dict[core.Var, Bounds]:
    """Partition of every variable that a loop takes rows of or makes rows of, and of what belongs to it."""
    known = {loss.invars[place]: bounds for place, bounds in operands.items()}
    for place, bounds in loops.items():
        eqn = loss.eqns[place]
        made = eqn.outvars[eqn.params["num_carry"] :]
        rows = [var for var in [*stack_rows(eqn), *made] if isinstance(var, core.Var) and not is_dropped(var)]
        known.update((var, bounds) for var in rows if var not in known)
    spread_partition([eqn for place, eqn in enumerate(loss.eqns) if place not in loops], known)
    return known


def _write_loop(writing: Parting, eqn: core.JaxprEqn, place: int, bounds: Bounds) -> None:
    """A loop for each part, in the order in which the rounds run."""
    consts, carried, reverse = (eqn.params[name] for name in ("num_consts", "num_carry", "reverse"))
    given = [writing.whole(atom, eqn, place) for atom in eqn.invars[: consts + carried]]
    rows = [writing.in_parts(atom, bounds, eqn, place) for atom in stack_rows(eqn)]
    parts = list(enumerate(spans(bounds)))
    state = given[consts:]
    made: list[list[core.Var]] = [[] for _ in eqn.outvars[carried:]]
    for number, (low, high) in reversed(parts) if reverse else parts:
        is_last = number == (0 if reverse else len(parts) - 1)
        after = [var if is_last else core.Var(var.aval) for var in eqn.outvars[:carried]]
        out = [
            var if is_dropped(var) else core.Var(var.aval.update(shape=(high - low, *var.aval.shape[1:])))
            for var in eqn.outvars[carried:]
        ]
        params = {**eqn.params, "length": high - low, "unroll": max(1, min(eqn.params["unroll"], high - low))}
        writing.add(
            eqn.replace(
                invars=[*given[:consts], *state, *(own[number] for own in rows)], outvars=[*after, *out], params=params
            ),
            (place, low / bounds[-1]),
        )
        for own, var in zip(made, out, strict=True):
            own.append(var)
        state = after
    for var, own in zip(eqn.outvars[carried:], made, strict=True):
        if not is_dropped(var):
            writing.parts[var] = tuple(reversed(own)) if reverse else tuple(own)


def recomputed_layers(program: core.ClosedJaxpr) -> Callable[..., Any]:
    """A layer whose forward runs again in its backward; of a loop over layers every round for itself.

    Args:
        program: the program of a layer, or of several in one loop.
    """
    loops = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan" and is_heavy(eqn)]
    if not loops:
        return jax.checkpoint(core.jaxpr_as_fun(program))
    eqns = [_rounds_again(eqn) if eqn in loops else eqn for eqn in program.jaxpr.eqns]
    return core.jaxpr_as_fun(core.ClosedJaxpr(program.jaxpr.replace(eqns=eqns), program.consts))


def _rounds_again(eqn: core.JaxprEqn) -> core.JaxprEqn:
    body = eqn.params["jaxpr"]
    if all(one.primitive.name in ("remat2", "checkpoint") for one in body.jaxpr.eqns if is_heavy(one)):
        return eqn
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in body.jaxpr.invars]
    return eqn.replace(params={**eqn.params, "jaxpr": jax.make_jaxpr(jax.checkpoint(core.jaxpr_as_fun(body)))(*shapes)})
