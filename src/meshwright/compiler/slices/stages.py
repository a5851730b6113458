"""The stages of a loss for every slice of a sequence, with what a slice keeps for the later ones of its sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.cuts.stage_programs import StageJaxprs, stage_programs
from meshwright.compiler.inline import inlined
from meshwright.compiler.joins import How
from meshwright.compiler.samples.placements import SUM, WHOLE, NotShared, Placement
from meshwright.compiler.samples.sorting import sorts
from meshwright.compiler.samples.values import RankValue
from meshwright.compiler.slices.facts import Facts, facts_of_constant
from meshwright.compiler.slices.keys import KeySpan, NotCausalError, NotSlicedError
from meshwright.compiler.slices.walk import Found, SliceWalk
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, eq=False, slots=True)
class SlicedValue:
    """A value between stages, and how many slices' tokens one slice passes on along each dimension that counts them."""

    whole: core.Var
    slices: Mapping[int, int]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SliceStage:
    """One stage for one slice of a sequence.

    Behind what the stages pass on, its program takes what earlier slices kept (value after value, one array of each
    slice) and returns what this one keeps; the last one keeps nothing.
    """

    programs: StageJaxprs
    carried_in: tuple[SlicedValue, ...]
    """What the stage takes of whole sequences."""
    carried_out: tuple[SlicedValue, ...]
    results: tuple[Placement, ...]
    """Placement of each result of the loss: the dimension that counts tokens, a sum over slices, or the same in all."""
    number: int
    """Number of the slice."""
    last: bool
    """Whether it is the last slice of its sequence, so that no slice reads what it keeps."""
    kept: tuple[jax.ShapeDtypeStruct, ...]
    """What every slice but the last keeps."""

    @property
    def earlier(self) -> list[tuple[int, int]]:
        """Which value of which slice it reads, in the order of its operands."""
        return [(value, slice_) for value in range(len(self.kept)) for slice_ in range(self.number)]


def sliced_stages(
    step: TracedStep, stages: Sequence[CutStage], parts: int, axes: Sequence[tuple[str, int]] = ()
) -> tuple[tuple[SliceStage, ...], ...]:
    """The stages of a loss for slices of every sequence, stage after stage, each with its slices in order.

    Args:
        step: the step with this loss.
        stages: the stages of it, in order.
        parts: slices of a sequence, equally long.
        axes: the axes of the mesh whose names the stages use, and devices along them.

    Raises:
        InputError: it cannot be shown that slices compute what whole sequences do; with the line where.
    """
    turned: dict[Any, NotCausalError] = {}
    sorting = any(sorts(stage.program.jaxpr) for stage in stages)
    while True:
        try:
            return _sliced(step, stages, parts, axes, Found(turned=set(turned), sorts=sorting))
        except NotCausalError as why:
            if why.place in turned:
                # What is wrong with either of the two values as queries: that of the usual order is said.
                raise InputError(_problem(turned[why.place], parts)) from None
            turned[why.place] = why
        except NotShared as why:
            raise InputError(_problem(why, parts)) from None


def _problem(why: NotShared, parts: int) -> Problem:
    at = f": {why.line}" if isinstance(why, NotSlicedError) and why.line else ""
    return Problem(
        what=f"slices of a sequence would not compute what the whole one does: {why}{at}",
        why=f"a schedule with {parts} segments runs a sequence slice by slice, and a slice reads earlier ones alone",
        fix="a schedule of whole sequences, such as 1f1b; or attention with a causal mask, written out",
        field="schedule",
    )


def _sliced(
    step: TracedStep, stages: Sequence[CutStage], parts: int, axes: Sequence[tuple[str, int]], found: Found
) -> tuple[tuple[SliceStage, ...], ...]:
    operands = _operands(step)
    carried: dict[core.Var, RankValue] = {}
    made = []
    for stage in stages:
        given = [
            *(operands[place] for place in stage.parameters),
            *(carried[var] for var in stage.carried_in),
            *(operands[place] for place in stage.others),
        ]
        slices: list[SliceStage] = []
        kept: tuple[jax.ShapeDtypeStruct, ...] = ()
        for number in range(parts):
            reads = _Slice(step, stage, given, found, parts, number, kept)
            program, results, kept = reads.program(axes)
            cut = reads.cut(program)
            slices.append(
                SliceStage(
                    programs=stage_programs(cut, last=stage is stages[-1], axes=axes),
                    carried_in=_passed(stage.carried_in, given[len(stage.parameters) :], number),
                    carried_out=_passed(stage.carried_out, results, number),
                    number=number,
                    last=number == parts - 1,
                    kept=kept,
                    results=tuple(value.placement for value in results[len(stage.carried_out) :]),
                )
            )
            carried |= dict(zip(stage.carried_out, results, strict=False))
        made.append(tuple(slices))
    if not found.tokens:
        raise NotSlicedError("no dimension of what the loss is computed from counts tokens")
    return tuple(made)


def _passed(variables: Sequence[core.Var], values: Sequence[RankValue], number: int) -> tuple[SlicedValue, ...]:
    return tuple(SlicedValue(var, _slices(value, number)) for var, value in zip(variables, values, strict=False))


def _slices(value: RankValue, number: int) -> dict[int, int]:
    """Dimensions that count tokens, with slices whose tokens a slice holds: its own, of keys those before it, too."""
    found = {value.placement: 1} if value.placement >= 0 else {}
    if isinstance(value.order, KeySpan):
        found[value.order.dimension] = number + 1
    return found


