"""Prints and callbacks of a step: what they read is returned by the program, and they are called when it is done.

`jax.debug.print` and `jax.debug.callback` compute nothing. Run where they stand, they would see parts of values on
parts of devices, once for every micro-batch and again for recomputation. So the program returns what they read,
joined and gathered as results are, and they are called once with it, in the order of the program: what is seen is what
one device shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.inline import CHECKPOINTS, free_variables, inlined, is_dropped, piece, programs_of
from meshwright.compiler.marking import gradient_p

REPORTING = ("debug_callback", "debug_print")
"""Primitives of prints and callbacks."""
Read = int | np.ndarray
"""Place of a value among those that are at hand, or a number that the program holds."""


@dataclass(frozen=True, eq=False, slots=True)
class Reported:
    """One call."""

    call: Callable[..., Any]
    """The function that is called with arrays."""
    reads: tuple[Read, ...]

    def run(self, values: Sequence[Any]) -> None:
        """Call it.

        Args:
            values: the values at hand.
        """
        self.call(*_taken(self.reads, values))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReportedPart:
    """Calls inside of an equation, such as a loop."""

    items: tuple[Reported | ReportedPart, ...]
    reads: tuple[Read, ...]
    """What is at hand for the items, among what is around the equation."""
    rounds: range | None = None
    """Rounds of a loop, whose values are stacked."""
    branch: tuple[Read, int] | None = None
    """What chooses a branch, and its number; None outside of branches."""

    def run(self, values: Sequence[Any]) -> None:
        """Call all.

        Args:
            values: around the equation.
        """
        if self.branch is not None and int(np.asarray(_taken(self.branch[:1], values)[0])) != self.branch[1]:
            return
        own = _taken(self.reads, values)
        for at in [None] if self.rounds is None else self.rounds:
            here = own if at is None else [value[at] for value in own]
            for item in self.items:
                item.run(here)


def _taken(reads: Sequence[Read], values: Sequence[Any]) -> list[Any]:
    return [values[one] if isinstance(one, int) else one for one in reads]


@dataclass(frozen=True, eq=False, slots=True)
class Reports:
    """All calls of a step."""

    items: tuple[Reported | ReportedPart, ...]
    count: int
    """Values that the program returns for them, behind its own results."""

    def run(self, values: Sequence[Any]) -> None:
        """Call all, in order.

        Args:
            values: the values that the program returned for them.
        """
        held = [_gathered(value) for value in values]
        for item in self.items:
            item.run(held)

    def beside(self, tree: Any) -> Any:
        """Tree of the step's results and of what it returns beside them.

        Args:
            tree: the tree of its results.
        """
        return jax.tree.structure((jax.tree.unflatten(tree, range(tree.num_leaves)), [0] * self.count))


def _gathered(value: Any) -> Any:
    """An array that JAX takes, of one that may lie in other processes or in parts."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    return value.gather() if hasattr(value, "gather") else np.asarray(value)


def reported(closed: core.ClosedJaxpr, *, behind: bool = False) -> tuple[core.ClosedJaxpr, Reports | None]:
    """A program that returns what its prints and callbacks read, in place of them, and these; None where it has none.

    Those in `while` loops, of which nobody knows the rounds, and in functions with derivative rules stay.

    Args:
        closed: its calls opened.
        behind: whether what they alone read of a loss is computed behind it, where the whole batch is known.
    """
    if not _reports(closed.jaxpr):
        return closed, None
    body = _Body(closed.jaxpr, behind=behind)
    if not body.items:
        return closed, None
    made = core.ClosedJaxpr(body.program([*closed.jaxpr.outvars, *body.read]), closed.consts)
    return made, Reports(tuple(body.items), len(body.read))


def _reports(jaxpr: core.Jaxpr) -> bool:
    return any(_is_report(eqn) or _reports_inside(eqn) for eqn in jaxpr.eqns)


def _is_report(eqn: core.JaxprEqn) -> bool:
    """Whether an equation shows something; `io_callback` does where nothing comes back from it."""
    return eqn.primitive.name in REPORTING or (eqn.primitive.name == "io_callback" and not eqn.outvars)


def _reports_inside(eqn: core.JaxprEqn) -> bool:
    return any(map(_reports, programs_of(eqn)))


