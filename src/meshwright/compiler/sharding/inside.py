"""Equations that hold others, read into a graph of decisions: calls, rules of derivatives, checkpoints and loops."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import aval_bytes
from meshwright.compiler.inline import CHECKPOINTS
from meshwright.compiler.sharding.checkpoints import run_again
from meshwright.compiler.sharding.cost import WHOLE, Placements
from meshwright.compiler.sharding.nodes import ChosenValue, DecisionNode, EquationSite, HeldValue
from meshwright.shapes import Bool


class Graph(Protocol):
    """What equations inside of others are added to."""

    nodes: list[DecisionNode]
    sites: list[EquationSite]
    values: dict[Any, ChosenValue | None]
    scale: float
    again: float

    def read(self, eqns: Sequence[core.JaxprEqn], again: Collection[int] = ()) -> None:
        """Add equations in order."""
        ...

    def use_of(self, atom: Any) -> ChosenValue | None:
        """What is known of a value."""
        ...

    def choosing(self, label: str, aval: Any, *, parameter: bool = False) -> int:
        """Add a value that chooses its placement for itself."""
        ...

    def edge(self, use: ChosenValue, node: int, target: Placements, sums: Bool[np.ndarray, "... axes"]) -> None:
        """Bring an operand to where an equation wants it, and its gradient back."""
        ...


OPENED = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
          "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}  # fmt: skip
"""Equations that hold others, and the parameter that holds them."""


def open_equation(graph: Graph, eqn: core.JaxprEqn, uses: Sequence[ChosenValue | None]) -> None:
    """Read the equations that one of `OPENED` holds.

    Args:
        graph: the graph to which they are added.
        eqn: the equation that holds them.
        uses: the uses of its operands.
    """
    inner = _jaxpr(eqn.params[OPENED[eqn.primitive.name]])
    graph.values.update(zip(inner.invars, uses, strict=True))
    outside, graph.sites = graph.sites, []
    checkpoint = eqn.primitive.name in CHECKPOINTS and eqn.params.get("policy") is None
    whole = [id(one) for one in inner.eqns] if graph.again else []
    graph.read(inner.eqns, run_again(inner) if checkpoint else whole)
    graph.sites, inside = outside, graph.sites
    graph.sites.append(EquationSite(eqn=eqn, inner=tuple(inside)))
    graph.values.update((var, graph.use_of(atom)) for var, atom in zip(eqn.outvars, inner.outvars, strict=True))


def read_loop(graph: Graph, eqn: core.JaxprEqn, uses: Sequence[ChosenValue | None]) -> None:
    """Read a loop: its body once, times its length; what it carries keeps its sharding from round to round.

    Args:
        graph: the graph to which its equations are added.
        eqn: a `scan`.
        uses: the uses of its operands.
    """
    inner, consts, carried = _jaxpr(eqn.params["jaxpr"]), eqn.params["num_consts"], eqn.params["num_carry"]
    graph.values.update(zip(inner.invars[:consts], uses[:consts], strict=True))
    kept: list[ChosenValue] = []
    for var, use in zip(inner.invars[consts : consts + carried], uses[consts : consts + carried], strict=True):
        node = graph.choosing(f"carried {var.aval.str_short()}", var.aval)
        placements = graph.nodes[node].placements
        kept.append(
            ChosenValue(
                node=node,
                placements=placements,
                size_bytes=aval_bytes(var.aval),
                differentiable=is_float(var.aval),
                depth=1 + (use.depth if use else 0),
            )
        )
        if use is not None:
            graph.edge(use, node, placements, np.zeros(placements.shape, bool))
        graph.values[var] = kept[-1]
    for var, use in zip(inner.invars[consts + carried :], uses[consts + carried :], strict=True):
        rows = tuple(range(1, 1 + len(var.aval.shape)))
        if use is not None:
            dims = rows if use.dims is None else use.dims[1:]
            # One row of it is moved in each round.
            use = replace(use, dims=dims, size_bytes=use.size_bytes // max(1, eqn.params["length"]))
        graph.values[var] = use
    outside, graph.scale = graph.scale, graph.scale * eqn.params["length"]
    around, graph.sites = graph.sites, []
    graph.read(inner.eqns)
    graph.sites, inside = around, graph.sites
    for atom, value in zip(inner.outvars[:carried], kept, strict=True):
        use = graph.use_of(atom)
        if use is not None:
            graph.edge(use, value.node, value.placements, np.zeros(value.placements.shape, bool))
    graph.scale = outside
    rounds = tuple(HeldValue(node=one.node, placements=one.placements) for one in kept)
    graph.sites.append(
        EquationSite(
            eqn=eqn,
            operands=((None,) * consts + rounds),
            results=rounds,
            inner=tuple(inside),
            entries=((None,) * consts + rounds),
            exits=rounds,
        )
    )
    graph.values.update(zip(eqn.outvars[:carried], kept, strict=True))
    for var, atom in zip(eqn.outvars[carried:], inner.outvars[carried:], strict=True):
        use = graph.use_of(atom)
        if use is not None:
            seen = use.seen()
            use = replace(
                use, placements=np.where(seen == WHOLE, WHOLE, seen + 1), dims=None, size_bytes=aval_bytes(var.aval)
            )
        graph.values[var] = use


def is_float(aval: Any) -> bool:
    """Whether values of this kind have gradients.

    Args:
        aval: the abstract value of a value.
    """
    return _inexact(aval.dtype)


@cache
def _inexact(dtype: Any) -> bool:
    # Asked of every value of every layer, mesh and number of micro-batches.
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _jaxpr(held: Any) -> core.Jaxpr:
    return held.jaxpr if isinstance(held, core.ClosedJaxpr) else held
