"""A step for micro-batches: their losses add up to the loss of the batch, and their results make its results.

Three programs are made of one. What samples need of the whole batch before any loss can be computed (the number of
tokens that count, the largest advantage) is summed over all micro-batches first. The loss of a micro-batch is its share
of the loss. What is computed from sums over the batch alone (a root of a mean, a perplexity, a ratio of counts) goes
behind the last micro-batch; where it is the loss, gradients are scaled there by the derivative of it by the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.inline import depended_on, flat_jaxpr, is_dropped, piece, programs_of
from meshwright.compiler.joins import total_p
from meshwright.compiler.micro_batches.joined_results import JoinedResults
from meshwright.compiler.micro_batches.meeting import TogetherWalk, met_apart
from meshwright.compiler.micro_batches.phases import in_phases
from meshwright.compiler.micro_batches.program import SampleProgram, evaluated, renamed_atom, renamed_equations
from meshwright.compiler.micro_batches.walk import MicroBatchWalk
from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement
from meshwright.compiler.samples.values import part_shape
from meshwright.compiler.traced_step import TracedStep


def shared_out(step: TracedStep, parts: int, *, meeting: bool = True) -> TracedStep:
    """The step for micro-batches.

    Args:
        step: the step as it reads for the whole batch.
        parts: micro-batches.
        meeting: whether samples of several micro-batches may meet, for which some work is done twice.

    Raises:
        NotShared: it cannot be shown that both compute the same.
    """
    try:
        return _Sharing(step, parts, meeting).step()
    except NotShared as why:
        if not meeting or not step.wrt:
            raise
        try:
            apart = met_apart(step, _Sharing(step, parts, meeting).placements(), parts)
            if apart is not None:
                return _Sharing(apart, parts, meeting).step()
        except NotShared:
            pass
        raise why


class _Sharing:
    """Writes one step."""

    def __init__(self, step: TracedStep, parts: int, meeting: bool) -> None:
        self.old, self.parts, self.before_walk = step, parts, TogetherWalk if meeting else MicroBatchWalk
        self.number = core.Var(jax.core.ShapedArray((), jnp.dtype("int32")))
        self.extra_consts: dict[core.Var, Any] = {}
        self.given = {
            var: core.Var(var.aval.update(shape=part_shape(var.aval.shape, 0, parts))) if place in step.batch else var
            for place, var in enumerate(step.jaxpr.invars)
        }
        """Inputs of the step for the whole batch, and those for a micro-batch."""
        self.before: list[core.JaxprEqn] = []
        self.after: list[core.JaxprEqn] = []

    def placements(self) -> list[Placement]:
        """Placements of the operands of the loss."""
        return self._operands()[1]

    def step(self) -> TracedStep:
        """The step for micro-batches."""
        old = self.old
        operands, placements = self._operands()
        for place in old.wrt:
            if placements[place] != WHOLE:
                raise NotShared("what is differentiated counts samples")
        loss = evaluated(old.loss, placements, old.wrt, self.parts, sums=bool(old.wrt))
        names: dict[Any, Any] = dict(zip(loss.jaxpr.invars, [*operands, self.number], strict=True))
        names |= self._constants(loss)
        found = JoinedResults(loss, [var for place, var in enumerate(loss.jaxpr.invars[:-1]) if place in old.wrt])
        read = {atom for eqn in old.after for atom in eqn.invars if isinstance(atom, core.Var)}
        read |= {atom for atom in old.jaxpr.outvars if isinstance(atom, core.Var)}
        results = [
            place
            for place, var in enumerate(old.mark.outvars[: len(old.loss.outvars)])
            if (place == 0 and old.wrt) or (not is_dropped(var) and var in read)
        ]
        for place in results:
            found.add(place, loss=place == 0 and bool(old.wrt))
        needed = found.needed_first()
        first = {var: core.Var(var.aval) for eqn in needed for var in eqn.outvars if not is_dropped(var)}
        self.before += renamed_equations(needed, names | first)
        program, reads = self._program(loss, found, needed, operands, names | first)
        outvars = [
            core.Var(atom.aval.update(shape=join.shape(atom.aval, self.parts)))
            for atom, join in zip(program.outvars, found.joins, strict=True)
        ]
        substitutes = self._tail(loss, found, results, outvars)
        self.after = [*self._kept_before(read), *self.after]
        gradients = self._gradients(loss, found, outvars)
        mark = old.mark.replace(
            invars=reads,
            outvars=[*outvars, *gradients],
            params={"loss": program, "consts": old.mark.params["consts"], "wrt": old.wrt},
        )
        self.after += renamed_equations(old.after, substitutes)
        consts = [*old.consts, np.zeros((), np.int32), *self.extra_consts.values()]
        jaxpr = old.jaxpr.replace(
            constvars=[*old.jaxpr.constvars, self.number, *self.extra_consts],
            invars=list(self.given.values()),
            eqns=[*self.before, mark, *self.after],
            outvars=[renamed_atom(renamed_atom(atom, substitutes), self.given) for atom in old.jaxpr.outvars],
            debug_info=old.jaxpr.debug_info.with_unknown_names(),
        )
        return replace(
            old,
            jaxpr=jaxpr,
            consts=tuple(consts),
            loss=program,
            mark=mark,
            before=tuple(self.before),
            after=tuple(self.after),
            micro_batches=self.parts,
            mean=False,
            joins=tuple(found.joins),
            number=self.number,
            wholes=self._wholes(),
        )

    def _wholes(self) -> dict[core.Var, int]:
        """Samples that are read behind the mark, all of them at once."""
        read = {atom for eqn in self.after for atom in eqn.invars if isinstance(atom, core.Var)}
        inputs = self.old.jaxpr.invars
        return {inputs[place]: place for place in self.old.batch if inputs[place] in read}

    def _kept_before(self, read: set[Any]) -> list[core.JaxprEqn]:
        """Equations before the mark whose results are read behind it, too."""
        kept = depended_on(read, {var: eqn for eqn in self.old.before for var in eqn.outvars})
        return [eqn for eqn in self.old.before if id(eqn) in kept]

    def _constants(self, program: SampleProgram) -> dict[Any, Any]:
        """Constants of a program, which become constants of the step."""
        names = {var: core.Var(var.aval) for var in program.jaxpr.constvars}
        self.extra_consts |= dict(zip(names.values(), program.consts, strict=True))
        return names

    def _operands(self) -> tuple[list[Any], list[Placement]]:
        """Operands of the loss for a micro-batch, made of those of the step, and what each holds."""
        old = self.old
        inputs = [*old.jaxpr.invars, *old.jaxpr.constvars]
        samples = {old.jaxpr.invars[place] for place in old.batch}
        wanted = [atom for atom in old.mark.invars if isinstance(atom, core.Var)]
        alone = piece(old.jaxpr, old.before, inputs, wanted)
        made = evaluated(
            alone.jaxpr,
            [0 if var in samples else WHOLE for var in inputs],
            (),
            self.parts,
            sums=False,
            kind=self.before_walk,
        )
        atoms = [*(self.given[var] for var in old.jaxpr.invars), *old.jaxpr.constvars, self.number]
        names = dict(zip(made.jaxpr.invars, atoms, strict=True)) | self._constants(made)
        kept = depended_on([atom for atom in made.jaxpr.outvars if isinstance(atom, core.Var)], made.made)
        eqns = [eqn for eqn in made.jaxpr.eqns if id(eqn) in kept]
        held = dict(zip(inputs, made.jaxpr.invars, strict=False))
        slopes = [held[eqn.invars[place]] for eqn in old.before if (place := eqn.params.get("slope")) is not None]
        if slopes:
            own = [held[var] for var in inputs if var in samples]
            eqns = in_phases(made.jaxpr, eqns, [*own, made.jaxpr.invars[-1]], slopes)
        self.before += renamed_equations(eqns, names)
        found = iter(zip(made.jaxpr.outvars, made.placements, strict=True))
        operands, placements = [], []
        for atom in old.mark.invars:
            own, placement = next(found) if isinstance(atom, core.Var) else (atom, WHOLE)
            operands.append(renamed_atom(own, names))
            placements.append(placement)
        return operands, placements

    def _program(
        self,
        loss: SampleProgram,
        found: JoinedResults,
        needed: Sequence[core.JaxprEqn],
        operands: Sequence[Any],
        names: Mapping[Any, Any],
    ) -> tuple[core.Jaxpr, list[Any]]:
        """The loss of a micro-batch, and its operands: those of the loss, and what else it reads."""
        before = {id(eqn) for eqn in needed}
        totals = [eqn.outvars[0] for eqn in needed if eqn.primitive is total_p]
        kept = depended_on(found.outputs, {var: eqn for var, eqn in loss.made.items() if var not in set(totals)})
        eqns = [
            eqn for eqn in loss.jaxpr.eqns if id(eqn) in kept and not (eqn.primitive is total_p and id(eqn) in before)
        ]
        read = {atom for eqn in eqns for atom in eqn.invars if isinstance(atom, core.Var)}
        read |= {atom for atom in found.outputs if isinstance(atom, core.Var)}
        more = [var for var in [loss.jaxpr.invars[-1], *totals, *loss.jaxpr.constvars] if var in read]
        alone = piece(loss.jaxpr, eqns, [*loss.jaxpr.invars[:-1], *more], found.outputs)
        return alone.jaxpr, [*operands, *(names[var] for var in more)]

    def _tail(
        self, loss: SampleProgram, found: JoinedResults, results: Sequence[int], outvars: Sequence[core.Var]
    ) -> dict[Any, Any]:
        """What is computed behind the last micro-batch; what each result of the mark is then."""
        names: dict[Any, Any] = {var: outvars[place] for var, place in found.place_of.items()}
        kept = depended_on(found.late, {var: eqn for var, eqn in loss.made.items() if var not in names})
        eqns = [eqn for eqn in loss.jaxpr.eqns if id(eqn) in kept]
        names |= {var: core.Var(var.aval) for eqn in eqns for var in eqn.outvars if not is_dropped(var)}
        self.after += renamed_equations(eqns, names)
        substitutes: dict[Any, Any] = {}
        for place in results:
            var = self.old.mark.outvars[place]
            substitutes[var] = renamed_atom(loss.jaxpr.outvars[place], names)
        return substitutes

    def _gradients(self, loss: SampleProgram, found: JoinedResults, outvars: Sequence[core.Var]) -> list[core.Var]:
        """Results of the mark that are gradients; scaled behind it where the loss is no sum."""
        own = self.old.gradients
        if not own:
            return own
        value = loss.jaxpr.outvars[0]
        if value in found.place_of:
            return own
        if _pulls_back(loss.jaxpr):
            raise NotShared("a pullback of its own (jax.custom_vjp) would see another loss than that of the batch")
        names: dict[Any, Any] = {var: outvars[place] for var, place in found.place_of.items()}
        made = {var: eqn for var, eqn in loss.made.items() if var not in names}
        kept = depended_on([value], made)
        eqns = [eqn for eqn in loss.jaxpr.eqns if id(eqn) in kept]
        written = {var for eqn in eqns for var in eqn.outvars}
        reads = list(
            dict.fromkeys(
                atom for eqn in eqns for atom in eqn.invars if isinstance(atom, core.Var) and atom not in written
            )
        )
        alone = core.jaxpr_as_fun(piece(loss.jaxpr, eqns, reads, [value]))
        at = reads.index(found.moving)
        scaled = [core.Var(var.aval) for var in own]

        def scale(*given: Any) -> list[Any]:
            slope = jax.grad(lambda total: alone(*given[:at], total, *given[at + 1 : len(reads)])[0])(given[at])
            return [gradient * slope.astype(gradient.dtype) for gradient in given[len(reads) :]]

        program = flat_jaxpr(scale, [_shape(var) for var in [*reads, *scaled]])
        names = dict(zip(program.jaxpr.invars, [*(renamed_atom(var, names) for var in reads), *scaled], strict=True))
        constants = SampleProgram(jaxpr=program.jaxpr, consts=program.consts, placements=())
        names |= self._constants(constants)
        names |= dict(zip(program.jaxpr.outvars, own, strict=True))
        self.after += renamed_equations(program.jaxpr.eqns, names)
        return scaled


def _pulls_back(jaxpr: core.Jaxpr) -> bool:
    """Whether a program holds pullbacks of their own, which need not be linear in what they are given."""
    return any(
        eqn.primitive.name == "custom_vjp_call" or any(_pulls_back(inner) for inner in programs_of(eqn))
        for eqn in jaxpr.eqns
    )


def _shape(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
