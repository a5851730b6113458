"""A step for micro-batches: their losses add up to the loss of the batch, and their results make its results.

Three programs are made of one. What samples need of the whole batch before any loss can be computed (the number of
tokens that count, the largest advantage) is summed over all micro-batches first. The loss of a micro-batch is its share
of the loss. What is computed from sums over the batch alone (a root of a mean, a perplexity, a ratio of counts) goes
behind the last micro-batch; where it is the loss, gradients are scaled there by the derivative of it by the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr, is_dropped, piece, programs_of, reached
from meshwright.compiler.joins import How, Join, total_p
from meshwright.compiler.micro_batches.meeting import TogetherWalk, met_apart
from meshwright.compiler.micro_batches.phases import in_phases
from meshwright.compiler.micro_batches.walk import MicroBatchWalk, NotSharedAtError
from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement
from meshwright.compiler.samples.sorting import in_batch_order
from meshwright.compiler.samples.values import RankValue, part_shape
from meshwright.compiler.source_line import line_of
from meshwright.compiler.traced_step import TracedStep


def shared_out(step: TracedStep, parts: int, *, meeting: bool = True) -> TracedStep:
    """The step for micro-batches.

    Args:
        step: as it reads for the whole batch.
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


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Program:
    """A program as it is evaluated for one micro-batch; `total_p` stands where values of the whole batch do."""

    jaxpr: core.Jaxpr
    consts: Sequence[Any]
    placements: Sequence[Placement]
    """Of its results."""

    @property
    def made(self) -> dict[Any, core.JaxprEqn]:
        """Equation of each variable."""
        return {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}


