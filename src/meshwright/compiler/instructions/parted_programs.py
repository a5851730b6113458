"""Executables that are called layer by layer: their parts as executables, and what passes between these."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from meshwright.compiler.cuts.equal_layers import CalledEquations, ProgramForms, layer_parts
from meshwright.compiler.ranks.layout import Layout, PlacedValue


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PartCall:
    """One call of a part. Values have numbers: operands of the whole executable, its results, then those between."""

    executable: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    between: Mapping[int, PlacedValue]
    """The written values that only later parts read."""


class PartedPrograms:
    """Declares executables, and cuts those that repeat a layer; equal parts are one executable."""

    def __init__(self, executables: dict[str, core.ClosedJaxpr]) -> None:
        """Nothing is declared.

        Args:
            executables: the executables by name; grows.
        """
        self.executables = executables
        self.calls: dict[str, tuple[PartCall, ...]] = {}
        """Calls in place of one of an executable that is cut."""
        self._forms = ProgramForms()
        self._known: dict[Hashable, str] = {}

    def declare(
        self,
        layout: Layout,
        name: str,
        closed: core.ClosedJaxpr,
        reads: Sequence[PlacedValue],
        writes: Sequence[PlacedValue],
        sums: int = 0,
    ) -> None:
        """An executable for the mesh.

        Args:
            layout: the layout of the mesh.
            name: the name of the executable.
            closed: what it computes.
            reads: what it is given.
            writes: what it returns.
            sums: the number of sums of its results, those at the end that it adds to as many more operands.
        """
        parts = layer_parts(closed, self._forms)
        if not parts:
            self.executables[name] = layout.program(closed, reads, writes, sums)
            return
        self.calls[name] = tuple(_Cut(self, layout, name, closed, parts, reads, writes, sums).calls())

    def named(self, name: str, form: Hashable, layout: Layout, part: _PartProgram) -> str:
        """The executable of a part; one that is known, or the next of its name.

        Args:
            name: the name of the whole executable.
            form: equal for parts that compute the same.
            layout: the layout of the mesh.
            part: what it computes.
        """
        key = type(layout).__name__, form, tuple(part.reads), tuple(part.writes), part.sums
        if key not in self._known:
            own = f"{name}/{sum(one.startswith(f'{name}/') for one in self.executables)}"
            self.executables[own] = layout.program(part.program, part.reads, part.writes, part.sums)
            self._known[key] = own
        return self._known[key]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _PartProgram:
    program: core.ClosedJaxpr
    reads: list[PlacedValue]
    writes: list[PlacedValue]
    sums: int


class _Cut:
    """The calls of one executable."""

    def __init__(
        self,
        own: PartedPrograms,
        layout: Layout,
        name: str,
        closed: core.ClosedJaxpr,
        parts: Sequence[CalledEquations],
        reads: Sequence[PlacedValue],
        writes: Sequence[PlacedValue],
        sums: int,
    ) -> None:
        self.own, self.layout, self.name, self.closed, self.parts, self.sums = own, layout, name, closed, parts, sums
        invars, outvars = closed.jaxpr.invars, closed.jaxpr.outvars
        self.operands, self.first_sum = len(invars), len(outvars) - sums
        added = writes[self.first_sum :]
        self.held: list[PlacedValue] = [*reads, *added, *writes]
        self.first_result = self.operands + sums
        self.slot: dict[core.Var, int] = {}
        """Where parts read a variable."""
        for place, var in enumerate(invars):
            self.slot.setdefault(var, place)

    def calls(self) -> list[PartCall]:
        made = {var: number for number, part in enumerate(self.parts) for var in part.writes}
        results: dict[int, list[tuple[Any, int]]] = {number: [] for number in range(len(self.parts))}
        for place, atom in enumerate(self.closed.jaxpr.outvars):
            # What is handed through goes through the last part.
            at = made.get(atom, len(self.parts) - 1) if isinstance(atom, core.Var) else len(self.parts) - 1
            results[at].append((atom, place))
        read_later = {
            var for number, part in enumerate(self.parts) for var in part.reads if made.get(var, number) < number
        }
        return [self._call(part, results[number], read_later) for number, part in enumerate(self.parts)]

    def _call(self, part: CalledEquations, results: Sequence[tuple[Any, int]], read_later: set[core.Var]) -> PartCall:
        plain = [(atom, place) for atom, place in results if place < self.first_sum]
        summed = [(atom, place) for atom, place in results if place >= self.first_sum]
        slots = [self.first_result + place for _, place in plain]
        atoms = [atom for atom, _ in plain]
        for (atom, _), slot in zip(plain, slots, strict=True):
            if isinstance(atom, core.Var):
                self.slot.setdefault(atom, slot)
        between = {}
        for var in part.writes:
            # What a sum is made of is something else than the sum.
            if var in read_later and var not in self.slot:
                self.slot[var] = len(self.held)
                between[len(self.held)] = self.layout.kept(var.aval)
                self.held.append(between[len(self.held)])
                slots.append(self.slot[var])
                atoms.append(var)
        atoms += [atom for atom, _ in summed]
        slots += [self.first_result + place for _, place in summed]
        program, more = _returning(part.program, part.reads, self.closed, atoms)
        reads = [self.slot[var] for var in (*part.reads, *more)]
        before = [self.operands + place - self.first_sum for _, place in summed]
        places = {var: place for place, var in enumerate((*part.reads, *more))}
        places |= {var: -1 - place for place, var in enumerate(part.writes)}
        arranged = tuple(places.get(atom, id(atom)) if isinstance(atom, core.Var) else id(atom) for atom in atoms)
        made = _PartProgram(
            program=program,
            reads=[self.held[slot] for slot in reads],
            writes=[self.held[slot] for slot in slots],
            sums=len(summed),
        )
        executable = self.own.named(self.name, (part.form, arranged), self.layout, made)
        return PartCall(executable=executable, reads=(*reads, *before), writes=tuple(slots), between=between)


def _returning(
    program: core.ClosedJaxpr, reads: Sequence[core.Var], whole: core.ClosedJaxpr, atoms: Sequence[Any]
) -> tuple[core.ClosedJaxpr, list[core.Var]]:
    """A part that returns these atoms, and what of the whole program's operands it takes more for that."""
    jaxpr = program.jaxpr
    inside = {*reads, *jaxpr.constvars, *(var for eqn in jaxpr.eqns for var in eqn.outvars)}
    foreign = [atom for atom in dict.fromkeys(one for one in atoms if isinstance(one, core.Var)) if atom not in inside]
    constants = dict(zip(whole.jaxpr.constvars, whole.consts, strict=True))
    own = [var for var in foreign if var in constants]
    more = [var for var in foreign if var not in constants]
    made = jaxpr.replace(
        constvars=[*jaxpr.constvars, *own],
        invars=[*jaxpr.invars, *more],
        outvars=list(atoms),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return core.ClosedJaxpr(made, [*program.consts, *(constants[var] for var in own)]), more
