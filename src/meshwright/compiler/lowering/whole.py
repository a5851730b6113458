"""A step in one piece: what cannot be cut at its gradient, or takes none, run as it is on one mesh or over several.

Nothing is split into micro-batches, so that the numbers are those of one device whatever the step does. On one mesh its
program is divided by XLA's partitioner, from samples and state that are split; on several, operations run where their
weights are, one mesh behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import bytes_of, is_heavy
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.donation import program_of
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.instructions.operands import Operands
from meshwright.compiler.lowering.updating import Updating
from meshwright.compiler.marking import gradient_p, marked_forward
from meshwright.compiler.ranks.layout import PartitionedLayout
from meshwright.compiler.shardings import MeshSharding
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.reading import traced_loss
from meshwright.compiler.tracing.trace import flattened
from meshwright.shapes import Int


class WholeStepWarning(UserWarning):
    """Micro-batches that were asked for are left out."""


def trace_whole(fun: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int]) -> TracedStep:
    """A step of which nothing is marked: all of its equations stand behind a loss of nothing.

    Args:
        fun: the function of anything.
        arguments: arrays, or shapes of arrays.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.

    Raises:
        InputError: it cannot be traced.
    """
    given = flattened(fun, arguments, batch_argnums, 1)
    closed, reports = traced_loss(fun, given.flat, given.shapes, gradients=False)
    (mark,) = (eqn for eqn in jax.make_jaxpr(marked_forward(list))().jaxpr.eqns if eqn.primitive is gradient_p)
    return TracedStep(
        jaxpr=closed.jaxpr,
        consts=tuple(closed.consts),
        loss=mark.params["loss"],
        wrt=(),
        mark=mark,
        before=(),
        after=_needed(closed.jaxpr),
        batch=given.batch,
        micro_batches=1,
        in_tree=given.in_tree,
        out_tree=given.out_tree[0] if reports is None else reports.beside(given.out_tree[0]),
        reports=reports,
        mean=True,
    )


def lower_whole(
    step: TracedStep, shardings: Sequence[MeshSharding], devices: Sequence[int], given: Collection[int] = ()
) -> StepProgram:
    """Write the lists.

    Args:
        step: the step as `trace_whole` reads it.
        shardings: the shardings of values, by mesh.
        devices: the devices of each mesh.
        given: inputs that the caller gives away.
    """
    out = ListBuilder(len(devices))
    operands = Operands(step, out, shardings, devices)
    layouts = [
        PartitionedLayout(step=step, sharding=sharding, devices=count)
        for sharding, count in zip(shardings, devices, strict=True)
    ]
    updating = Updating(step, (), out, operands, shardings, devices, layouts, _homes(step, len(devices)))
    outcomes = updating.outcomes({}, np.zeros((1, 0), np.int64))
    return program_of(out, operands.feeds, outcomes, given)


def _needed(jaxpr: core.Jaxpr) -> tuple[core.JaxprEqn, ...]:
    """Equations that some output needs, in order."""
    wanted = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    found = []
    for eqn in reversed(jaxpr.eqns):
        if wanted & set(eqn.outvars):
            wanted.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
            found.append(eqn)
    return tuple(reversed(found))


def _homes(step: TracedStep, meshes: int) -> dict[core.Var, int]:
    """Mesh of the weights: in the order in which products read them, as many bytes on each mesh.

    Whatever else the step holds goes where what it is used with is.
    """
    if meshes == 1:
        return dict.fromkeys((var for eqn in step.after for var in eqn.outvars), 0)
    batch = {step.jaxpr.invars[place] for place in step.batch}
    state = {var for var in step.jaxpr.invars if var not in batch and len(var.aval.shape) > 1}
    weights: dict[core.Var, None] = {}
    made_of: dict[core.Var, core.Var] = {var: var for var in state}
    for eqn in step.after:
        read = [made_of[atom] for atom in eqn.invars if isinstance(atom, core.Var) and atom in made_of]
        if is_heavy(eqn):
            weights.update(dict.fromkeys(read))
        elif len(eqn.invars) == 1 and len(eqn.outvars) == 1 and read:
            # A weight that was cast or turned round.
            made_of[eqn.outvars[0]] = read[0]
    sizes: Int[np.ndarray, " weights"] = np.array([bytes_of(var) for var in weights], np.int64)
    if not len(sizes):
        return {}
    middles = np.cumsum(sizes) - sizes / 2
    return {var: int(meshes * middle // sizes.sum()) for var, middle in zip(weights, middles, strict=True)}