def _operands(step: TracedStep) -> list[RankValue]:
    """What is known of the operands of the loss before any is given."""
    of_batch: set[Any] = {step.jaxpr.invars[place] for place in step.batch}
    for eqn in step.before:
        if any(isinstance(atom, core.Var) and atom in of_batch for atom in eqn.invars):
            of_batch.update(eqn.outvars)
    constants = dict(zip(step.jaxpr.constvars, step.consts, strict=True))
    found = []
    for place, atom in enumerate(step.mark.invars):
        if place in step.wrt:
            found.append(RankValue(None, WHOLE, moves=True))
        elif isinstance(atom, core.Literal) or atom in constants:
            known = facts_of_constant(atom.val if isinstance(atom, core.Literal) else constants[atom])
            found.append(RankValue(None, WHOLE, known=known))
        else:
            found.append(RankValue(None, WHOLE, known=Facts(samples=atom in of_batch)))
    return found


class _Slice:
    """Writes the program of one stage for one slice."""

    def __init__(
        self,
        step: TracedStep,
        stage: CutStage,
        given: Sequence[RankValue],
        found: Found,
        parts: int,
        number: int,
        kept: Sequence[jax.ShapeDtypeStruct],
    ) -> None:
        self.step, self.stage, self.given, self.found = step, stage, given, found
        self.parts, self.number, self.kept = parts, number, kept
        self.before = len(stage.parameters) + len(stage.carried_in)

    def program(
        self, axes: Sequence[tuple[str, int]]
    ) -> tuple[core.ClosedJaxpr, list[RankValue], tuple[jax.ShapeDtypeStruct, ...]]:
        """The program, what it is known to return without what it keeps, and shapes of what slices keep."""
        stage = self.stage
        made: list[RankValue] = []
        kept: list[jax.ShapeDtypeStruct] = []
        count = len(self.kept) * self.number

        def run(*given: Any) -> list[Any]:
            earlier = given[self.before : self.before + count]
            rows = [earlier[at * self.number : (at + 1) * self.number] for at in range(len(self.kept))]
            walk = SliceWalk(self.parts, self.number, self.found, rows)
            plain = [*given[: self.before], *given[self.before + count :]]
            values = [replace(known, value=value) for known, value in zip(self.given, plain, strict=True)]
            results = walk.read(stage.program.jaxpr, values, stage.program.consts)
            results = [self._result(walk, at, value) for at, value in enumerate(results)]
            made[:] = [replace(value, value=None) for value in results]
            kept[:] = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in walk.kept]
            return [value.value for value in results] + (walk.kept if self.number < self.parts - 1 else [])

        shapes = [
            jax.ShapeDtypeStruct(self._shape(var, value), var.aval.dtype)
            for var, value in zip(stage.program.jaxpr.invars, self.given, strict=True)
        ]
        shapes[self.before : self.before] = [one for one in self.kept for _ in range(self.number)]
        closed = inlined(jax.make_jaxpr(run, axis_env=list(axes))(*shapes))
        return closed, made, tuple(kept)

    def _shape(self, var: core.Var, value: RankValue) -> tuple[int, ...]:
        """Shape of what the slice is given of a value."""
        shape = list(var.aval.shape)
        for place, slices in _slices(value, self.number).items():
            shape[place] = shape[place] // self.parts * slices
        return tuple(shape)

    def _result(self, walk: SliceWalk, at: int, value: RankValue) -> RankValue:
        """A result of the stage as slices may return it: results of the loss are sums over them, or the same in all."""
        place = at - len(self.stage.carried_out)
        if place < 0:
            return value
        if value.order:
            raise NotSlicedError("the loss returns scores of queries and keys, or tokens beside samples")
        how = self.step.joins[self.stage.results[place]].how
        if how is How.SAME and value.placement == WHOLE and self.stage.results[place]:
            return value
        if how not in (How.ADDED, How.AVERAGED, How.JOINED):
            raise NotSlicedError(f"a result of the loss is {how.value} over micro-batches, and slices make no part")
        if how is How.JOINED and value.placement >= 0:
            return value
        value = walk.summand(value)
        if value.placement != SUM:
            raise NotSlicedError("the loss returns values of single tokens")
        return value

    def cut(self, program: core.ClosedJaxpr) -> CutStage:
        """The stage of this slice.

        Args:
            program: the program of it.
        """
        stage, jaxpr = self.stage, program.jaxpr
        first, count = len(stage.parameters), len(self.kept) * self.number
        passed = len(stage.carried_out)
        keeps = jaxpr.outvars[passed + len(stage.results) :]
        order = [
            *range(passed),
            *range(passed + len(stage.results), len(jaxpr.outvars)),
            *range(passed, passed + len(stage.results)),
        ]
        jaxpr = jaxpr.replace(
            outvars=[jaxpr.outvars[at] for at in order], debug_info=jaxpr.debug_info.with_unknown_names()
        )
        return replace(
            stage,
            program=core.ClosedJaxpr(jaxpr, program.consts),
            carried_in=tuple(jaxpr.invars[first : self.before + count]),
            carried_out=tuple(core.Var(atom.aval) for atom in (*program.jaxpr.outvars[:passed], *keeps)),
        )
