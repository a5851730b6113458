"""Layers that a program repeats: where it is cut so that they become programs of their own, equal ones found once.

A layer written out n times is n times the same equations on other weights. XLA compiles what it is given: n copies, and
in one program more than n times the work, because some of its passes take longer than in proportion. Cut at the layers,
it is given one of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import aval_bytes, is_heavy
from meshwright.compiler.inline import free_variables, is_dropped, programs_of
from meshwright.shapes import Int

LEAST_LAYERS = 6
"""Fewer of them are compiled together: four save neither time of a step nor of compiling. Decoders of width 128 with
two micro-batches take 0.83 of the processor time at 6 layers, 0.69 at 8, 0.49 at 12, 0.39 at 16."""
LEAST_EQNS = 200
"""Fewest equations of all layers together; smaller programs compile in less than a second."""
MOST_CALLS = 64
"""Most calls for the layers of a program: more of them are called several at a time."""
LEAST_CALLED = 25
"""Equations of what is called at once: of smaller layers several, since a call takes longer than they do."""
MOST_WHOLE = 1000
"""A program of fewer equations stays whole where its layers are so small. 75 layers of a product, a bias and a tanh on
8 virtual devices: 93 ms of processor time a step in calls, 42 ms whole; 2.0 and 5.6 s to compile."""
NEARLY = 0.9
"""Share of the equations of the best period that a shorter period must cover to be taken."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CalledEquations:
    """Equations of a program that are called at once."""

    program: core.ClosedJaxpr
    reads: tuple[core.Var, ...]
    """Variables of the whole program that it takes."""
    writes: tuple[core.Var, ...]
    """Variables of the whole program that it returns."""
    form: Hashable
    """Equal for parts that compute the same."""


def layer_parts(closed: core.ClosedJaxpr, forms: ProgramForms) -> tuple[CalledEquations, ...]:
    """A program cut at layers that it repeats; empty where it repeats none, or too little.

    Args:
        closed: the program.
        forms: the forms of all programs whose parts may be equal.
    """
    jaxpr = closed.jaxpr
    if len(jaxpr.eqns) < LEAST_LAYERS or sum(map(_size, jaxpr.eqns)) < LEAST_EQNS:
        return ()
    eqns = _in_order(jaxpr)
    cuts = _cuts(jaxpr, eqns, np.array([forms.number(eqn) for eqn in eqns], np.int64))
    if not cuts:
        return ()
    bounds = [0, *cuts, len(eqns)]
    pieces = [eqns[low:high] for low, high in pairwise(bounds) if high > low]
    return tuple(_parts(closed, pieces, forms))


