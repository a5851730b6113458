"""A program with its values held where a decision wants them, loops and checkpoints inside of it too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.inline import is_dropped, piece
from meshwright.compiler.pointwise import POINTWISE
from meshwright.compiler.sharding.copies import Copies, copies_of, product_of_copies
from meshwright.compiler.sharding.cost import WHOLE
from meshwright.compiler.sharding.graph import CHOOSE
from meshwright.compiler.sharding.nodes import EquationSite, HeldValue

REWRITTEN = ("scan", "checkpoint", "remat2", "jit", "pjit")
"""Equations whose program is written anew; functions with derivatives of their own are units."""


def partition(placement: Sequence[int], names: Sequence[str]) -> PartitionSpec:
    """A placement as JAX spells it.

    Args:
        placement: dimension that each axis of the mesh splits, or -1.
        names: the names of the axes.
    """
    parts = [
        tuple(name for name, at in zip(names, placement, strict=False) if at == dim)
        for dim in range(max(placement, default=-1) + 1)
    ]
    return PartitionSpec(*(own[0] if len(own) == 1 else own or None for own in parts))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HeldProgram:
    """Programs with constraints between their equations; derivatives are held likewise."""

    choice: Sequence[int]
    mesh: Mesh
    names: Sequence[str]
    """Axes of the mesh that the choices are about."""
    ranks: Sequence[tuple[str, int]] = ()
    """Other axes, which the program itself names, and devices along them."""

    def program(
        self,
        closed: core.ClosedJaxpr,
        sites: Sequence[EquationSite],
        entries: Sequence[HeldValue | None] = (),
        exits: Sequence[HeldValue | None] = (),
    ) -> core.ClosedJaxpr:
        """A program whose sites are known.

        Args:
            closed: the program.
            sites: the sites of its equations.
            entries: the entries where its first operands are.
            exits: the exits where its first results are.
        """
        jaxpr = closed.jaxpr
        site_of = {id(site.eqn): site for site in sites}
        copies: dict[tuple[Any, tuple[int, ...]], Any] = {}

        def run(*operands: Any) -> list[Any]:
            values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
            values.update(zip(jaxpr.invars, self._all(operands, entries), strict=True))
            read: Callable[[Any], Any] = lambda atom: atom.val if isinstance(atom, core.Literal) else values[atom]  # noqa: E731
            for eqn in jaxpr.eqns:
                site = site_of.get(id(eqn))
                given = [read(atom) for atom in eqn.invars]
                made = self._equation(jaxpr, eqn, site, given, copies)
                values.update(zip(eqn.outvars, made, strict=True))
            return self._all([read(atom) for atom in jaxpr.outvars], exits)

        shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
        return jax.make_jaxpr(run, axis_env=list(self.ranks))(*shapes)

    def _equation(
        self,
        jaxpr: core.Jaxpr,
        eqn: core.JaxprEqn,
        site: EquationSite | None,
        given: list[Any],
        copies: dict[tuple[Any, tuple[int, ...]], Any],
    ) -> Any:
        params, name = eqn.params, eqn.primitive.name
        if site is not None and site.inner and name in REWRITTEN:
            params = {**params, "jaxpr": self._inside(params["jaxpr"], site)}
        elif site is None or not self._is_held(site):
            operands = {
                atom: value for atom, value in zip(eqn.invars, given, strict=True) if isinstance(atom, core.Var)
            }
            alone = piece(jaxpr, [eqn])
            found = iter(core.jaxpr_as_fun(alone)(*(operands[var] for var in alone.jaxpr.invars)))
            return [None if is_dropped(var) else next(found) for var in eqn.outvars]
        moved, shared = self._moved(given, site.given, site.operands), copies_of(site, self.choice)
        if shared is not None and self.names:
            key = eqn.invars[shared.operand], shared.axes
            if key not in copies:
                copies[key] = self._copied(moved[shared.operand], shared, site)
            moved[shared.operand] = copies[key]
            made = product_of_copies(eqn, shared, moved)
        else:
            made = eqn.primitive.bind(*moved, **params)
        return self._moved(made if eqn.primitive.multiple_results else [made], site.made, site.results)

    def _copied(self, value: Any, copies: Copies, site: EquationSite) -> Any:
        """A value once for each device along some axes, which hold one each."""
        held = site.operands[copies.operand]
        assert held is not None
        lead = [size for own in copies.split.values() for size in own]
        placement = [WHOLE if dim == WHOLE else dim + len(lead) for dim in held.placements[self.choice[held.node]]]
        for dim, axis in enumerate(copies.axes):
            placement[axis] = dim
        return self._placed(jnp.broadcast_to(value, (*lead, *value.shape)), placement)

    def _moved(
        self, values: Sequence[Any], there: Sequence[HeldValue | None], wanted: Sequence[HeldValue | None]
    ) -> list[Any]:
        """Values where they are wanted: one that moves is held before and behind, so that it moves in this place."""
        first = [held if self._moves(held, other) else None for held, other in zip_longest(there, wanted[: len(there)])]
        return self._all(self._all(values, first), wanted)

    def _is_held(self, site: EquationSite) -> bool:
        """Operators that choose for themselves, places where values of several operators meet or one moves."""
        name = site.eqn.primitive.name
        meets = name in POINTWISE and sum(held is not None for held in site.operands) > 1
        return name in CHOOSE or meets or any(map(self._moves, site.given, site.operands))

    def _moves(self, given: HeldValue | None, wanted: HeldValue | None) -> bool:
        if given is None or wanted is None:
            return False
        return bool((given.placements[self.choice[given.node]] != wanted.placements[self.choice[wanted.node]]).any())

    def _inside(self, held: Any, site: EquationSite) -> Any:
        closed = held if isinstance(held, core.ClosedJaxpr) else core.ClosedJaxpr(held, ())
        made = self.program(closed, site.inner, site.entries, site.exits)
        if isinstance(held, core.ClosedJaxpr):
            return made
        if made.consts:
            return held
        return made.jaxpr

    def _all(self, values: Sequence[Any], held: Sequence[HeldValue | None]) -> list[Any]:
        """Values, the first of them held."""
        return [self._one(value, own) for value, own in zip_longest(values, held)]

    def _one(self, value: Any, held: HeldValue | None) -> Any:
        if held is None or not self.names or not np.ndim(value):
            return value
        return self._placed(value, held.placements[self.choice[held.node]].tolist())

    def _placed(self, value: Any, placement: Sequence[int]) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(self._mesh, partition(placement, self.names)))

    @property
    def _mesh(self) -> Mesh | AbstractMesh:
        """The mesh as the program sees it: along its own axes every rank is alone."""
        if not self.ranks:
            return self.mesh
        manual = {name for name, _ in self.ranks}
        kinds = tuple(AxisType.Manual if name in manual else AxisType.Auto for name in self.mesh.axis_names)
        return AbstractMesh(self.mesh.devices.shape, self.mesh.axis_names, axis_types=kinds)
