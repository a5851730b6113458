"""A loss whose samples meet (contrasts, balance of experts, statistics of the batch), parted into what every sample
makes by itself and what is made of all samples together.

For a loss L = G(z, w) of what samples make by themselves, z = E(w, samples), the gradient is that of the sum
<dG/dz, E(w, samples)> + <dG/dw, w> with both slopes held fixed, and this is a sum over samples. So E runs for all
micro-batches without gradients first, then G once for all samples, with its slopes; each micro-batch then runs E again
and takes the gradient of its terms of the sum. It is exact, and costs the forward of E once more. Source: Gao, Zhang,
Han and Callan, "Scaling deep contrastive learning batch size under memory limited setup", 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import eqns_flop
from meshwright.compiler.inline import (
    CALLS,
    CHECKPOINTS,
    depended_on,
    flat_jaxpr,
    free_variables,
    inlined,
    is_dropped,
    piece,
    reached,
)
from meshwright.compiler.joins import How, joint_p
from meshwright.compiler.micro_batches.program import renamed_atom, renamed_equations
from meshwright.compiler.micro_batches.results_behind import met_behind
from meshwright.compiler.micro_batches.rounds import meets_in_rounds, round_by_round
from meshwright.compiler.micro_batches.walk import MicroBatchWalk
from meshwright.compiler.samples.derivatives import UNREAD_PULLBACKS
from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement
from meshwright.compiler.samples.values import RankValue, part_shape
from meshwright.compiler.source_line import line_of
from meshwright.compiler.traced_step import TracedStep

MOST_TOGETHER = 0.5
"""Share of the work of a loss that may be done for all samples together: beyond it micro-batches would spare nothing,
and go through it in phases."""


def met_apart(step: TracedStep, placements: Sequence[Placement], parts: int) -> TracedStep | None:
    """The step, for the whole batch, with a loss that is a sum over samples; its results are those of the step.

    Args:
        step: the step as it reads for the whole batch.
        placements: the placements of the operands of its loss.
        parts: micro-batches.

    Returns:
        None where samples do not meet.

    Raises:
        NotShared: what samples make by themselves cannot be told apart.
    """
    together = _together(step, placements, parts)
    if not together:
        return None
    phased = eqns_flop(together) > MOST_TOGETHER * eqns_flop(step.loss.eqns)
    if phased and any(eqn.primitive.name in CHECKPOINTS for eqn in together):
        # Samples meet inside; phases compute again what they need without being told.
        loss = inlined(core.ClosedJaxpr(step.loss, ()), (*CALLS, *CHECKPOINTS)).jaxpr
        return met_apart(replace(step, loss=loss), placements, parts)
    if phased and (loops := [eqn for eqn in together if meets_in_rounds(eqn)]):
        return met_apart(replace(step, loss=round_by_round(step.loss, loops)), placements, parts)
    if step.loss.outvars[0] not in {var for eqn in together for var in eqn.outvars}:
        return None if phased else met_behind(step, together)
    return _Meeting(step, together, phased=phased).step()


class TogetherWalk(MicroBatchWalk):
    """Equations in front of a loss: those that mix samples, as mixup does, are evaluated once for all of them."""

    def _equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        try:
            return super()._equation(program, eqn, given)
        except NotShared:
            rows = [(place, value) for place, value in enumerate(given) if value.placement == 0]
            if self._depth or not rows or eqn.primitive is joint_p:
                raise
        place, row = rows[0]
        samples = np.shape(row.value)[0] * self.ranks
        alone, inputs = piece(program, [eqn]), free_variables([eqn])
        follows = [
            inputs.index(eqn.invars[place]) if var.aval.shape[:1] == (samples,) else None
            for var in eqn.outvars
            if not is_dropped(var)
        ]
        values = {atom: value for atom, value in zip(eqn.invars, given, strict=True) if isinstance(atom, core.Var)}
        made = iter(self._joint(joint_of(alone, follows), [values[var] for var in inputs]))
        return [RankValue(None, WHOLE) if is_dropped(var) else next(made) for var in eqn.outvars]


def joint_of(program: core.ClosedJaxpr, follows: Sequence[int | None], slope: int | None = None) -> core.JaxprEqn:
    """An equation that evaluates a program once for all samples.

    Args:
        program: the program, without constants.
        follows: the operand, for each result, whose sharding it takes; None for what is whole.
        slope: operand from which its backward starts, where micro-batches go through it in phases.
    """
    params = {"program": program, "follows": tuple(follows), "slope": slope}
    shapes = [_shape(var) for var in program.jaxpr.invars]
    (eqn,) = jax.make_jaxpr(lambda *given: joint_p.bind(*given, **params))(*shapes).eqns
    return eqn


class _MetValue(RankValue):
    """A value made of all samples together."""


class _Probe(MicroBatchWalk):
    """Finds the equations of a program that need all samples."""

    def __init__(self, program: core.Jaxpr, parts: int, number: Any) -> None:
        super().__init__(parts, number)
        self.program, self.sorts = program, False
        self.together: list[core.JaxprEqn] = []

    def _equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        if program is not self.program:
            return super()._equation(program, eqn, given)
        if not any(isinstance(value, _MetValue) for value in given):
            try:
                return super()._equation(program, eqn, given)
            except NotShared:
                pass
        self.together.append(eqn)
        return [_MetValue(None, WHOLE) for _ in eqn.outvars]

    def _total(self, value: RankValue, how: How) -> RankValue:
        if value.moves:
            raise NotShared("a sum over samples is used as a whole")
        return super()._total(value, how)


def _together(step: TracedStep, placements: Sequence[Placement], parts: int) -> list[core.JaxprEqn]:
    """Equations of the loss that need all samples, in order."""
    found: list[core.JaxprEqn] = []

    def run(*given: Any) -> list[Any]:
        probe = _Probe(step.loss, parts, given[-1])
        probe.read(
            step.loss,
            [
                RankValue(value, placement, moves=place in step.wrt)
                for place, (value, placement) in enumerate(zip(given, placements, strict=False))
            ],
        )
        found[:] = probe.together
        return []

    shapes = [
        jax.ShapeDtypeStruct(part_shape(var.aval.shape, placement, parts), var.aval.dtype)
        for var, placement in zip(step.loss.invars, placements, strict=True)
    ]
    jax.make_jaxpr(run)(*shapes, jax.ShapeDtypeStruct((), jnp.int32))
    return found


class _Meeting:
    """Writes one step."""

    def __init__(self, step: TracedStep, together: Sequence[core.JaxprEqn], *, phased: bool) -> None:
        self.old, self.together, self.phased = step, together, phased
        held = {id(eqn) for eqn in together}
        self.alone = [eqn for eqn in step.loss.eqns if id(eqn) not in held]
        self.made_alone = {var: eqn for eqn in self.alone for var in eqn.outvars}
        made = {var for eqn in together for var in eqn.outvars}
        self.met = list(
            dict.fromkeys(
                atom for eqn in together for atom in eqn.invars if isinstance(atom, core.Var) and atom not in made
            )
        )
        """What is put together of the samples: operands of the loss, and what equations make for each sample."""
        weights = [step.loss.invars[place] for place in step.wrt]
        moves = reached(weights, step.loss.eqns, by_gradient=True)
        self.sloped = [var for var in self.met if var in moves and jnp.issubdtype(var.aval.dtype, jnp.inexact)]
        if any(jnp.issubdtype(var.aval.dtype, jnp.complexfloating) for var in self.sloped):
            raise NotShared("complex numbers of several samples meet")
        self.results = [
            atom
            for place, atom in enumerate(step.loss.outvars)
            if place == 0 or (isinstance(atom, core.Var) and atom in made)
        ]
        """Results of the loss that are made of all samples."""
        if not isinstance(self.results[0], core.Var) or self.results[0] not in made:
            raise NotShared("samples meet beside the loss")

    def step(self) -> TracedStep:
        """The step whose loss is a sum over samples."""
        old, loss = self.old, self.old.loss
        names: dict[Any, Any] = dict(zip(loss.invars, old.mark.invars, strict=True))
        wanted = depended_on(self.met, self.made_alone)
        needed = [eqn for eqn in self.alone if id(eqn) in wanted]
        names |= {var: core.Var(var.aval) for eqn in needed for var in eqn.outvars if not is_dropped(var)}
        first = renamed_equations(needed, names)
        joint, constants = self._joint(names)
        values, slopes = joint.outvars[: len(self.results)], joint.outvars[len(self.results) :]
        program = self._loss_of_slopes()
        mark = old.mark.replace(
            invars=[*old.mark.invars, *slopes, *values],
            outvars=[core.Var(program.outvars[0].aval), *old.mark.outvars],
            params={"loss": program, "consts": old.mark.params["consts"], "wrt": old.wrt},
        )
        before = (*old.before, *first, joint)
        jaxpr = old.jaxpr.replace(
            constvars=[*old.jaxpr.constvars, *constants],
            eqns=[*before, mark, *old.after],
            debug_info=old.jaxpr.debug_info.with_unknown_names(),
        )
        return replace(
            old,
            jaxpr=jaxpr,
            consts=(*old.consts, *constants.values()),
            loss=program,
            mark=mark,
            before=before,
            meeting=self._said(),
        )

    def _joint(self, names: dict[Any, Any]) -> tuple[core.JaxprEqn, dict[core.Var, Any]]:
        """What is made of all samples, with the slopes of the loss by what was put together; its constants."""
        alone = core.jaxpr_as_fun(piece(self.old.loss, self.together, self.met, self.results))
        places = [self.met.index(var) for var in self.sloped]

        def run(slope: Any, *given: Any) -> list[Any]:
            def of(*moving: Any) -> tuple[Any, list[Any]]:
                whole = list(given)
                for place, value in zip(places, moving, strict=True):
                    whole[place] = value
                made = alone(*whole)
                return made[0], made

            _, back, made = jax.vjp(of, *(given[place] for place in places), has_aux=True)
            return [*made, *back(slope)]

        one = np.ones((), self.results[0].aval.dtype)
        try:
            program = flat_jaxpr(run, [jax.ShapeDtypeStruct((), one.dtype), *(_shape(var) for var in self.met)])
        except UNREAD_PULLBACKS:
            raise NotShared("a function with a backward of its own closes over numbers") from None
        constants = {
            core.Var(var.aval): value
            for var, value in zip(
                [*program.jaxpr.constvars, program.jaxpr.invars[0]], [*program.consts, one], strict=True
            )
        }
        closed = piece(
            program.jaxpr, program.jaxpr.eqns, [*program.jaxpr.constvars, *program.jaxpr.invars], program.jaxpr.outvars
        )
        follows = (*(None for _ in self.results), *(len(constants) + place for place in places))
        template = joint_of(closed, follows, len(constants) - 1 if self.phased else None)
        return template.replace(
            invars=[*constants, *(renamed_atom(var, names) for var in self.met)],
            outvars=[core.Var(var.aval) for var in template.outvars],
        ), constants

    def _loss_of_slopes(self) -> core.Jaxpr:
        """The sum whose gradient is that of the loss, and the results of the loss behind it."""
        loss = self.old.loss
        slopes = [core.Var(var.aval) for var in self.sloped]
        values = {atom: core.Var(atom.aval) for atom in self.results}
        dtype = self.results[0].aval.dtype

        def total(*given: Any) -> list[Any]:
            made, along = given[: len(slopes)], given[len(slopes) :]
            terms = [
                jnp.sum(
                    one.astype(jnp.promote_types(one.dtype, dtype)) * slope.astype(jnp.promote_types(one.dtype, dtype))
                )
                for one, slope in zip(made, along, strict=True)
            ]
            return [sum(terms[1:], terms[0]).astype(dtype)]

        tail = flat_jaxpr(total, [_shape(var) for var in [*self.sloped, *slopes]])
        names = dict(zip(tail.jaxpr.invars, [*self.sloped, *slopes], strict=True))
        results = [values.get(atom, atom) if isinstance(atom, core.Var) else atom for atom in loss.outvars]
        wanted = [*self.sloped, *(atom for atom in results if isinstance(atom, core.Var))]
        kept = depended_on(wanted, self.made_alone)
        eqns = [*(eqn for eqn in self.alone if id(eqn) in kept), *renamed_equations(tail.jaxpr.eqns, names)]
        outvars = [renamed_atom(tail.jaxpr.outvars[0], names), *results]
        return piece(loss, eqns, [*loss.invars, *slopes, *values.values()], outvars).jaxpr

    def _said(self) -> str:
        line = next((line for eqn in self.together if (line := line_of(eqn))), "")
        place = f"samples meet at {line}" if line else "samples meet"
        if self.phased:
            return (
                f"{place}: micro-batches go through the loss in phases, each once all are through the one before;"
                " what a phase hands on is kept of all samples, the rest is computed again for gradients, which are"
                " those of the whole batch"
            )
        return (
            f"{place}: what each makes by itself is computed twice, first for all micro-batches and without"
            " gradients, so that gradients are those of the whole batch"
        )


def _shape(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
