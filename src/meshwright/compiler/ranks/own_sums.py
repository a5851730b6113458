"""Programs whose gradients are left as each rank along some axes has them, so that they can be summed once a step.

A gradient of what all context ranks hold alike is summed over them inside of the backward that makes it, and that of an
expert over all ranks that hold it. Here it gets an axis more, along which each of these ranks has its own summand:
micro-batches are added up there, and one reduction over these and data ranks together stands behind the last. What no
sum over ranks is found of stays summed, on the first of them alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.inline import CALLS, CHECKPOINTS
from meshwright.compiler.samples.rank_maps import MAP

TOTALS = ("psum", "psum_invariant")
ELEMENTWISE = ("convert_element_type", "copy", "copy_p", "neg")
"""Functions of one value, element by element, of which those of summands add up to that of the sum."""
RESHAPED = ("reduce_sum", "reshape", "squeeze", "transpose", "broadcast_in_dim")
"""Functions of one value that do so, too, where summands have no axis of their own yet."""


Axes = tuple[str, ...]


def with_own_sums(closed: core.ClosedJaxpr, places: Mapping[int, Axes], sizes: Mapping[str, int]) -> Any:
    """A function of the program's operands, some of whose results have the summands of ranks along a first axis.

    Args:
        closed: the program.
        places: the axes of the mesh of the ranks of each such result, by its number.
        sizes: how many ranks there are along each axis.
    """
    return lambda *given: _OwnSums(sizes).read(closed.jaxpr, closed.consts, given, places)


class _OwnSums:
    """Reads programs; what it makes of some variables is their summands."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def read(
        self,
        jaxpr: core.Jaxpr,
        consts: Sequence[Any],
        given: Sequence[Any],
        places: Mapping[int, Axes],
        *,
        mapped: bool = False,
    ) -> list[Any]:
        """Results of a program, outside of any map over the ranks or inside of one."""
        own = self._own(jaxpr, places, mapped=mapped)
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given), strict=True))
        for eqn in jaxpr.eqns:
            wanted = {at: own[var] for at, var in enumerate(eqn.outvars) if var in own}
            operands = [_value(atom, values) for atom in eqn.invars]
            values.update(zip(eqn.outvars, self._made(eqn, operands, wanted, mapped=mapped), strict=True))
        found = [_value(atom, values) for atom in jaxpr.outvars]
        return [
            self._first(value, places[at]) if at in places and atom not in own else value
            for at, (atom, value) in enumerate(zip(jaxpr.outvars, found, strict=True))
        ]

    def _own(self, jaxpr: core.Jaxpr, places: Mapping[int, Axes], *, mapped: bool = False) -> dict[Any, Axes]:
        """Variables that are made as summands, and of which ranks: all that they are made of is, and nothing else reads
        it."""
        passed = (*ELEMENTWISE, "add_any", "add", *(RESHAPED if mapped else ()))
        makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        readers = Counter(atom for eqn in jaxpr.eqns for atom in eqn.invars if isinstance(atom, core.Var))
        readers.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))

        def found(atom: Any, axes: Axes) -> set[Any] | None:
            eqn = makers.get(atom) if isinstance(atom, core.Var) else None
            if eqn is None or readers[atom] > 1:
                return None
            if eqn.primitive.name in TOTALS:
                return {atom} if _sums(eqn, axes) else None
            if eqn.primitive.name in passed:
                parts = [found(operand, axes) for operand in eqn.invars]
                return None if any(part is None for part in parts) else {atom}.union(*(part or () for part in parts))
            inside = _inside(eqn)
            place = eqn.outvars.index(atom)
            here = mapped or eqn.primitive.name == MAP
            return {atom} if inside and self._own(inside, {place: axes}, mapped=here) else None

        return {atom: axes for place, axes in places.items() for atom in found(jaxpr.outvars[place], axes) or ()}

    def _made(self, eqn: core.JaxprEqn, given: list[Any], wanted: Mapping[int, Axes], *, mapped: bool) -> list[Any]:
        """Results of an equation, of which some are wanted as summands."""
        if not wanted:
            return _bound(eqn, given)
        name, inside = eqn.primitive.name, _inside(eqn)
        if name in TOTALS:
            return self._left(eqn, given, wanted)
        if name == MAP:
            return self._mapped(eqn, given, wanted)
        if inside is None:
            return _bound(eqn, given)  # of summands as of their sum
        if name in CHECKPOINTS:
            again = jax.checkpoint(
                lambda *values: self.read(inside, (), values, wanted, mapped=mapped),
                prevent_cse=eqn.params["prevent_cse"],
                policy=eqn.params["policy"],
            )
            return list(again(*given))
        return self.read(inside, (), given, wanted, mapped=mapped)

    def _mapped(self, eqn: core.JaxprEqn, given: list[Any], wanted: Mapping[int, Axes]) -> list[Any]:
        """A map over the ranks, whose sums over them are not taken."""
        params = eqn.params
        specs = list(params["out_specs"])
        for at, axes in wanted.items():
            specs[at] = PartitionSpec(axes, *specs[at])

        def run(*operands: Any) -> list[Any]:
            made = self.read(params["jaxpr"], (), operands, wanted, mapped=True)
            return [value[None] if at in wanted else value for at, value in enumerate(made)]

        found = jax.shard_map(
            run,
            mesh=params["mesh"],
            in_specs=tuple(params["in_specs"]),
            out_specs=specs,
            axis_names=set(params["newly_manual_axes"]),
            check_vma=params["check_vma"],
        )
        return list(found(*given))

    def _left(self, eqn: core.JaxprEqn, given: list[Any], wanted: Mapping[int, Axes]) -> list[Any]:
        """What is left of sums over ranks that are wanted as summands: those over ranks of other axes."""
        made = _bound(eqn, given)
        for at, axes in wanted.items():
            rest = tuple(axis for axis in eqn.params["axes"] if axis not in axes)
            made[at] = jax.lax.psum(given[at], rest) if rest else given[at]
        return made

    def _first(self, value: Any, axes: Axes) -> Any:
        """A sum on the first of the ranks, and nothing on others."""
        ranks = prod(self.sizes[axis] for axis in axes)
        first = jnp.arange(ranks).reshape(-1, *[1] * jnp.ndim(value)) == 0
        return jnp.where(first, value[None], 0)


def _sums(eqn: core.JaxprEqn, axes: Axes) -> bool:
    """Whether it sums over all ranks along some axes."""
    return set(axes) <= set(eqn.params["axes"]) and not eqn.params.get("axis_index_groups")


def _inside(eqn: core.JaxprEqn) -> core.Jaxpr | None:
    """The program inside of a map, a call or a checkpoint; None of other equations, and where it has constants."""
    if eqn.primitive.name not in (MAP, *CALLS, *CHECKPOINTS):
        return None
    found: Any = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    if isinstance(found, core.ClosedJaxpr):
        return None if found.consts else found.jaxpr
    return None if found is None or found.constvars else found


def _value(atom: Any, values: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, core.Literal) else values[atom]


def _bound(eqn: core.JaxprEqn, given: Sequence[Any]) -> list[Any]:
    """Results of an equation."""
    made = eqn.primitive.bind(*given, **eqn.primitive.get_bind_params(eqn.params))
    return list(made) if eqn.primitive.multiple_results else [made]
