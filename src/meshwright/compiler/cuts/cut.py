"""A loss cut into stages: which equations stand where, what each stage takes and what it passes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend import core

from meshwright.compiler.cost import is_heavy
from meshwright.compiler.inline import is_dropped, piece
from meshwright.compiler.marking import boundary_p

MOVES_DATA = ("gather", "scatter", "sort", "scan", "while", "cond", "conv_", "dot")
"""Beginnings of primitives that are never repeated in every stage that reads their result."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CutStage:
    """One part of a loss: what it takes, what it passes on, and which results of the loss it makes."""

    index: int
    program: core.ClosedJaxpr
    """Takes parameters, `carried_in` and others; returns `carried_out` and results of the loss, in these orders."""
    parameters: tuple[int, ...]
    """Operands of the loss that are differentiated and used here."""
    others: tuple[int, ...]
    """Operands of the loss that are not differentiated and used here."""
    carried_in: tuple[core.Var, ...]
    carried_out: tuple[core.Var, ...]
    results: tuple[int, ...]
    """Outputs of the loss that are made here."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Body:
    """The equations of a loss by the way they can be cut."""

    jaxpr: core.Jaxpr
    spine: tuple[core.JaxprEqn, ...]
    """Equations that stand in one stage, each behind what it reads; cuts go between them."""
    light: tuple[core.JaxprEqn, ...]
    """Masks, positions, casts and transposes of operands: repeated in every stage that reads them."""


def body_of(loss: core.Jaxpr, wrt: Sequence[int]) -> Body:
    """Tell the equations on the way of activations from those that every stage may repeat.

    Args:
        loss: a flat program.
        wrt: positions of differentiated operands.
    """
    differentiated = {loss.invars[place] for place in wrt}
    operands = set(loss.invars)
    reach: set[core.Var] = set(differentiated)
    cheap: set[core.Var] = set(operands)
    spine, light = [], []
    for eqn in loss.eqns:
        read = {atom for atom in eqn.invars if isinstance(atom, core.Var)}
        depends = bool(read & reach)
        if depends:
            reach.update(eqn.outvars)
        movable = not is_heavy(eqn) and (not depends or not eqn.primitive.name.startswith((*MOVES_DATA, "reduce")))
        if read <= cheap and movable:
            cheap.update(eqn.outvars)
            light.append(eqn)
        else:
            spine.append(eqn)
    return Body(jaxpr=loss, spine=_beside_operands(spine, light, operands), light=tuple(light))


def _beside_operands(
    spine: Sequence[core.JaxprEqn], light: Sequence[core.JaxprEqn], operands: set[core.Var]
) -> tuple[core.JaxprEqn, ...]:
    """Sums over weights alone (a penalty on their size) put behind what else reads these weights.

    Where the program has them, before or behind all layers, one stage would hold every weight.
    """
    reads_of: dict[core.Var, set[core.Var]] = {var: {var} for var in operands}
    for eqn in light:
        read = set().union(*(reads_of.get(atom, set()) for atom in eqn.invars if isinstance(atom, core.Var)))
        reads_of.update((var, read) for var in eqn.outvars)
    of_operands = [
        set().union(*(reads_of.get(atom, set()) for atom in eqn.invars if isinstance(atom, core.Var))) for eqn in spine
    ]
    made = {var for eqn in spine for var in eqn.outvars}
    of_sums: set[core.Var] = set()
    alone = []
    for eqn in spine:
        read = made.intersection(_variables(eqn))
        alone.append(read <= of_sums and (bool(read) or eqn.primitive.name.startswith("reduce")) and not is_heavy(eqn))
        if alone[-1]:
            of_sums.update(eqn.outvars)
    if not any(alone):
        return tuple(spine)
    reader: dict[core.Var, int] = {}
    for place, (read, by_itself) in enumerate(zip(of_operands, alone, strict=True)):
        if not by_itself:
            for var in read:
                reader.setdefault(var, place)
    place_of: dict[core.Var, int] = {}
    places = []
    for place, (eqn, read, by_itself) in enumerate(zip(spine, of_operands, alone, strict=True)):
        before = [place_of[var] for var in _variables(eqn) if var in place_of]
        if by_itself:
            own = min((reader[var] for var in read if var in reader), default=0 if before else place)
        else:
            own = place
        places.append(max([own, *before]))
        place_of.update((var, places[-1]) for var in eqn.outvars)
    return tuple(spine[place] for place in sorted(range(len(spine)), key=lambda place: places[place]))


def _variables(eqn: core.JaxprEqn) -> list[core.Var]:
    return [atom for atom in eqn.invars if isinstance(atom, core.Var)]


def marked_ends(body: Body) -> tuple[int, ...]:
    """Position behind the last spine equation of each layer that ends by hand (`layer_boundary`); none for none.

    Args:
        body: the body of a loss.
    """
    marks = [place for place, eqn in enumerate(body.spine) if eqn.primitive is boundary_p]
    ends = [place + 1 for place in marks if place + 1 < len(body.spine) and place + 1 not in marks]
    return (*ends, len(body.spine)) if ends else ()


def cut(body: Body, wrt: Sequence[int], ends: Sequence[int]) -> tuple[CutStage, ...]:
    """Stages of a loss.

    What a later stage reads is passed on from stage to stage, so that only neighbours speak.

    Args:
        body: the body of the loss.
        wrt: positions of differentiated operands.
        ends: position behind the last spine equation of each stage; the last one is the number of equations.
    """
    loss = body.jaxpr
    place_of = {var: place for place, var in enumerate(loss.invars)}
    differentiated = {loss.invars[place] for place in wrt}
    starts = [0, *ends[:-1]]
    spines = [body.spine[low:high] for low, high in zip(starts, ends, strict=True)]
    made = {var: k for k, spine in enumerate(spines) for eqn in spine for var in eqn.outvars if not is_dropped(var)}
    light_of = {var: eqn for eqn in body.light for var in eqn.outvars}
    order = {id(eqn): place for place, eqn in enumerate(loss.eqns)}

    homes: list[list[int]] = [[] for _ in spines]
    for place, atom in enumerate(loss.outvars):
        homes[made.get(atom, len(spines) - 1) if isinstance(atom, core.Var) else len(spines) - 1].append(place)
    # The loss itself is passed on to the last stage, where its derivative starts.
    if 0 not in homes[-1]:
        next(home for home in homes if 0 in home).remove(0)
        homes[-1].insert(0, 0)

    eqns_of, reads_of = [], []
    for k, spine in enumerate(spines):
        wanted = [atom for eqn in spine for atom in eqn.invars] + [loss.outvars[place] for place in homes[k]]
        repeated: dict[int, core.JaxprEqn] = {}
        reads: set[core.Var] = set()
        while wanted:
            atom = wanted.pop()
            if not isinstance(atom, core.Var) or atom in reads:
                continue
            reads.add(atom)
            if atom in light_of:
                eqn = light_of[atom]
                repeated[id(eqn)] = eqn
                wanted += eqn.invars
        eqns_of.append(sorted([*spine, *repeated.values()], key=lambda eqn: order[id(eqn)]))
        reads_of.append(reads)

    stages = []
    before: tuple[core.Var, ...] = ()
    for k in range(len(spines)):
        later = set().union(*reads_of[k + 1 :]) if k + 1 < len(spines) else set()
        after = tuple(var for var, home in made.items() if home <= k and var in later)
        reads = reads_of[k]
        parameters = tuple(place_of[var] for var in loss.invars if var in reads and var in differentiated)
        others = tuple(place_of[var] for var in loss.invars if var in reads and var not in differentiated)
        results = tuple(homes[k])
        program = piece(
            loss,
            eqns_of[k],
            [*(loss.invars[place] for place in parameters), *before, *(loss.invars[place] for place in others)],
            [*after, *(loss.outvars[place] for place in results)],
        )
        stages.append(
            CutStage(
                index=k,
                program=program,
                parameters=parameters,
                others=others,
                carried_in=before,
                carried_out=after,
                results=results,
            )
        )
        before = after
    return tuple(stages)
