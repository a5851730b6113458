"""The optimizer spread over meshes: each equation runs where its largest operand lives; scalars travel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend import core

from meshwright.compiler.cost import size_of
from meshwright.compiler.inline import free_variables, piece

SMALL = 16
"""Most elements of a value that every mesh computes for itself rather than receive: counts, rates, keys."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class UpdatePiece:
    """Equations of the update that one mesh runs at once."""

    mesh: int
    program: core.ClosedJaxpr
    inputs: tuple[core.Var, ...]
    outputs: tuple[core.Var, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Update:
    """The whole update: pieces in an order in which what they need is there, and where every variable lives."""

    pieces: tuple[UpdatePiece, ...]
    home: Mapping[core.Var, int]
    """Mesh that holds a variable. Those without one are small state that every mesh which reads them holds."""


def spread_update(jaxpr: core.Jaxpr, after: Sequence[core.JaxprEqn], homes: Mapping[core.Var, int]) -> Update:
    """Place the equations of an update.

    Args:
        jaxpr: the jaxpr of the step.
        after: equations of the update, in order.
        homes: mesh of each gradient, parameter and result of the loss.
    """
    outputs = set(_variables(jaxpr.outvars))
    repeated = repeated_eqns(jaxpr, after, homes)
    small = {var: eqn for eqn in repeated for var in eqn.outvars}
    everywhere = {id(eqn) for eqn in repeated}
    placed = [eqn for eqn in after if id(eqn) not in everywhere]
    home = _settled(placed, homes, small)
    # Small results that the step returns are returned by the first mesh.
    home.update((var, 0) for var in small if var in outputs)

    groups: dict[tuple[int, int], list[core.JaxprEqn]] = defaultdict(list)
    if any(var in outputs for var in small):
        groups[0, 0] = []
    for level, eqn in zip(_levels(placed, home), placed, strict=True):
        groups[level, home[eqn.outvars[0]]].append(eqn)
    order = {id(eqn): place for place, eqn in enumerate(after)}
    # As the step takes and returns them: then JAX gives each result the memory of the value that it replaces.
    taken = {var: place for place, var in enumerate(jaxpr.invars)}
    given = {var: place for place, var in enumerate(jaxpr.outvars) if isinstance(var, core.Var)}
    readers: dict[core.Var, set[int]] = defaultdict(set)
    for eqn in placed:
        for var in _variables(eqn.invars):
            readers[var].add(id(eqn))
    pieces = []
    for (level, mesh), own in sorted(groups.items(), key=lambda item: item[0]):
        returned = [var for var in small if var in outputs] if (level, mesh) == (0, 0) else []
        helpers = _needed([*(atom for eqn in own for atom in eqn.invars), *returned], small)
        eqns = sorted([*own, *helpers], key=lambda eqn: order[id(eqn)])
        inside = {id(eqn) for eqn in own}
        made = [var for eqn in own for var in eqn.outvars if var in outputs or readers[var] - inside]
        inputs = tuple(sorted(free_variables(eqns), key=lambda var: taken.get(var, -1)))
        results = tuple(sorted([*made, *returned], key=lambda var: given.get(var, -1)))
        pieces.append(
            UpdatePiece(mesh=mesh, program=piece(jaxpr, eqns, inputs, results), inputs=inputs, outputs=results)
        )
    return Update(pieces=tuple(pieces), home=home)


def repeated_eqns(
    jaxpr: core.Jaxpr, after: Sequence[core.JaxprEqn], homes: Mapping[core.Var, int]
) -> list[core.JaxprEqn]:
    """Equations that every mesh runs for itself: small results of small state, such as the learning rate of a count.

    Args:
        jaxpr: the jaxpr of the step.
        after: equations of the update, in order.
        homes: mesh of each gradient, parameter and result of the loss.
    """
    small = {var for var in [*jaxpr.invars, *jaxpr.constvars] if var not in homes and size_of(var) <= SMALL}
    repeated = []
    for eqn in after:
        if small.issuperset(_variables(eqn.invars)) and all(size_of(var) <= SMALL for var in eqn.outvars):
            small.update(eqn.outvars)
            repeated.append(eqn)
    return repeated


def _settled(
    eqns: Sequence[core.JaxprEqn], homes: Mapping[core.Var, int], small: Mapping[core.Var, core.JaxprEqn]
) -> dict[core.Var, int]:
    """Every variable's home: that of the largest known operand of its equation, or else of what reads its results."""
    home = dict(homes)

    def settle(eqn: core.JaxprEqn, mesh: int) -> None:
        for var in [*eqn.outvars, *_variables(eqn.invars)]:
            if var not in small:
                home.setdefault(var, mesh)

    waiting = list(eqns)
    while waiting:
        left = []
        for eqn in waiting:
            known = [(size_of(var), -home[var]) for var in _variables(eqn.invars) if var in home]
            if known:
                settle(eqn, -max(known)[1])
            else:
                left.append(eqn)
        waiting, before = [], len(waiting)
        for eqn in reversed(left):
            mesh = next((home[var] for var in eqn.outvars if var in home), None)
            if mesh is None:
                waiting.insert(0, eqn)
            else:
                settle(eqn, mesh)
        if len(waiting) == before:
            settle(waiting.pop(0), 0)
    return home


def _levels(eqns: Sequence[core.JaxprEqn], home: Mapping[core.Var, int]) -> list[int]:
    """How often values have changed meshes on the longest way to each equation."""
    level: dict[core.Var, int] = {}
    found = []
    for eqn in eqns:
        here = home[eqn.outvars[0]]
        reads = [var for var in _variables(eqn.invars) if var in level]
        found.append(max((level[var] + (home[var] != here) for var in reads), default=0))
        level.update((var, found[-1]) for var in eqn.outvars)
    return found


def _needed(wanted: Sequence[object], small: Mapping[core.Var, core.JaxprEqn]) -> list[core.JaxprEqn]:
    """Repeated equations that some values need, directly or not."""
    found: dict[int, core.JaxprEqn] = {}
    left = list(wanted)
    while left:
        atom = left.pop()
        if isinstance(atom, core.Var) and atom in small and id(small[atom]) not in found:
            found[id(small[atom])] = small[atom]
            left += small[atom].invars
    return list(found.values())


def _variables(atoms: Iterable[object]) -> list[core.Var]:
    return [atom for atom in atoms if isinstance(atom, core.Var)]
