"""What micro-batches return, and how results of the whole batch are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from meshwright.compiler.inline import depended_on, reached
from meshwright.compiler.joins import How, Join, total_p
from meshwright.compiler.micro_batches.program import SampleProgram
from meshwright.compiler.micro_batches.walk import NotSharedAtError
from meshwright.compiler.samples.placements import NotShared
from meshwright.compiler.source_line import line_of


class JoinedResults:
    """What micro-batches return, and how results of the whole batch are made of it."""

    def __init__(self, program: SampleProgram, moving: Sequence[core.Var]) -> None:
        self.program, self.made = program, program.made
        self.outputs: list[Any] = []
        """Outputs of the program of a micro-batch."""
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
            place: the place of it; the loss itself comes first.
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
        inside, along = depended_on(outputs, self.made), depended_on(outputs, self.made, by_gradient=True)
        totals = [eqn for eqn in self.program.jaxpr.eqns if id(eqn) in inside and eqn.primitive is total_p]
        for eqn in totals:
            if eqn.outvars[0] in self._moves and id(eqn) in along:
                raise _at(eqn, "statistics of the batch are used with its samples")
        needed = depended_on([eqn.outvars[0] for eqn in totals], self.made)
        return [eqn for eqn in self.program.jaxpr.eqns if id(eqn) in needed]


def _at(eqn: core.JaxprEqn, why: str) -> NotShared:
    line = line_of(eqn)
    return NotSharedAtError(why, line) if line else NotShared(why)