def with_layers_called(closed: core.ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program as a function that calls each layer that it repeats, so that JAX differentiates equal ones once.

    Args:
        closed: the program.
    """
    parts = layer_parts(closed, ProgramForms())
    if not parts:
        return core.jaxpr_as_fun(closed)
    jaxpr = closed.jaxpr
    times = Counter(part.form for part in parts)
    called: dict[Hashable, Callable[..., list[Any]]] = {}
    for part in parts:
        if part.form not in called:
            own = core.jaxpr_as_fun(part.program)
            called[part.form] = jax.jit(own) if times[part.form] > 1 else own

    def run(*operands: Any) -> list[Any]:
        values = dict(zip(jaxpr.invars, operands, strict=True)) | dict(zip(jaxpr.constvars, closed.consts, strict=True))
        for part in parts:
            made = called[part.form](*(values[var] for var in part.reads))
            values.update(zip(part.writes, made, strict=True))
        return [values[atom] if isinstance(atom, core.Var) else atom.val for atom in jaxpr.outvars]

    return run


# ---- what repeats


class ProgramForms:
    """Numbers of equations, the same for those that differ in their variables only."""

    def __init__(self) -> None:
        """No equation has a number yet."""
        self._numbers: dict[Hashable, int] = {}
        self._of_eqn: dict[int, tuple[core.JaxprEqn, int]] = {}
        self._of_program: dict[int, tuple[core.Jaxpr, Hashable]] = {}

    def number(self, eqn: core.JaxprEqn) -> int:
        """Number of an equation; equal equations have equal numbers.

        Args:
            eqn: any.
        """
        if (known := self._of_eqn.get(id(eqn))) is not None:
            return known[1]
        form = (
            eqn.primitive.name,
            self._params(eqn),
            tuple(_atom_form(atom) for atom in eqn.invars),
            tuple(_aval_form(var.aval) for var in eqn.outvars),
        )
        number = self._numbers.setdefault(form, len(self._numbers))
        self._of_eqn[id(eqn)] = eqn, number
        return number

    def _params(self, eqn: core.JaxprEqn) -> Hashable:
        # Rules for derivatives are functions made anew for every call; nothing differentiates a program that runs.
        own_rules = eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call")
        return tuple(
            (name, None if own_rules and callable(value) and not _is_program(value) else self._frozen(value))
            for name, value in sorted(eqn.params.items())
        )

    def _frozen(self, value: Any) -> Hashable:
        if isinstance(value, core.ClosedJaxpr):
            return self._program(value.jaxpr, value.consts)
        if isinstance(value, core.Jaxpr):
            return self._program(value, ())
        if isinstance(value, list | tuple):
            return tuple(map(self._frozen, value))
        if isinstance(value, Mapping):
            return tuple((key, self._frozen(one)) for key, one in sorted(value.items(), key=lambda item: str(item[0])))
        try:
            hash(value)
        except TypeError:
            return (id(value), repr(value))
        return (type(value).__name__, value)

    def _program(self, jaxpr: core.Jaxpr, consts: Sequence[Any]) -> Hashable:
        """Equal for programs that differ in the names of their variables only."""
        if id(jaxpr) not in self._of_program:
            places = {var: place for place, var in enumerate([*jaxpr.constvars, *jaxpr.invars])}
            self._of_program[id(jaxpr)] = jaxpr, self.body(jaxpr.eqns, jaxpr.outvars, places)
        return (self._of_program[id(jaxpr)][1], *(id(const) for const in consts))

    def body(self, eqns: Sequence[core.JaxprEqn], outputs: Sequence[Any], places: dict[core.Var, int]) -> Hashable:
        """Equations and what is returned, with numbers in place of variables.

        Args:
            eqns: the equations in order.
            outputs: atoms.
            places: numbers of what is given; grows.
        """
        found: list[Hashable] = [tuple(_aval_form(var.aval) for var in places)]
        for eqn in eqns:
            found.append((self.number(eqn), *(places[one] for one in eqn.invars if isinstance(one, core.Var))))
            for var in eqn.outvars:
                places[var] = len(places)
        found.append(tuple(places[one] if isinstance(one, core.Var) else _atom_form(one) for one in outputs))
        return tuple(found)


def _is_program(value: Any) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def _atom_form(atom: Any) -> Hashable:
    if isinstance(atom, core.Var):
        return _aval_form(atom.aval)
    return (*_aval_form(atom.aval), np.asarray(atom.val).tobytes())


def _aval_form(aval: Any) -> tuple[Hashable, ...]:
    return (aval.shape, aval.dtype, aval.weak_type) if isinstance(aval, jax.core.ShapedArray) else (repr(aval),)


def _size(eqn: core.JaxprEqn) -> int:
    """Equations that an equation is made of."""
    return 1 + sum(_size(inner) for program in programs_of(eqn) for inner in program.eqns)


# ---- in which order


def _in_order(jaxpr: core.Jaxpr) -> list[core.JaxprEqn]:
    """An order in which what a layer does stands together.

    An update treats all weights with its first operation, then all with its second: it is written output by output.
    Elsewhere what is made of weights alone moves to where it is read (the cast of all weights at the start), and what
    is done to one result alone to where that is made (the cast of all gradients at the end).
    """
    if not any(map(is_heavy, jaxpr.eqns)):
        return _by_output(jaxpr)
    maker = {var: at for at, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
    readers: dict[int, list[int]] = defaultdict(list)
    for at, eqn in enumerate(jaxpr.eqns):
        for one in _made_by(eqn, maker):
            readers[one].append(at)
    returned = {maker[atom] for atom in jaxpr.outvars if isinstance(atom, core.Var) and atom in maker}
    keys = [(at, 0) for at in range(len(jaxpr.eqns))]
    early, late = set[int](), set[int]()
    for at, eqn in enumerate(jaxpr.eqns):
        takes = any(isinstance(atom, core.Var) for atom in eqn.invars)
        if takes and early.issuperset(_made_by(eqn, maker)) and len(readers[at]) == 1 and at not in returned:
            early.add(at)
    for at in range(len(jaxpr.eqns) - 1, -1, -1):
        if at not in early and len(_made_by(jaxpr.eqns[at], maker)) == 1 and late.issuperset(readers[at]):
            late.add(at)
    for at in range(len(jaxpr.eqns) - 1, -1, -1):
        if at in early:
            own, before = keys[readers[at][0]]
            keys[at] = own, before - 1
    for at, eqn in enumerate(jaxpr.eqns):
        if at in late:
            (source,) = _made_by(eqn, maker)
            own, behind = keys[source]
            keys[at] = own, behind + 1
    return [jaxpr.eqns[at] for at in sorted(range(len(keys)), key=lambda at: (*keys[at], at))]


def _made_by(eqn: core.JaxprEqn, maker: Mapping[core.Var, int]) -> set[int]:
    """Places of the equations whose results an equation reads."""
    return {maker[atom] for atom in eqn.invars if isinstance(atom, core.Var) and atom in maker}


def _by_output(jaxpr: core.Jaxpr) -> list[core.JaxprEqn]:
    maker = {var: at for at, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
    done: dict[int, None] = {}
    wanted = [maker[atom] for atom in reversed(jaxpr.outvars) if isinstance(atom, core.Var) and atom in maker]
    while wanted:
        at = wanted[-1]
        missing = sorted((one for one in _made_by(jaxpr.eqns[at], maker) if one not in done), reverse=True)
        if missing:
            wanted += missing
        else:
            done[wanted.pop()] = None
    # What nobody reads may still have effects.
    return [jaxpr.eqns[at] for at in (*done, *(at for at in range(len(jaxpr.eqns)) if at not in done))]


# ---- where it is cut


def _cuts(jaxpr: core.Jaxpr, eqns: Sequence[core.JaxprEqn], numbers: Int[np.ndarray, " eqns"]) -> list[int]:
    """Places between equations, in order, at which parts begin and end."""
    sizes: Int[np.ndarray, " eqns"] = np.array([_size(eqn) for eqn in eqns], np.int64)
    live = _live_bytes(eqns)
    found: list[int] = []
    left = [(0, len(eqns))]
    while left:
        low, high = left.pop()
        run = _longest_run(numbers[low:high], sizes[low:high])
        if run is None:
            continue
        first, period, count = run
        first += low
        # Cut where the fewest bytes cross.
        end = _end_of_run(numbers[:high], first, period)
        crossing = [
            live[first + at : end : period].mean()
            for at in range(period)
            if (end - first - at) // period >= max(count - 1, LEAST_LAYERS)
        ] or [0]
        first += int(np.argmin(crossing))
        count = (end - first) // period
        size = int(sizes[first : first + period].sum())
        if size < LEAST_CALLED and sizes.sum() < MOST_WHOLE:
            continue
        each = max(-(-count // MOST_CALLS), LEAST_CALLED // size)
        own = [first + layer * period for layer in range(0, count, each)] + [first + count * period]
        found += own
        left += [(low, own[0]), (own[-1], high)]
    return sorted(set(found))


def _end_of_run(numbers: Int[np.ndarray, " eqns"], first: int, period: int) -> int:
    """Index behind the last equation that repeats the one a period before it."""
    same = numbers[first + period :] == numbers[first : len(numbers) - period]
    differing = np.flatnonzero(~same)
    return first + period + (int(differing[0]) if differing.size else same.size)


def _longest_run(numbers: Int[np.ndarray, " eqns"], sizes: Int[np.ndarray, " eqns"]) -> tuple[int, int, int] | None:
    """First equation, period and repetitions of what repeats most often enough; None where nothing does."""
    total: Int[np.ndarray, " eqns"] = np.append(0, np.cumsum(sizes))
    best: list[tuple[int, int, int, int]] = []
    for period in range(1, len(numbers) // LEAST_LAYERS + 1):
        same = numbers[period:] == numbers[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
        starts, ends = edges[::2], edges[1::2]
        if not starts.size:
            continue
        longest = int(np.argmax(ends - starts))
        first, count = int(starts[longest]), int(ends[longest] - starts[longest] + period) // period
        if count >= LEAST_LAYERS:
            covered = int(total[first + count * period] - total[first])
            if covered >= LEAST_EQNS:
                best.append((covered, period, first, count))
    if not best:
        return None
    most = max(covered for covered, *_ in best)
    _, period, first, count = min((one for one in best if one[0] >= NEARLY * most), key=lambda one: one[1])
    return first, period, count


def _live_bytes(eqns: Sequence[core.JaxprEqn]) -> Int[np.ndarray, " places"]:
    """Bytes made before each equation that it or a later one reads."""
    made = {var: at for at, eqn in enumerate(eqns) for var in eqn.outvars}
    last = {atom: at for at, eqn in enumerate(eqns) for atom in eqn.invars if isinstance(atom, core.Var)}
    change: Int[np.ndarray, " places"] = np.zeros(len(eqns) + 2, np.int64)
    for var, at in last.items():
        if var in made:
            change[made[var] + 1] += aval_bytes(var.aval)
            change[at + 1] -= aval_bytes(var.aval)
    return np.cumsum(change)


# ---- parts


def _parts(
    closed: core.ClosedJaxpr, pieces: Sequence[Sequence[core.JaxprEqn]], forms: ProgramForms
) -> Iterator[CalledEquations]:
    jaxpr = closed.jaxpr
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    returned = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    last = {
        atom: number
        for number, eqns in enumerate(pieces)
        for eqn in eqns
        for atom in eqn.invars
        if isinstance(atom, core.Var)
    }
    for number, eqns in enumerate(pieces):
        writes = tuple(
            var
            for eqn in eqns
            for var in eqn.outvars
            if not is_dropped(var) and (var in returned or last.get(var, -1) > number)
        )
        free = free_variables(eqns)
        own = [var for var in free if var in constants]
        reads = tuple(var for var in free if var not in constants)
        effects = frozenset[Any]().union(*(eqn.effects for eqn in eqns))
        program = jaxpr.replace(
            constvars=own,
            invars=list(reads),
            outvars=list(writes),
            eqns=list(eqns),
            effects=effects,
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )
        places = {var: place for place, var in enumerate([*own, *reads])}
        form = (tuple(id(constants[var]) for var in own), len(reads), forms.body(eqns, writes, places))
        yield CalledEquations(
            program=core.ClosedJaxpr(program, [constants[var] for var in own]), reads=reads, writes=writes, form=form
        )
