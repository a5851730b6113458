"""Programs whose samples meet again and again, as in batch norm: micro-batches go through them in step, phase by phase.

Behind a value of the whole batch a new phase begins, which micro-batches enter once all are through the one before.
What a phase hands on is kept of every micro-batch: what later phases of the forward read, and slopes. Whatever else a
backward needs it computes again from what was kept, as behind a checkpoint at every place where samples meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jax.extend import core

from meshwright.compiler.inline import free_variables, is_dropped, piece, reached
from meshwright.compiler.joins import joint_p, phase_p, total_p


def in_phases(
    program: core.Jaxpr, eqns: Sequence[core.JaxprEqn], own: Iterable[core.Var], slopes: Iterable[core.Var]
) -> list[core.JaxprEqn]:
    """Equations with those of each phase as one.

    Args:
        program: the program in which they stand, for one micro-batch.
        eqns: those that its results need, in order.
        own: inputs that are another for each micro-batch.
        slopes: inputs from which the backward starts.
    """
    return _Phases(program, eqns, own, slopes).written()


class _Phases:
    """Writes one program."""

    def __init__(
        self, program: core.Jaxpr, eqns: Sequence[core.JaxprEqn], own: Iterable[core.Var], slopes: Iterable[core.Var]
    ) -> None:
        self.program, self.eqns = program, eqns
        self.made = {var: eqn for eqn in eqns for var in eqn.outvars}
        self.own = _of_parts(own, eqns)
        """Values that are another for each micro-batch."""
        self.sloped = reached(slopes, eqns)
        self.phase: dict[core.Var, int] = {}
        for eqn in eqns:
            reads = max((self.phase.get(atom, 0) for atom in _variables(eqn.invars)), default=0)
            self.phase |= dict.fromkeys(eqn.outvars, reads + (eqn.primitive in _MEETS))
        self.wanted = {atom for atom in _variables(program.outvars) if atom in self.own}
        self.wanted |= {
            atom for eqn in eqns if eqn.primitive in _MEETS for atom in _variables(eqn.invars) if atom in self.own
        }
        self.kept = self._handed_on() | self.wanted

    def written(self) -> list[core.JaxprEqn]:
        """All equations; those of a phase that are another for each micro-batch as one."""
        found: list[core.JaxprEqn] = []
        for phase in range(1 + max(self.phase.values(), default=0)):
            found += [
                eqn for eqn in self.eqns if self._phase(eqn) == phase and (eqn.primitive in _MEETS or self._whole(eqn))
            ]
            outputs = [
                var
                for eqn in self.eqns
                for var in eqn.outvars
                if self.phase[var] == phase and var in self.kept and not is_dropped(var)
            ]
            if outputs:
                found.append(self._one(phase, outputs))
        return found

    def _one(self, phase: int, outputs: Sequence[core.Var]) -> core.JaxprEqn:
        """A phase of one micro-batch."""
        stops = {var for var in self.kept if self.phase.get(var, 0) < phase}
        stops |= {var for var, eqn in self.made.items() if eqn.primitive in _MEETS}
        eqns = _made_of(outputs, self.made, self.eqns, stops)
        inputs = free_variables(eqns)
        return core.new_jaxpr_eqn(
            inputs,
            list(outputs),
            phase_p,
            {"program": piece(self.program, eqns, inputs, outputs)},
            set(),
            eqns[-1].source_info,
        )

    def _phase(self, eqn: core.JaxprEqn) -> int:
        return max((self.phase[var] for var in eqn.outvars), default=0)

    def _whole(self, eqn: core.JaxprEqn) -> bool:
        """Whether an equation makes the same in all micro-batches."""
        return not any(var in self.own for var in eqn.outvars)

    def _handed_on(self) -> set[core.Var]:
        """Values that later phases read: of the forward, and slopes."""
        ahead = [atom for atom in self.wanted if atom not in self.sloped]
        forward = {id(eqn) for eqn in _made_of(ahead, self.made, self.eqns, ())}
        found: set[core.Var] = set()
        for eqn in self.eqns:
            for atom in _variables(eqn.invars):
                later = atom in self.phase and self.phase[atom] < self._phase(eqn)
                if later and atom in self.own and (id(eqn) in forward or atom in self.sloped):
                    found.add(atom)
        return found


_MEETS = (total_p, joint_p)


def _of_parts(own: Iterable[core.Var], eqns: Sequence[core.JaxprEqn]) -> set[core.Var]:
    found = set(own)
    for eqn in eqns:
        if eqn.primitive not in _MEETS and any(atom in found for atom in _variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def _made_of(
    wanted: Iterable[core.Var],
    made: Mapping[core.Var, core.JaxprEqn],
    order: Sequence[core.JaxprEqn],
    stops: Iterable[core.Var],
) -> list[core.JaxprEqn]:
    """Equations that some values need, in order, but for those of other values."""
    left, held, found = list(wanted), set(stops), set()
    while left:
        eqn = made.get(left.pop())
        if eqn is not None and id(eqn) not in found:
            found.add(id(eqn))
            left += [atom for atom in _variables(eqn.invars) if atom not in held]
    return [eqn for eqn in order if id(eqn) in found]


def _variables(atoms: Iterable[object]) -> list[core.Var]:
    return [atom for atom in atoms if isinstance(atom, core.Var)]