class _Body:
    """A program, or one inside of an equation, without its prints and callbacks."""

    def __init__(self, jaxpr: core.Jaxpr, *, behind: bool = False) -> None:
        self.jaxpr, self.behind = jaxpr, behind
        self.eqns: list[core.JaxprEqn] = []
        self.items: list[Reported | ReportedPart] = []
        self.read: list[core.Var] = []
        """What prints and callbacks read, each once."""
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if _is_report(eqn):
                call = partial(eqn.primitive.impl, **eqn.params)
                self.items.append(Reported(call, tuple(map(self._place, eqn.invars))))
            elif not _reports_inside(eqn):
                self.eqns.append(eqn)
            elif eqn.primitive is gradient_p:
                self._passing(eqn, "loss")
            elif name in CHECKPOINTS:
                self._passing(eqn, "jaxpr")
            elif name == "scan":
                self._loop(eqn)
            elif name == "cond":
                self._branches(eqn)
            else:
                self.eqns.append(eqn)

    def program(self, outvars: Sequence[Any]) -> core.Jaxpr:
        """The body with these results.

        Args:
            outvars: its results.
        """
        return self.jaxpr.replace(
            eqns=self.eqns,
            outvars=list(outvars),
            effects=frozenset(self.jaxpr.effects) - _gone(self.jaxpr.eqns, self.eqns),
            debug_info=self.jaxpr.debug_info.with_unknown_names(),
        )

    def _place(self, atom: Any) -> Read:
        """Where a value is among those that are read."""
        if isinstance(atom, core.Literal):
            return np.asarray(atom.val, atom.aval.dtype)
        found = next((at for at, one in enumerate(self.read) if one is atom), None)
        if found is None:
            self.read.append(atom)
            return len(self.read) - 1
        return found

    def _passing(self, eqn: core.JaxprEqn, name: str) -> None:
        """What a loss or a checkpointed part reports is a result more of it; what it was given is known outside."""
        flat = inlined(core.ClosedJaxpr(eqn.params[name], ()))
        if flat.consts:
            self.eqns.append(eqn)
            return
        body = _Body(flat.jaxpr)
        results = flat.jaxpr.outvars
        behind = body.taken_out() if name == "jaxpr" or self.behind else ()
        wanted = _wanted(behind, body.read)
        outside: dict[Any, Any] = dict(zip(flat.jaxpr.invars, eqn.invars, strict=True))
        outside |= {
            atom: var
            for atom, var in zip(results, eqn.outvars, strict=False)
            if isinstance(atom, core.Var) and atom not in outside and not is_dropped(var)
        }
        more = [atom for atom in wanted if atom not in outside]
        outside |= {atom: core.Var(atom.aval) for atom in more}
        outvars = [*eqn.outvars[: len(results)], *(outside[atom] for atom in more), *eqn.outvars[len(results) :]]
        self._replaced(eqn, outvars, {name: body.program([*results, *more])})
        self._inlined(behind, outside)
        self._inside(body, [outside[atom] for atom in body.read])

    def _loop(self, eqn: core.JaxprEqn) -> None:
        """What a loop reports is stacked."""
        flat, length = inlined(eqn.params["jaxpr"]), eqn.params["length"]
        body = _Body(flat.jaxpr)
        behind = body.taken_out()
        wanted = _wanted(behind, body.read)
        same, first = eqn.params["num_consts"], eqn.params["num_consts"] + eqn.params["num_carry"]
        every = dict(zip(flat.jaxpr.invars[:same], eqn.invars[:same], strict=True))
        rows: dict[Any, Any] = dict(zip(flat.jaxpr.invars[first:], eqn.invars[first:], strict=True))
        more = [atom for atom in wanted if atom not in rows and (atom not in every or atom in body.read)]
        rows |= {atom: core.Var(_of_rounds(atom.aval, length)) for atom in more}
        inner = core.ClosedJaxpr(body.program([*flat.jaxpr.outvars, *more]), flat.consts)
        self._replaced(eqn, [*eqn.outvars, *(rows[atom] for atom in more)], {"jaxpr": inner})
        if behind:
            made = dict.fromkeys(var for one in behind for var in one.outvars if var in body.read)
            given = [atom for atom in wanted if atom in rows or atom in every]
            several = _of_all_rounds(
                piece(flat.jaxpr, behind, given, list(made)), [atom in rows for atom in given], length
            )
            outside = {
                var: rows.get(atom, every.get(atom)) for var, atom in zip(several.jaxpr.invars, given, strict=True)
            }
            outside |= {
                var: core.Literal(np.asarray(value), var.aval)
                for var, value in zip(several.jaxpr.constvars, several.consts, strict=True)
            }
            self._inlined(several.jaxpr.eqns, outside)
            rows |= {atom: outside[var] for atom, var in zip(made, several.jaxpr.outvars, strict=True)}
        self._inside(
            body,
            [rows[atom] for atom in body.read],
            rounds=range(length)[::-1] if eqn.params["reverse"] else range(length),
        )

    def taken_out(self) -> list[core.JaxprEqn]:
        """Equations that prints and callbacks alone read, no longer part of the program, in order.

        A mean over samples cannot be known in the midst of a loop whose samples are shared out; behind it, it can.
        """
        needed = {atom for atom in self.jaxpr.outvars if isinstance(atom, core.Var)}
        kept: list[core.JaxprEqn] = []
        out: list[core.JaxprEqn] = []
        for eqn in reversed(self.eqns):
            stays = bool(eqn.effects) or not needed.isdisjoint(eqn.outvars)
            (kept if stays else out).append(eqn)
            if stays:
                needed.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
        self.eqns = kept[::-1]
        return out[::-1]

    def _inlined(self, eqns: Sequence[core.JaxprEqn], names: dict[Any, Any]) -> None:
        """Equations of a body, as equations here.

        Args:
            eqns: the equations in order.
            names: what values of the body are called here; grows.
        """
        for eqn in eqns:
            names.update((var, core.Var(var.aval)) for var in eqn.outvars)
            invars = [atom if isinstance(atom, core.Literal) else names[atom] for atom in eqn.invars]
            self.eqns.append(eqn.replace(invars=invars, outvars=[names[var] for var in eqn.outvars]))

    def _branches(self, eqn: core.JaxprEqn) -> None:
        """What a branch reports is a result of it, and of the others zeros."""
        flats = [inlined(one) for one in eqn.params["branches"]]
        bodies = [_Body(flat.jaxpr) for flat in flats]
        reads = [[atom.aval for atom in body.read] for body in bodies]
        if any(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended) for own in reads for aval in own):
            # There is no key that stands for none.
            self.eqns.append(eqn)
            return
        branches = []
        for number, (flat, body) in enumerate(zip(flats, bodies, strict=True)):
            inner = core.ClosedJaxpr(body.program([*flat.jaxpr.outvars, *body.read]), flat.consts)
            branches.append(_with_zeros(inner, len(eqn.outvars), reads, number))
        more = [[core.Var(aval) for aval in own] for own in reads]
        self._replaced(eqn, [*eqn.outvars, *(var for own in more for var in own)], {"branches": tuple(branches)})
        for number, (body, own) in enumerate(zip(bodies, more, strict=True)):
            self._inside(body, own, branch=(self._place(eqn.invars[0]), number))

    def _replaced(self, eqn: core.JaxprEqn, outvars: Sequence[Any], params: dict[str, Any]) -> None:
        """The equation with other programs inside, which have fewer effects and more results."""
        made = eqn.replace(params={**eqn.params, **params}, outvars=list(outvars))
        before, after = ({one for inner in programs_of(each) for one in inner.effects} for each in (eqn, made))
        self.eqns.append(made.replace(effects=frozenset(eqn.effects) - (before - after)))

    def _inside(self, body: _Body, atoms: Sequence[Any], **where: Any) -> None:
        """Calls of a body, whose values are called `atoms` here."""
        if body.items:
            self.items.append(ReportedPart(items=tuple(body.items), reads=tuple(map(self._place, atoms)), **where))


