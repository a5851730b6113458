"""A step whose user has said what is done with the losses of micro-batches: each is taken as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.joins import How, Join
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


def step_of_micro_batch(whole: TracedStep, part: TracedStep, mean: bool) -> TracedStep:
    """The step on a micro-batch; its losses are averaged or added, and so are numbers beside them.

    Args:
        whole: the program as it reads for the whole batch.
        part: the part as it reads for a micro-batch.
        mean: whether the losses are averaged.

    Raises:
        InputError: a result beside the loss is neither per sample, nor a number, nor independent of the samples.
    """
    number = How.AVERAGED if mean else How.ADDED
    moving = _of_samples(part)
    joins, problems = [], []
    for place, atom in enumerate(part.loss.outvars):
        small, large = atom.aval, whole.loss.outvars[place].aval
        if not (isinstance(atom, core.Var) and atom in moving):
            joins.append(Join(How.SAME if place else number))
        elif small.shape != large.shape:
            grown = [at for at, (one, other) in enumerate(zip(small.shape, large.shape, strict=True)) if one != other]
            joins.append(Join(How.JOINED, grown[0]))
        elif jnp.issubdtype(small.dtype, jnp.inexact):
            joins.append(Join(number))
        elif jnp.issubdtype(small.dtype, jnp.integer):
            joins.append(Join(How.ADDED))
        else:
            problems.append(
                Problem(
                    what=f"a result beside the loss is {small.dtype}{list(small.shape)} for each micro-batch",
                    why="numbers are averaged or added as the loss is, counts are added; this is neither",
                    fix="return it per sample, or num_micro_batches=1",
                    field="num_micro_batches",
                )
            )
    if problems:
        raise InputError(problems)
    return replace(part, mean=mean, joins=tuple(joins))


def _of_samples(step: TracedStep) -> set[Any]:
    """Values of a loss that depend on the batch."""
    found: set[Any] = {step.jaxpr.invars[place] for place in step.batch}
    for eqn in step.before:
        if found.intersection(atom for atom in eqn.invars if isinstance(atom, core.Var)):
            found.update(eqn.outvars)
    inside = {
        var
        for var, atom in zip(step.loss.invars, step.mark.invars, strict=True)
        if isinstance(atom, core.Var) and atom in found
    }
    for eqn in step.loss.eqns:
        if inside.intersection(atom for atom in eqn.invars if isinstance(atom, core.Var)):
            inside.update(eqn.outvars)
    return inside
