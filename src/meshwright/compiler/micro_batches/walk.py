"""Equations evaluated with the samples of one micro-batch: what they make adds up to what the whole batch makes.

As with data ranks, sums over samples are left open while they are only scaled and added. Where more is done with one,
it becomes a total, `total_p`, behind which the value of the whole batch stands: what comes behind can be computed once
all micro-batches are through, or, where a total comes from the batch alone, before the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.inline import CALLS, CHECKPOINTS, has_gradient
from meshwright.compiler.joins import COMBINES, How, joint_p, total_p
from meshwright.compiler.samples.placements import SUM, WHOLE, NotShared
from meshwright.compiler.samples.sorting import group_sizes, in_batch_order
from meshwright.compiler.samples.values import RankValue
from meshwright.compiler.samples.walk import Walk
from meshwright.compiler.source_line import line_of


def _beside(eqn: core.JaxprEqn) -> list[bool]:
    """Which operands of a loop or of what is recomputed are whole in any case: of a loop all that it does not carry."""
    if eqn.primitive.name != "scan":
        return [False] * len(eqn.invars)
    first = eqn.params["num_consts"]
    carried = range(first, first + eqn.params["num_carry"])
    return [place not in carried for place in range(len(eqn.invars))]


class NotSharedAtError(NotShared):
    """Why a program cannot be written for micro-batches, and the line of the user's code where."""

    def __init__(self, why: str, line: str) -> None:
        super().__init__(why)
        self.line = line

    @property
    def placed(self) -> str:
        """The reason and the line."""
        return f"{self}: {self.line}"


def _has_gradient(value: Any) -> bool:
    """Whether a value has a gradient; a value that is not there, as all samples make it together, may have one."""
    return value is None or has_gradient(jnp.result_type(value))


class MicroBatchWalk(Walk):
    """Equations of a program for all samples, evaluated for those of one micro-batch."""

    def __init__(self, parts: int, number: Any) -> None:
        """Nothing is evaluated yet.

        Args:
            parts: micro-batches.
            number: the number of this one.
        """
        super().__init__((), parts, number)
        self._depth = 0
        """Equations around the one that is evaluated."""

    def total(self, value: RankValue) -> RankValue:
        """The sum over all micro-batches."""
        return self._total(value, How.ADDED) if value.placement == SUM else value

    def _total(self, value: RankValue, how: How) -> RankValue:
        if self._depth:
            raise NotShared("a value of the whole batch is needed in the midst of a loop or of what is recomputed")
        return RankValue(total_p.bind(value.value, how=how), WHOLE, moves=value.moves, late=value.moves)

    def summand(self, value: RankValue) -> RankValue:
        """A value that all micro-batches have as a sum of what they have of it."""
        if value.placement != WHOLE:
            return value
        if not jnp.issubdtype(jnp.result_type(value.value), jnp.inexact):
            return super().summand(value)
        return replace(value, value=value.value / self.ranks, placement=SUM)

    def _equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        try:
            return self._followed(program, eqn, given)
        except NotSharedAtError:
            raise
        except NotShared as why:
            line = line_of(eqn)
            raise NotSharedAtError(str(why), line) if line else why from None

    def _followed(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results, and which of them depend on what is differentiated, or on sums of such values over the batch."""
        if eqn.primitive is joint_p:
            return self._joint(eqn, given)
        if group_sizes(eqn, given):
            return self._made(program, eqn, given, totals=False)
        sums = any(value.placement == SUM for value in given) and any(value.placement >= 0 for value in given)
        if not sums or any(value.late for value in given):
            return self._made(program, eqn, given, totals=False)
        if eqn.primitive.name in CALLS:
            return self._made(program, eqn, given, totals=False)  # as if its equations stood here
        if eqn.primitive.name in (*CHECKPOINTS, "scan"):
            with suppress(NotShared):  # it needs one of the sums whole
                left = [self.total(value) if used else value for value, used in zip(given, _beside(eqn), strict=True)]
                return self._made(program, eqn, left, totals=False)
        return self._made(program, eqn, given, totals=True)

    def _made(
        self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue], *, totals: bool
    ) -> list[RankValue]:
        held = eqn.primitive.name == "stop_gradient"
        moves = not held and any(value.moves for value in given)
        late = not held and any(value.late for value in given)
        if late or totals:
            given = [self.total(value) for value in given]
            late = late or any(value.late for value in given)
        if late and any(value.placement >= 0 for value in given):
            raise NotShared("statistics of the batch are used with its samples")
        made = self._combined(program, eqn, given)
        if made is None:
            made = super()._equation(program, eqn, given)
            summed = any(one.placement == SUM and one.moves for one in given)
            late = late or (summed and all(one.placement == WHOLE for one in made))
        return [
            replace(value, moves=(moves or value.moves) and _has_gradient(value.value), late=late or value.late)
            for value in made
        ]

    def _joint(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """What is made of all samples together; each micro-batch takes its own samples of what counts them."""
        given = list(in_batch_order(given))
        if eqn.params["slope"] is not None:
            return self._phased(eqn, given)
        made = joint_p.bind(*(self._put_together(value) for value in given), **eqn.params)
        results = []
        for value, place in zip(made, eqn.params["follows"], strict=True):
            placement = WHOLE if place is None or given[place].placement < 0 else given[place].placement
            results.append(self.own(RankValue(value, WHOLE), placement))
        return results

    def _phased(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """The same where each micro-batch computes what it can by itself, and only sums are made of all samples."""
        program, walk = eqn.params["program"], MicroBatchWalk(self.ranks, self.rank)
        results = []
        for value, place in zip(
            in_batch_order(walk.read(program.jaxpr, given, program.consts)), eqn.params["follows"], strict=True
        ):
            placement = WHOLE if place is None else given[place].placement
            results.append(self.own(self.total(value), placement) if placement >= 0 else self.total(value))
        return results

    def _put_together(self, value: RankValue) -> Any:
        if value.placement < 0:
            return self.total(value).value
        return total_p.bind(value.value, how=How.JOINED, dimension=value.placement, parts=self.ranks)

    def _combined(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue] | None:
        """The largest of all samples, or whether all are so; None for what is no such equation over samples."""
        how = COMBINES.get(eqn.primitive.name)
        if how is None or given[0].placement < 0 or given[0].placement not in eqn.params["axes"]:
            return None
        own = self.evaluated(program, eqn, given)
        return [self._total(RankValue(value, SUM, moves=given[0].moves), how) for value in own]

    @contextmanager
    def nested(self) -> Iterator[None]:
        """While equations inside of an equation are read."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def elsewhere(self, number: Any = None) -> MicroBatchWalk:
        """The same inside of a function that is read later."""
        walk = MicroBatchWalk(self.ranks, number)
        walk.sorts = self.sorts
        walk._depth = 1
        return walk