def _wanted(behind: Sequence[core.JaxprEqn], read: Sequence[core.Var]) -> list[core.Var]:
    """What equations behind a body want of it, and what is read of it as it is."""
    made = {var for eqn in behind for var in eqn.outvars}
    return list(dict.fromkeys([*free_variables(behind), *(atom for atom in read if atom not in made)]))


def _of_rounds(aval: Any, length: int) -> Any:
    return jax.core.ShapedArray((length, *aval.shape), aval.dtype)


def _of_all_rounds(one: core.ClosedJaxpr, rows: Sequence[bool], length: int) -> core.ClosedJaxpr:
    """A program of one round as one of all rounds, without a loop.

    Args:
        one: the result of one round.
        rows: the operands that differ between rounds, by number.
        length: rounds.
    """
    axes = [0 if row else None for row in rows]
    shapes = [_of_rounds(aval, length) if row else aval for aval, row in zip(one.in_avals, rows, strict=True)]
    mapped = jax.vmap(core.jaxpr_as_fun(one), in_axes=axes, axis_size=length)
    closed = jax.make_jaxpr(mapped)(*(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in shapes))
    return inlined(closed)


def _gone(before: Sequence[core.JaxprEqn], after: Sequence[core.JaxprEqn]) -> set[Any]:
    """Effects that equations had and no longer have."""
    return {one for eqn in before for one in eqn.effects} - {one for eqn in after for one in eqn.effects}


def _with_zeros(
    branch: core.ClosedJaxpr, results: int, reads: Sequence[Sequence[Any]], number: int
) -> core.ClosedJaxpr:
    """A branch that also returns, in place of what other branches report, zeros.

    Args:
        branch: the branch with what it reports behind its results.
        results: how many it has.
        reads: shapes of what each branch reports.
        number: the number of the branch.
    """

    def same(*given: Any) -> list[Any]:
        made = core.jaxpr_as_fun(branch)(*given)
        others = [
            made[results:] if one == number else [jnp.zeros(aval.shape, aval.dtype) for aval in own]
            for one, own in enumerate(reads)
        ]
        return [*made[:results], *(value for own in others for value in own)]

    return jax.make_jaxpr(same)(*(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in branch.in_avals))