def _evaluated(
    program: core.Jaxpr,
    placements: Sequence[Placement],
    moving: Iterable[int],
    parts: int,
    *,
    sums: bool,
    kind: type[MicroBatchWalk] = MicroBatchWalk,
) -> _Program:
    """A program for one micro-batch, whose number it takes last.

    Args:
        program: without constants.
        placements: of its operands.
        moving: operands that are differentiated.
        parts: micro-batches.
        sums: whether the first result is made a sum if it is none.
        kind: of walk.
    """
    found: list[Placement] = []
    moved = set(moving)

    def run(*given: Any) -> list[Any]:
        walk = kind(parts, given[-1])
        values = [
            RankValue(value, placement, moves=place in moved)
            for place, (value, placement) in enumerate(zip(given, placements, strict=False))
        ]
        made = list(in_batch_order(walk.read(program, values)))
        if sums and made[0].placement == WHOLE and not made[0].late:
            made[0] = walk.summand(made[0])
        made = [walk.total(value) for value in made]
        found[:] = [value.placement for value in made]
        return [value.value for value in made]

    shapes = [
        jax.ShapeDtypeStruct(part_shape(var.aval.shape, placement, parts), var.aval.dtype)
        for var, placement in zip(program.invars, placements, strict=True)
    ]
    closed = flat_jaxpr(run, [*shapes, jax.ShapeDtypeStruct((), jnp.int32)])
    return _Program(jaxpr=closed.jaxpr, consts=closed.consts, placements=tuple(found))


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
        """Of the operands of the loss."""
        return self._operands()[1]

    def step(self) -> TracedStep:
        """The step for micro-batches."""
        old = self.old
        operands, placements = self._operands()
        for place in old.wrt:
            if placements[place] != WHOLE:
                raise NotShared("what is differentiated counts samples")
        loss = _evaluated(old.loss, placements, old.wrt, self.parts, sums=bool(old.wrt))
        names: dict[Any, Any] = dict(zip(loss.jaxpr.invars, [*operands, self.number], strict=True))
        names |= self._constants(loss)
        found = _Results(loss, [var for place, var in enumerate(loss.jaxpr.invars[:-1]) if place in old.wrt])
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
        self.before += _renamed(needed, names | first)
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
        self.after += _renamed(old.after, substitutes)
        consts = [*old.consts, np.zeros((), np.int32), *self.extra_consts.values()]
        jaxpr = old.jaxpr.replace(
            constvars=[*old.jaxpr.constvars, self.number, *self.extra_consts],
            invars=list(self.given.values()),
            eqns=[*self.before, mark, *self.after],
            outvars=[_named(_named(atom, substitutes), self.given) for atom in old.jaxpr.outvars],
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
        kept = _ancestors(read, {var: eqn for eqn in self.old.before for var in eqn.outvars})
        return [eqn for eqn in self.old.before if id(eqn) in kept]

    def _constants(self, program: _Program) -> dict[Any, Any]:
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
        made = _evaluated(
            alone.jaxpr,
            [0 if var in samples else WHOLE for var in inputs],
            (),
            self.parts,
            sums=False,
            kind=self.before_walk,
        )
        atoms = [*(self.given[var] for var in old.jaxpr.invars), *old.jaxpr.constvars, self.number]
        names = dict(zip(made.jaxpr.invars, atoms, strict=True)) | self._constants(made)
        kept = _ancestors([atom for atom in made.jaxpr.outvars if isinstance(atom, core.Var)], made.made)
        eqns = [eqn for eqn in made.jaxpr.eqns if id(eqn) in kept]
        held = dict(zip(inputs, made.jaxpr.invars, strict=False))
        slopes = [held[eqn.invars[place]] for eqn in old.before if (place := eqn.params.get("slope")) is not None]
        if slopes:
            own = [held[var] for var in inputs if var in samples]
            eqns = in_phases(made.jaxpr, eqns, [*own, made.jaxpr.invars[-1]], slopes)
        self.before += _renamed(eqns, names)
        found = iter(zip(made.jaxpr.outvars, made.placements, strict=True))
        operands, placements = [], []
        for atom in old.mark.invars:
            own, placement = next(found) if isinstance(atom, core.Var) else (atom, WHOLE)
            operands.append(_named(own, names))
            placements.append(placement)
        return operands, placements

    def _program(
        self,
        loss: _Program,
        found: _Results,
        needed: Sequence[core.JaxprEqn],
        operands: Sequence[Any],
        names: Mapping[Any, Any],
    ) -> tuple[core.Jaxpr, list[Any]]:
        """The loss of a micro-batch, and its operands: those of the loss, and what else it reads."""
        before = {id(eqn) for eqn in needed}
        totals = [eqn.outvars[0] for eqn in needed if eqn.primitive is total_p]
        kept = _ancestors(found.outputs, {var: eqn for var, eqn in loss.made.items() if var not in set(totals)})
        eqns = [
            eqn for eqn in loss.jaxpr.eqns if id(eqn) in kept and not (eqn.primitive is total_p and id(eqn) in before)
        ]
        read = {atom for eqn in eqns for atom in eqn.invars if isinstance(atom, core.Var)}
        read |= {atom for atom in found.outputs if isinstance(atom, core.Var)}
        more = [var for var in [loss.jaxpr.invars[-1], *totals, *loss.jaxpr.constvars] if var in read]
        alone = piece(loss.jaxpr, eqns, [*loss.jaxpr.invars[:-1], *more], found.outputs)
        return alone.jaxpr, [*operands, *(names[var] for var in more)]

    def _tail(
        self, loss: _Program, found: _Results, results: Sequence[int], outvars: Sequence[core.Var]
    ) -> dict[Any, Any]:
        """What is computed behind the last micro-batch; what each result of the mark is then."""
        names: dict[Any, Any] = {var: outvars[place] for var, place in found.place_of.items()}
        kept = _ancestors(found.late, {var: eqn for var, eqn in loss.made.items() if var not in names})
        eqns = [eqn for eqn in loss.jaxpr.eqns if id(eqn) in kept]
        names |= {var: core.Var(var.aval) for eqn in eqns for var in eqn.outvars if not is_dropped(var)}
        self.after += _renamed(eqns, names)
        substitutes: dict[Any, Any] = {}
        for place in results:
            var = self.old.mark.outvars[place]
            substitutes[var] = _named(loss.jaxpr.outvars[place], names)
        return substitutes

    def _gradients(self, loss: _Program, found: _Results, outvars: Sequence[core.Var]) -> list[core.Var]:
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
        kept = _ancestors([value], made)
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
        names = dict(zip(program.jaxpr.invars, [*(_named(var, names) for var in reads), *scaled], strict=True))
        constants = _Program(jaxpr=program.jaxpr, consts=program.consts, placements=())
        names |= self._constants(constants)
        names |= dict(zip(program.jaxpr.outvars, own, strict=True))
        self.after += _renamed(program.jaxpr.eqns, names)
        return scaled


class _Results:
    """What micro-batches return, and how results of the whole batch are made of it."""

    def __init__(self, program: _Program, moving: Sequence[core.Var]) -> None:
        self.program, self.made = program, program.made
        self.outputs: list[Any] = []
        """Of the program of a micro-batch."""
        self.joins: list[Join] = []
        self.place_of: dict[Any, int] = {}
        """Place of what a result, or a total, is made of."""
        self.late: list[Any] = []
        """Results that are computed behind the last micro-batch."""
        self.moving: Any = None
        """The sum that gradients are of."""
        self._moves = reached(moving, program.jaxpr.eqns, by_gradient=True)
        self._after_totals = reached(
            [eqn.outvars[0] for eqn in program.jaxpr.eqns if eqn.primitive is total_p], program.jaxpr.eqns
        )

    def add(self, place: int, *, loss: bool) -> None:
        """A result of the loss for the whole batch.

        Args:
            place: of it; the loss itself comes first.
            loss: whether it is differentiated.
        """
        atom, placement = self.program.jaxpr.outvars[place], self.program.placements[place]
        if isinstance(atom, core.Literal):
            if loss:
                raise NotShared("the loss is a constant")
            return
        eqn = self.made.get(atom)
        if placement >= 0:
            self._output(atom, atom, Join(How.JOINED, placement))
        elif eqn is not None and eqn.primitive is total_p:
            if loss and eqn.params["how"] is not How.ADDED:
                raise _at(eqn, "the loss is that of one sample of the batch")
            self._total(eqn)
        elif atom in self._after_totals:
            self._late(atom, loss=loss)
        else:
            self._output(atom, atom, Join(How.SAME))
        if loss and self.moving is None:
            self.moving = atom

    def _output(self, atom: Any, name: Any, join: Join) -> None:
        if name not in self.place_of:
            self.place_of[name] = len(self.outputs)
            self.outputs.append(atom)
            self.joins.append(join)

    def _total(self, eqn: core.JaxprEqn) -> None:
        self._output(eqn.invars[0], eqn.outvars[0], Join(eqn.params["how"]))

    def _late(self, atom: Any, *, loss: bool) -> None:
        """What is computed from totals."""
        totals, values = [], []
        wanted, seen = [atom], set()
        while wanted:
            one = wanted.pop()
            if not isinstance(one, core.Var) or one in seen:
                continue
            seen.add(one)
            eqn = self.made.get(one)
            if eqn is not None and eqn.primitive is total_p:
                totals.append(eqn)
            elif one not in self._after_totals:
                values.append(one)
            else:
                wanted += eqn.invars if eqn is not None else []
        if loss:
            self._check_loss(atom, totals, values)
            totals.sort(key=lambda eqn: eqn.outvars[0] is not self.moving)
        for eqn in totals:
            self._total(eqn)
        for value in values:
            self._output(value, value, Join(How.SAME))
        self.late.append(atom)

    def _check_loss(self, atom: Any, totals: Sequence[core.JaxprEqn], values: Sequence[core.Var]) -> None:
        """Gradients of a function of a sum are those of the sum, scaled; those of two sums would be kept apart."""
        moving = [eqn for eqn in totals if eqn.outvars[0] in self._moves]
        alone = len(moving) == 1 and not any(value in self._moves for value in values)
        if not alone or moving[0].outvars[0].aval.shape or moving[0].params["how"] is not How.ADDED:
            raise _at(self.made[atom], "the loss is no function of one sum over the batch")
        self.moving = moving[0].outvars[0]

    def needed_first(self) -> list[core.JaxprEqn]:
        """Equations of values of the whole batch without which no loss of a micro-batch can be computed."""
        outputs = [atom for atom in self.outputs if isinstance(atom, core.Var)]
        inside, along = _ancestors(outputs, self.made), _ancestors(outputs, self.made, by_gradient=True)
        totals = [eqn for eqn in self.program.jaxpr.eqns if id(eqn) in inside and eqn.primitive is total_p]
        for eqn in totals:
            if eqn.outvars[0] in self._moves and id(eqn) in along:
                raise _at(eqn, "statistics of the batch are used with its samples")
        needed = _ancestors([eqn.outvars[0] for eqn in totals], self.made)
        return [eqn for eqn in self.program.jaxpr.eqns if id(eqn) in needed]


def _at(eqn: core.JaxprEqn, why: str) -> NotShared:
    line = line_of(eqn)
    return NotSharedAtError(why, line) if line else NotShared(why)


def _ancestors(wanted: Iterable[Any], made: Mapping[Any, core.JaxprEqn], *, by_gradient: bool = False) -> set[int]:
    """Equations that some values need, or only those that they have a gradient by."""
    left, found = list(wanted), set()
    while left:
        atom = left.pop()
        eqn = made.get(atom) if isinstance(atom, core.Var) else None
        if eqn is not None and id(eqn) not in found:
            found.add(id(eqn))
            left += [] if by_gradient and eqn.primitive.name == "stop_gradient" else eqn.invars
    return found


def _named(atom: Any, names: Mapping[Any, Any]) -> Any:
    return names.get(atom, atom) if isinstance(atom, core.Var) else atom


def _pulls_back(jaxpr: core.Jaxpr) -> bool:
    """Whether a program holds pullbacks of their own, which need not be linear in what they are given."""
    return any(
        eqn.primitive.name == "custom_vjp_call" or any(_pulls_back(inner) for inner in programs_of(eqn))
        for eqn in jaxpr.eqns
    )


def _renamed(eqns: Sequence[core.JaxprEqn], names: Mapping[Any, Any]) -> list[core.JaxprEqn]:
    """Equations in other names."""
    return [
        eqn.replace(
            invars=[_named(atom, names) for atom in eqn.invars],
            outvars=[var if is_dropped(var) else _named(var, names) for var in eqn.outvars],
        )
        for eqn in eqns
    ]


def _shape(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
