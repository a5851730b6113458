"""Sums over all meshes in the update: each mesh combines its own, one exchange gives the whole to all of them.

A norm over all gradients, or whether they are finite, is a chain of additions (of conjunctions, maxima) of scalars that
are on different meshes, and every mesh reads what follows from it. Sent one by one to one mesh and back, such scalars
take a message each and two hops; as an ALLREDUCE they take one hop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from meshwright.compiler.instructions import COMBINES
from meshwright.compiler.instructions.operands import ancestors
from meshwright.compiler.lowering.update import repeated_eqns, spread_update


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Reduction:
    """A chain of equal operations on scalars of several meshes."""

    combine: str
    result: core.Var
    parts: Mapping[int, core.Var]
    """What each mesh has combined of its own."""
    eqns: tuple[core.JaxprEqn, ...]
    """Equations that compute the parts, in place of the chain."""
    chain: tuple[core.JaxprEqn, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReductionPhase:
    """A part of the update, and the reductions behind it."""

    jaxpr: core.Jaxpr
    """The step as this phase sees it: earlier reductions are given, what later ones read is returned."""
    eqns: tuple[core.JaxprEqn, ...]
    reductions: tuple[Reduction, ...] = ()


def phases_of(jaxpr: core.Jaxpr, after: Sequence[core.JaxprEqn], homes: Mapping[core.Var, int]) -> list[ReductionPhase]:
    """The update from one exchange between all meshes to the next.

    Args:
        jaxpr: the jaxpr of the step.
        after: equations of the update, in order.
        homes: mesh of each gradient, parameter and result of the loss.
    """
    home = spread_update(jaxpr, after, homes).home
    reductions = [one for tree in _chains(jaxpr, after) if (one := _reduction(tree, after, home)) is not None]
    if not reductions:
        return [ReductionPhase(jaxpr=jaxpr, eqns=tuple(after))]
    chained = {id(eqn) for one in reductions for eqn in one.chain}
    eqns = [eqn for one in reductions for eqn in one.eqns] + [eqn for eqn in after if id(eqn) not in chained]
    eqns = _in_order(eqns)
    made = {var: eqn for eqn in eqns for var in eqn.outvars}
    repeated = {id(eqn) for eqn in repeated_eqns(jaxpr, after, homes)}
    results = {one.result for one in reductions}
    waiting, done, given = list(reductions), set[int](), list[core.Var]()
    found: list[tuple[list[core.JaxprEqn], list[Reduction], list[core.Var]]] = []
    while waiting:
        needed = {
            id(one): [eqn for part in one.parts.values() for eqn in ancestors(part, made, eqns)] for one in waiting
        }
        ready = [one for one in waiting if not (results - set(given)) & _read(needed[id(one)])]
        chosen = {id(eqn) for one in ready for eqn in needed[id(one)]} - done
        own = [eqn for eqn in eqns if id(eqn) in chosen]
        found.append((own, ready, list(given)))
        done |= {id(eqn) for eqn in own if id(eqn) not in repeated}
        given += [one.result for one in ready]
        waiting = [one for one in waiting if one not in ready]
    found.append(([eqn for eqn in eqns if id(eqn) not in done], [], given))
    wanted = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    phases: list[ReductionPhase] = []
    for own, ready, before in reversed(found):
        parts = [part for one in ready for part in one.parts.values()]
        kept = [var for eqn in own if id(eqn) not in repeated for var in eqn.outvars if var in wanted]
        outputs = list(dict.fromkeys([*parts, *kept]))
        if not phases:
            outputs = list(jaxpr.outvars)
        seen = jaxpr.replace(
            invars=[*jaxpr.invars, *before], outvars=outputs, debug_info=jaxpr.debug_info.with_unknown_names()
        )
        phases.append(ReductionPhase(jaxpr=seen, eqns=tuple(own), reductions=tuple(ready)))
        wanted |= _read(own)
    return phases[::-1]


def _chains(jaxpr: core.Jaxpr, after: Sequence[core.JaxprEqn]) -> list[tuple[list[core.JaxprEqn], list[Any]]]:
    """Equations and leaves of each tree of one operation whose inner results nobody else reads."""
    readers = Counter(atom for eqn in after for atom in eqn.invars if isinstance(atom, core.Var))
    readers.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    made = {var: eqn for eqn in after for var in eqn.outvars}
    used: set[int] = set()
    found = []
    for eqn in reversed(after):
        if id(eqn) in used or not _combines(eqn):
            continue
        chain, leaves, left = [eqn], [], list(reversed(eqn.invars))
        while left:
            atom = left.pop()
            inner = made.get(atom) if isinstance(atom, core.Var) else None
            if inner is not None and inner.primitive is eqn.primitive and _combines(inner) and readers[atom] == 1:
                chain.append(inner)
                left += reversed(inner.invars)
            else:
                leaves.append(atom)
        used |= {id(one) for one in chain}
        found.append((chain, leaves))
    return found[::-1]


def _combines(eqn: core.JaxprEqn) -> bool:
    return eqn.primitive.name in COMBINES and all(atom.aval.shape == () for atom in [*eqn.invars, *eqn.outvars])


def _reduction(
    tree: tuple[list[core.JaxprEqn], list[Any]], after: Sequence[core.JaxprEqn], home: Mapping[core.Var, int]
) -> Reduction | None:
    """The parts of a chain, where several meshes have leaves and several read what follows from it."""
    chain, leaves = tree
    result = chain[0].outvars[0]
    on_mesh: dict[int, list[Any]] = defaultdict(list)
    meshes = sorted({home[leaf] for leaf in leaves if isinstance(leaf, core.Var) and leaf in home})
    if len(meshes) < 2 or len(_reached(result, after, home)) < 2:
        return None
    for leaf in leaves:
        # What every mesh has is combined once, by the first.
        on_mesh[home.get(leaf, meshes[0]) if isinstance(leaf, core.Var) else meshes[0]].append(leaf)
    eqns, parts = [], {}
    for mesh in meshes:
        own = sorted(on_mesh[mesh], key=lambda leaf: not isinstance(leaf, core.Var) or leaf not in home)
        parts[mesh] = own[0]
        for leaf in own[1:]:
            made = core.Var(result.aval)
            eqns.append(chain[0].replace(invars=[parts[mesh], leaf], outvars=[made]))
            parts[mesh] = made
    return Reduction(combine=chain[0].primitive.name, result=result, parts=parts, eqns=tuple(eqns), chain=tuple(chain))


def _reached(result: core.Var, after: Sequence[core.JaxprEqn], home: Mapping[core.Var, int]) -> set[int]:
    """Meshes that read something larger than a number that depends on a result."""
    reached, meshes = {result}, set()
    for eqn in after:
        if any(isinstance(atom, core.Var) and atom in reached for atom in eqn.invars):
            reached.update(eqn.outvars)
            meshes |= {home[var] for var in eqn.outvars if var.aval.shape and var in home}
    return meshes


def _read(eqns: Sequence[core.JaxprEqn]) -> set[core.Var]:
    return {atom for eqn in eqns for atom in eqn.invars if isinstance(atom, core.Var)}


def _in_order(eqns: Sequence[core.JaxprEqn]) -> list[core.JaxprEqn]:
    """Every equation behind those that make what it reads."""
    made = {var: eqn for eqn in eqns for var in eqn.outvars}
    placed: dict[int, core.JaxprEqn] = {}
    for eqn in eqns:
        stack = [eqn]
        while stack:
            one = stack[-1]
            missing = [
                made[atom]
                for atom in one.invars
                if isinstance(atom, core.Var) and atom in made and id(made[atom]) not in placed
            ]
            if missing:
                stack += missing
            else:
                placed[id(stack.pop())] = one
    return list(placed.values())
