"""Forward and backward programs of a stage; the backward also in two parts, input gradients first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.cuts.equal_layers import with_layers_called
from meshwright.compiler.inline import free_variables, inlined, is_dropped, piece


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StageJaxprs:
    """Programs of one stage for one micro-batch.

    `carried` are differentiable values passed on between stages, `along` the other ones (tokens, masks, keys).
    """

    stage: CutStage
    forward: core.ClosedJaxpr
    """Takes the operands of the stage's program; returns what it passes on, results of the loss, and `saved`."""
    backward: core.ClosedJaxpr
    """Takes operands of the forward it keeps (`kept`), `saved` and the gradients of `carried_out`; returns gradients of
    `carried_in`, then of the parameters."""
    kept: tuple[int, ...]
    """Positions of the forward's operands that the backward takes as they are."""
    saved: int
    """Values that the forward makes only for the backward."""
    carried_in: tuple[int, ...]
    """Positions of differentiable values among those passed in."""
    carried_out: tuple[int, ...]
    """Positions of differentiable values among those passed on."""


def stage_programs(stage: CutStage, *, last: bool, axes: Sequence[tuple[str, int]] = ()) -> StageJaxprs:
    """Differentiate a stage by itself.

    Args:
        stage: what to differentiate.
        last: whether the loss itself is among its results.
        axes: the axes of the mesh whose names its program uses, and devices along them.
    """
    jaxpr = stage.program.jaxpr
    parameters = len(stage.parameters)
    handed = len(stage.carried_out)
    carried_in = tuple(i for i, var in enumerate(stage.carried_in) if _differentiable(var))
    carried_out = tuple(i for i, var in enumerate(stage.carried_out) if _differentiable(var))
    loss_at = handed + stage.results.index(0) if last else None
    program = with_layers_called(stage.program)
    tree: list[Any] = []

    def forward(*operands: Any) -> tuple[list[Any], list[Any]]:
        chosen = [*range(parameters), *(parameters + i for i in carried_in)]

        def differentiated(*values: Any) -> tuple[list[Any], list[Any]]:
            full = list(operands)
            for place, value in zip(chosen, values, strict=True):
                full[place] = value
            outputs = program(*full)
            ends = [outputs[i] for i in carried_out] + ([] if loss_at is None else [outputs[loss_at]])
            return ends, outputs

        _, pull, outputs = jax.vjp(differentiated, *(operands[place] for place in chosen), has_aux=True)
        leaves, structure = jax.tree.flatten(pull)
        tree[:] = [structure]
        return outputs, leaves

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    traced = inlined(jax.make_jaxpr(forward, axis_env=list(axes))(*shapes))
    outputs = len(jaxpr.outvars)
    leaves = traced.jaxpr.outvars[outputs:]
    place_of = {var: place for place, var in enumerate(traced.jaxpr.invars)}
    # What the backward reads is an operand as it came, a constant, or something the forward makes: only that is saved.
    source: list[tuple[str, Any]] = []
    saved: dict[Any, int] = {}
    for leaf in leaves:
        if isinstance(leaf, core.Literal):
            source.append(("constant", leaf))
        elif leaf in place_of:
            source.append(("operand", place_of[leaf]))
        else:
            source.append(("saved", saved.setdefault(leaf, len(saved))))
    kept = tuple(sorted({where for kind, where in source if kind == "operand"}))
    ends = [jaxpr.outvars[i] for i in carried_out]

    def backward(*operands: Any) -> list[Any]:
        whole, made = operands[: len(kept)], operands[len(kept) : len(kept) + len(saved)]
        gradients = list(operands[len(kept) + len(saved) :])
        if last:
            gradients.append(jnp.ones((), jaxpr.outvars[loss_at].aval.dtype))
        values = []
        for (kind, where), leaf in zip(source, leaves, strict=True):
            match kind:
                case "operand":
                    values.append(whole[kept.index(where)])
                case "saved":
                    values.append(made[where])
                case _:
                    values.append(jnp.asarray(where.val, leaf.aval.dtype))
        found = jax.tree.unflatten(tree[0], values)(gradients)
        return [*found[parameters:], *found[:parameters]]

    backward_shapes = [
        *(shapes[place] for place in kept),
        *(_shape(var) for var in saved),
        *(_shape(var) for var in ends),
    ]
    return StageJaxprs(
        stage=stage,
        forward=core.ClosedJaxpr(
            traced.jaxpr.replace(
                outvars=[*traced.jaxpr.outvars[:outputs], *saved],
                debug_info=traced.jaxpr.debug_info.with_unknown_names(),
            ),
            traced.consts,
        ),
        backward=inlined(jax.make_jaxpr(backward, axis_env=list(axes))(*backward_shapes)),
        kept=kept,
        saved=len(saved),
        carried_in=carried_in,
        carried_out=carried_out,
    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SplitBackward:
    """A backward in two programs."""

    inputs: core.ClosedJaxpr
    """Takes what the backward takes; returns gradients of `carried_in`, then `passed`."""
    weights: core.ClosedJaxpr
    """Takes the operands of the backward in `kept`, then `passed`; returns gradients of the parameters."""
    kept: tuple[int, ...]
    passed: int


def split_backward(programs: StageJaxprs) -> SplitBackward:
    """Equations that the input gradients need, and the rest.

    Args:
        programs: the programs of a stage.
    """
    closed = programs.backward
    jaxpr = closed.jaxpr
    first = len(programs.carried_in)
    wanted = {atom for atom in jaxpr.outvars[:first] if isinstance(atom, core.Var)}
    early: list[core.JaxprEqn] = []
    late: list[core.JaxprEqn] = []
    for eqn in reversed(jaxpr.eqns):
        if any(var in wanted for var in eqn.outvars if not is_dropped(var)):
            early.append(eqn)
            wanted.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
        else:
            late.append(eqn)
    early.reverse()
    late.reverse()
    operands = {var: place for place, var in enumerate(jaxpr.invars)}
    constants = set(jaxpr.constvars)
    needed = [*free_variables(late)]
    weights = jaxpr.outvars[first:]
    needed += [atom for atom in weights if isinstance(atom, core.Var) and atom not in needed]
    written = {var for eqn in late for var in eqn.outvars}
    needed = [var for var in needed if var not in written and var not in constants]
    kept = tuple(sorted(operands[var] for var in needed if var in operands))
    passed = [var for var in needed if var not in operands]
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    build = partial(_with_constants, jaxpr, consts)
    return SplitBackward(
        inputs=build(early, jaxpr.invars, [*jaxpr.outvars[:first], *passed]),
        weights=build(late, [*(jaxpr.invars[place] for place in kept), *passed], weights),
        kept=kept,
        passed=len(passed),
    )


def _with_constants(
    jaxpr: core.Jaxpr,
    consts: dict[Any, Any],
    eqns: Sequence[core.JaxprEqn],
    inputs: Sequence[core.Var],
    outputs: Sequence[Any],
) -> core.ClosedJaxpr:
    """A piece of a program that still has its constants."""
    alone = piece(jaxpr, eqns, inputs, outputs)
    return core.ClosedJaxpr(alone.jaxpr.replace(constvars=list(consts)), list(consts.values()))


def _differentiable(var: core.Var) -> bool:
    return bool(jnp.issubdtype(var.aval.dtype, jnp.inexact))


def _shape(var: core.Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
