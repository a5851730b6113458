"""Equations evaluated with what one data rank holds: the same equations for its own samples.

What does not depend on samples stays as it is for all of them, constants too: a mean is divided by the number of all
samples, a mask drawn for all samples is drawn and cut. Every equation on the way of samples has to treat them one by
one or to add them up; it is written for the samples of one rank. Sums are left open as long as they are only scaled and
added; before anything else they are summed over the ranks (weights of a mean that come from the data, moments of a
batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.source_info_util import user_context
from jax.extend import core

from meshwright.compiler.inline import CALLS, CHECKPOINTS, holds, inlined, is_dropped, piece
from meshwright.compiler.narrow_sums import over_ranks
from meshwright.compiler.pointwise import POINTWISE
from meshwright.compiler.samples.blocks import in_blocks
from meshwright.compiler.samples.derivatives import with_own_backward, with_own_derivative
from meshwright.compiler.samples.kernels import KERNEL, kernel_placements
from meshwright.compiler.samples.loops import mapped, scanned
from meshwright.compiler.samples.placements import (
    ADDING,
    SUM,
    WHOLE,
    NotShared,
    Placement,
    for_rank,
    joins_sums,
    keeps_sums,
    sample_placements,
)
from meshwright.compiler.samples.positions import own_rows
from meshwright.compiler.samples.rank_maps import MAP, of_one_rank
from meshwright.compiler.samples.sorting import by_order, in_batch_order, sorts
from meshwright.compiler.samples.values import RankValue, part_shape

RULED = ("custom_jvp_call", "custom_vjp_call")
"""Functions with a rule for their derivative."""
FOLLOWED = (*CALLS, *CHECKPOINTS, *RULED, "scan", "cond")
"""Equations of which those inside are read."""


class Walk:
    """Equations of a loss, evaluated with what one rank holds."""

    def __init__(self, axes: tuple[str, ...], ranks: int, rank: Any = None) -> None:
        self.axes, self.ranks, self.rank = axes, ranks, rank
        self.plain = False
        """Whether nothing that is read is differentiated."""
        self.samples = 1
        self.sorts: bool | None = None
        """Whether anything that is read is sorted; None before reading."""
        self._made_by: tuple[core.Jaxpr | None, dict[Any, core.JaxprEqn]] = (None, {})

    def read(self, program: core.Jaxpr, operands: Sequence[RankValue], consts: Sequence[Any] = ()) -> list[RankValue]:
        """Results of a program.

        Args:
            program: the program for all samples.
            operands: the operands of it.
            consts: values of its constants.
        """
        if self.sorts is None:
            self.sorts = sorts(program)
        values: dict[Any, RankValue] = dict(zip(program.invars, operands, strict=True))
        values |= {var: RankValue(value, WHOLE) for var, value in zip(program.constvars, consts, strict=True)}

        def of(atom: Any) -> RankValue:
            return RankValue(atom.val, WHOLE) if isinstance(atom, core.Literal) else values[atom]

        for eqn in program.eqns:
            # What is written in place of an equation stands for its line of the user's code.
            with user_context(eqn.source_info.traceback):
                made = self._equation(program, eqn, [of(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, made, strict=True))
        return [of(atom) for atom in program.outvars]

    def _equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        follow = partial(by_order, self) if self.sorts else partial(Walk.placed_equation, self)
        return in_blocks(self, follow, program, eqn, given)

    def placed_equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of an equation, and which of their dimensions count samples.

        Args:
            program: the program in which it stands.
            eqn: any.
            given: its operands.
        """
        name, placements = eqn.primitive.name, [value.placement for value in given]
        # The pullback of a function of weights may be more than a product with its cotangents, as where it clips them.
        pulled = not self.plain and name in FOLLOWED and holds(eqn, "custom_vjp_call")
        if all(placement == WHOLE for placement in placements) and not pulled:
            return self._of_all(program, eqn, given)
        if name in FOLLOWED or name == "while":
            return self._read_inside(program, eqn, given)
        if all(placement < 0 for placement in placements):
            return self._of_sums(program, eqn, given)
        return self._of_samples(program, eqn, [self.total(value) for value in given])

    def _of_all(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results that all ranks have alike."""
        name = eqn.primitive.name
        uniform = (name == "broadcast_in_dim" and (given[0].uniform or not eqn.invars[0].aval.shape)) or (
            name in POINTWISE and all(value.uniform or not np.shape(value.value) for value in given)
        )
        return [RankValue(value, WHOLE, uniform=uniform) for value in _evaluated(program, eqn, given)]

    def _read_inside(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of an equation that holds others: these are read."""
        name = eqn.primitive.name
        if name in CALLS:
            return self.inside(eqn, given)
        if name in RULED:
            totals = [self.total(value) for value in given]
            if self.plain:
                return self.inside(eqn, totals)
            ruled = with_own_derivative if name == "custom_jvp_call" else with_own_backward
            return ruled(self, program, eqn, totals)
        read = {"scan": self._scan, "cond": self._branches, "while": self._while}
        return read.get(name, self._checkpoint)(eqn, given)

    def _of_sums(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of sums, left open where the equation only scales and adds them."""
        if not keeps_sums(eqn, [value.placement for value in given]):
            return [RankValue(value, WHOLE) for value in _evaluated(program, eqn, [self.total(one) for one in given])]
        joined = joins_sums(eqn)
        given = [self.summand(value) if joined[place] else value for place, value in enumerate(given)]
        return [RankValue(value, SUM) for value in _evaluated(program, eqn, given)]

    def _of_samples(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results for the samples of the rank."""
        name = eqn.primitive.name
        if name == "gather" and (found := self._rows_of_own(program, eqn, given)) is not None:
            return [found]
        if name == MAP:
            return of_one_rank(self, self.axes, eqn, given)
        own = [value.placement for value in given]
        if name == KERNEL:
            wanted, made, part = kernel_placements(eqn, own, self.ranks)
        else:
            wanted, made = sample_placements(eqn, own, self.ranks)
            part = for_rank(eqn, wanted, made, self.ranks)
        given = [self.own(value, want) for value, want in zip(given, wanted, strict=True)]
        if name in ADDING and made == [SUM]:
            given[0] = self.summand(given[0])
        results = self.evaluated(program, part, given)
        for var, value, placement in zip(eqn.outvars, results, made, strict=True):
            if value is not None and part_shape(var.aval.shape, placement, self.ranks) != np.shape(value):
                raise NotShared(f"{name} has no part for the samples of one rank")
        return [RankValue(value, placement) for value, placement in zip(results, made, strict=True)]

    def evaluated(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[Any]:
        """Results of an equation that reads as it does for one rank.

        Args:
            program: the program that it stands in.
            eqn: the equation.
            given: what the rank holds of its operands.
        """
        try:
            return _evaluated(program, eqn, given)
        except (TypeError, ValueError) as error:
            raise NotShared(f"{eqn.primitive.name} cannot be written for the samples of one rank") from error

    def _rows_of_own(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> RankValue | None:
        """`table[arange(samples), picked]`: every sample picks from its own row."""
        table, indices = given
        if self._made_by[0] is not program:
            self._made_by = program, {var: one for one in program.eqns for var in one.outvars}
        found = own_rows(eqn, table.placement, self._made_by[1])
        if found is None:
            return None
        column, walked = found
        local = self.own(indices, walked).value
        # Counted from the first row of the part, and seen to be so where the part is shared out once more.
        own = jax.lax.broadcasted_iota(local.dtype, (*np.shape(local)[:-1], 1), walked)
        columns = [part for part in (local[..., :column], own, local[..., column + 1 :]) if part.shape[-1]]
        local = jnp.concatenate(columns, axis=-1) if len(columns) > 1 else own
        (result,) = self.evaluated(program, eqn, [table, RankValue(local, walked)])
        numbers = eqn.params["dimension_numbers"]
        walks = [at for at in range(eqn.outvars[0].aval.ndim) if at not in numbers.offset_dims]
        return RankValue(result, walks[walked])

    def nested(self) -> AbstractContextManager[None]:
        """While equations inside of an equation are read."""
        return nullcontext()

    def elsewhere(self, number: Any = None) -> Walk:
        """The same inside of a function that is read later, where the number of the rank is another variable.

        Args:
            number: the number of the rank; None where it is not available.
        """
        walk = Walk(self.axes, self.ranks, number)
        walk.sorts = self.sorts
        return walk

    # ---- from one placement to another

    def total(self, value: RankValue) -> RankValue:
        """A sum taken over the ranks; anything else as it is."""
        if value.placement != SUM:
            return value
        return RankValue(over_ranks(lambda held: jax.lax.psum(held, self.axes), value.value), WHOLE)

    def summand(self, value: RankValue) -> RankValue:
        """A value that all ranks hold as a sum: the first rank's share is all of it."""
        if value.placement != WHOLE:
            return value
        return RankValue(jnp.where(self._number() == 0, value.value, jnp.zeros_like(value.value)), SUM)

    def own(self, value: RankValue, dimension: Placement) -> RankValue:
        """A value of which the part for the samples of this rank is wanted."""
        if dimension == WHOLE or value.placement == dimension:
            return value
        if value.placement != WHOLE:
            raise NotShared("samples meet along two dimensions")
        shape = np.shape(value.value)
        sizes = part_shape(shape, dimension, self.ranks)
        if value.uniform:
            part = jax.lax.slice(value.value, [0] * len(shape), sizes)
        else:
            size = sizes[dimension]
            part = jax.lax.dynamic_slice_in_dim(value.value, self._number() * size, size, dimension)
        return RankValue(part, dimension, uniform=value.uniform)

    def _number(self) -> Any:
        if self.rank is None:
            raise NotShared("a function with a derivative of its own makes values for all samples")
        return self.rank

    def given_as(self, value: RankValue, placement: Placement) -> RankValue:
        """A value as it is wanted, where it can be.

        Args:
            value: any.
            placement: the placement that is wanted.
        """
        return self.summand(value) if placement == SUM else self.own(value, placement)

    def placed(self, value: RankValue, placement: Placement) -> Any:
        """A value as it is wanted.

        Args:
            value: any.
            placement: the placement that is wanted.
        """
        made = self.given_as(value, placement)
        if made.placement != placement:
            raise NotShared("a derivative has a part for the samples where a whole is wanted")
        return made.value

    # ---- equations inside equations

    def inside(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """Results of the program that an equation holds.

        Args:
            eqn: a call.
            given: its operands.
        """
        held = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
        closed = inlined(held if isinstance(held, core.ClosedJaxpr) else core.ClosedJaxpr(held, ()))
        return self.read(closed.jaxpr, given, closed.consts)

    def _branches(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """One of several programs, chosen by what all ranks know."""
        which, *operands = [self.total(value) for value in given]
        if which.placement != WHOLE:
            raise NotShared("samples choose what is computed")
        made: list[list[RankValue]] = []

        def branch(program: core.ClosedJaxpr, wanted: Sequence[Placement] | None) -> Any:
            def run(*values: Any) -> list[Any]:
                with self.nested():
                    held = [replace(one, value=value) for one, value in zip(operands, values, strict=True)]
                    found = list(in_batch_order(self.read(program.jaxpr, held, program.consts)))
                made.append(found)
                if wanted is None:
                    return [one.value for one in found]
                return [self.given_as(one, want).value for one, want in zip(found, wanted, strict=True)]

            return run

        programs, values = [inlined(one) for one in eqn.params["branches"]], [one.value for one in operands]
        for program in programs:
            jax.eval_shape(branch(program, None), *values)
        wanted = []
        for ways in zip(*made, strict=True):
            kinds = {one.placement for one in ways} - {WHOLE}
            if len(kinds) > 1:
                raise NotShared("branches count samples along several dimensions")
            wanted.append(kinds.pop() if kinds else WHOLE)
        results = jax.lax.switch(which.value, [branch(program, wanted) for program in programs], *values)
        return [RankValue(value, placement) for value, placement in zip(results, wanted, strict=True)]

    def _while(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """A loop whose end all ranks see; what it carries counts samples as soon as one of its rounds makes it so."""
        asks, held = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        given = [self.total(value) for value in given]
        ask, body = inlined(eqn.params["cond_jaxpr"]), inlined(eqn.params["body_jaxpr"])
        start = given[asks + held :]
        placements = [value.placement for value in start]

        def carried(values: Sequence[Any]) -> list[RankValue]:
            return [RankValue(value, placement) for value, placement in zip(values, placements, strict=True)]

        def goes_on(values: Sequence[Any]) -> Any:
            with self.nested():
                (found,) = in_batch_order(self.read(ask.jaxpr, [*given[:asks], *carried(values)], ask.consts))
            if self.total(found).placement != WHOLE:
                raise NotShared("a loop ends for each sample by itself")
            return self.total(found).value

        def round_(values: Sequence[Any]) -> list[RankValue]:
            with self.nested():
                made = self.read(body.jaxpr, [*given[asks : asks + held], *carried(values)], body.consts)
            return list(in_batch_order(made))

        def begun() -> list[Any]:
            return [self.given_as(value, placement).value for value, placement in zip(start, placements, strict=True)]

        while True:
            ends: list[Placement] = []
            jax.eval_shape(lambda *values: ends.extend(one.placement for one in round_(values)), *begun())  # noqa: B023
            after = [end if one == WHOLE else one for one, end in zip(placements, ends, strict=True)]
            if any(end not in (WHOLE, one) for one, end in zip(after, ends, strict=True)):
                raise NotShared("a loop carries samples along several dimensions")
            if after == placements:
                break
            placements[:] = after
        made = jax.lax.while_loop(
            goes_on,
            lambda values: [self.placed(one, want) for one, want in zip(round_(values), placements, strict=True)],
            begun(),
        )
        return carried(made)

    def _checkpoint(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        made: list[RankValue] = []

        def run(*values: Any) -> list[Any]:
            held = [
                replace(one, value=value, moves=False, late=False) for one, value in zip(given, values, strict=True)
            ]
            with self.nested():
                made[:] = self.inside(eqn, held)
            return [value.value for value in made]

        again = jax.checkpoint(run, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])
        results = again(*(one.value for one in given))
        return [
            RankValue(value, one.placement, order=one.order, known=one.known)
            for value, one in zip(results, made, strict=True)
        ]

    def _scan(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """A loop; what it carries is a sum, or counts samples, as soon as one of its rounds makes it so."""
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        held = [self.total(value) for value in given[:consts]]
        start = list(given[consts : consts + carried])
        rows = [self.total(value) for value in given[consts + carried :]]
        if any(value.placement == 0 for value in rows):
            return mapped(self, eqn, held, start, rows)
        return scanned(self, eqn, held, start, rows)


def _evaluated(program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[Any]:
    """Results of an equation of a program for given operands, its own constants replaced by them."""
    atoms = [
        core.Literal(value.value, atom.aval) if _is_constant(value.value) else core.Var(atom.aval)
        for atom, value in zip(eqn.invars, given, strict=True)
    ]
    inputs = [atom for atom in atoms if isinstance(atom, core.Var)]
    outputs = [var for var in eqn.outvars if not is_dropped(var)]
    alone = piece(program, [eqn.replace(invars=atoms)], inputs, outputs)
    values = [value.value for value, atom in zip(given, atoms, strict=True) if isinstance(atom, core.Var)]
    made = iter(core.jaxpr_as_fun(alone)(*values))
    return [None if is_dropped(var) else next(made) for var in eqn.outvars]


def _is_constant(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer | jax.Array) and not np.shape(value)
