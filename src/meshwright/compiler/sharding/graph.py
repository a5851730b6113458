"""The decisions of a stage: operators and operands that choose, followers that go with their deepest operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import aval_bytes, eqn_flop
from meshwright.compiler.sharding.cost import WHOLE, LogicalMesh, Placements
from meshwright.compiler.sharding.problem import ChoiceProblem, Pair
from meshwright.compiler.sharding.rules import Rule, rule_of
from meshwright.compiler.sharding.strategies import Strategies, divides, equation_strategies, operand_placements
from meshwright.shapes import Bool, Float

HEAVY = ("dot_general", "conv_general_dilated")
CHOOSE = (*HEAVY, "gather")
"""Equations that choose for themselves."""
OPENED = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
          "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}  # fmt: skip
"""Equations that hold others, and the parameter that holds them."""
NOT_KEPT = (
    "reshape", "transpose", "squeeze", "expand_dims", "convert_element_type", "copy", "copy_p", "slice", "split",
    "neg", "add", "sub",
)  # fmt: skip
"""Results that the backward does not read, or reads as what they were made of."""


@dataclass(eq=False, slots=True)
class Node:
    """One decision."""

    label: str
    placements: Placements
    """Of its first result, or of the operand."""
    communication_s: Float[np.ndarray, " choices"]
    compute_s: Float[np.ndarray, " choices"]
    memory_bytes: Float[np.ndarray, " choices"]
    strategies: Strategies | None = None
    rule: Rule | None = None
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Value:
    """How a variable lies for each choice of the node it belongs to."""

    node: int
    placements: Placements
    size_bytes: int
    differentiable: bool
    depth: int
    parameter: bool = False
    dims: tuple[int, ...] | None = None
    """Of a broadcast, which is never made: dimension of what is broadcast for each of its own, or -1."""

    def seen(self) -> Placements:
        """Placements in the dimensions of the variable itself."""
        if self.dims is None:
            return self.placements
        found = [self.dims.index(dim) if dim in self.dims else WHOLE for dim in range(max(self.dims, default=-1) + 1)]
        inner = np.where(self.placements < len(found), self.placements, WHOLE)
        return np.array([*found, WHOLE])[inner]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Site:
    """An equation of the stage that may be given constraints."""

    eqn: core.JaxprEqn
    node: int
    operands: tuple[Placements | None, ...]
    """How it wants each operand for each choice of its node; None for those that are free."""
    results: tuple[Placements, ...]


@dataclass(eq=False, slots=True, kw_only=True)
class DecisionGraph:
    """Everything that is decided about a program."""

    mesh: LogicalMesh
    parameter_copies: float = 1.0
    """Bytes kept for each byte of a parameter: itself, its gradient, the state of its optimizer."""
    syncs: float = 1.0
    """All-reduces of a gradient for each micro-batch: 1 over the micro-batches where it is reduced once, at the end."""
    nodes: list[Node] = field(default_factory=list)
    edges: dict[Pair, Float[np.ndarray, "choices choices"]] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    values: dict[Any, Value | None] = field(default_factory=dict)
    scale: float = 1.0
    """Trip count of the loops around the equation that is read."""

    # ---- what is decided

    def problem(self) -> ChoiceProblem:
        """Costs of all decisions for one micro-batch, forward and backward."""
        return ChoiceProblem(
            costs=tuple(node.communication_s + node.compute_s for node in self.nodes),
            memory=tuple(node.memory_bytes for node in self.nodes),
            edges=self.edges,
        )

    def placement(self, var: core.Var, choice: Sequence[int]) -> tuple[int, ...] | None:
        """Dimension of a variable that each axis splits; None where nothing is decided.

        Args:
            var: of the program.
            choice: of each node.
        """
        value = self.values.get(var)
        return None if value is None else tuple(value.seen()[choice[value.node]].tolist())

    # ---- building

    def operand(self, var: core.Var, *, differentiable: bool) -> None:
        """Add an operand of the program.

        Args:
            var: the operand.
            differentiable: whether it is a parameter.
        """
        copies = self.parameter_copies if differentiable else 1.0
        node = self._choosing(str(var.aval.str_short()), var.aval, copies)
        self.values[var] = Value(
            node=node, placements=self.nodes[node].placements, size_bytes=aval_bytes(var.aval),
            differentiable=differentiable, depth=0, parameter=differentiable,
        )  # fmt: skip

    def read(self, eqns: Sequence[core.JaxprEqn], *, top: bool = True) -> None:
        """Add equations in order.

        Args:
            eqns: of the program.
            top: whether they stand in the program itself, not in an equation of it.
        """
        for eqn in eqns:
            uses = [self._use(atom) for atom in eqn.invars]
            if all(use is None for use in uses):
                self.values.update((var, None) for var in eqn.outvars)
            elif eqn.primitive.name in OPENED:
                self._open(eqn, uses)
            elif eqn.primitive.name == "scan":
                self._loop(eqn, uses)
            elif eqn.primitive.name == "broadcast_in_dim":
                self._broadcast(eqn, uses[0])
            elif eqn.primitive.name in CHOOSE:
                self._decide(eqn, uses, top)
            else:
                self._follow(eqn, uses, top)

    def _use(self, atom: Any) -> Value | None:
        return self.values.get(atom) if isinstance(atom, core.Var) else None

    def _choosing(self, label: str, aval: Any, copies: float) -> int:
        placements = operand_placements(aval.shape, self.mesh)
        nothing = np.zeros(len(placements))
        kept = copies * aval_bytes(aval) / self.mesh.shards(placements)
        self.nodes.append(Node(label, placements, nothing.copy(), nothing.copy(), kept, shapes=(aval.shape,)))
        return len(self.nodes) - 1

    def _decide(self, eqn: core.JaxprEqn, uses: Sequence[Value | None], top: bool) -> None:
        rule = rule_of(eqn)
        ways = equation_strategies(rule, self.mesh)
        aval = eqn.outvars[0].aval
        to = np.array(rule.dimension_of(rule.results[0]))
        running, placed = to[ways.factors], to[ways.placed]
        sums = (ways.factors != WHOLE) & (running == WHOLE)
        differentiable = _float(aval) and any(use is not None and use.differentiable for use in uses)
        cost = self.mesh.move_s(aval_bytes(aval), running, placed, sums)
        if differentiable:
            cost = cost + self.mesh.move_s(aval_bytes(aval), placed, np.where(sums, WHOLE, running))
        passes = 1 + sum(use is not None and use.differentiable for use in uses)
        flop = passes * eqn_flop(eqn) if eqn.primitive.name in HEAVY else 0.0
        compute = self.scale * flop / self.mesh.flop_per_s / self.mesh.shards(ways.factors)
        memory = self.scale * aval_bytes(aval) / self.mesh.shards(placed)
        label = f"{eqn.primitive.name} {aval.str_short()}"
        shapes = tuple(atom.aval.shape for atom in [*eqn.invars, *eqn.outvars])
        self.nodes.append(Node(label, placed, self.scale * cost, compute, memory, ways, rule, shapes))
        node = len(self.nodes) - 1
        self._wire(eqn, uses, node, rule, ways.factors, (placed,), top)

    def _follow(self, eqn: core.JaxprEqn, uses: Sequence[Value | None], top: bool) -> None:
        rule = rule_of(eqn)
        made = [place for place, use in enumerate(uses) if use is not None and use.dims is None]
        # A broadcast is followed only where nothing else is there to follow.
        candidates = made or [place for place, use in enumerate(uses) if use is not None]
        followed = max(candidates, key=lambda place: (len(eqn.invars[place].aval.shape), uses[place].depth))  # type: ignore[union-attr]
        leader = uses[followed]
        assert leader is not None
        factors = np.array([*rule.operands[followed], WHOLE])[leader.seen()]
        factors = np.where(divides(rule.sizes, factors, self.mesh), factors, WHOLE)
        node = self.nodes[leader.node]
        results = []
        for var, dims in zip(eqn.outvars, rule.results, strict=True):
            placed = np.array(rule.dimension_of(dims))[factors]
            sums = (factors != WHOLE) & (placed == WHOLE)
            node.communication_s += self.scale * self.mesh.move_s(aval_bytes(var.aval), placed, placed, sums)
            if eqn.primitive.name not in NOT_KEPT and _float(var.aval) and leader.differentiable:
                node.memory_bytes += self.scale * aval_bytes(var.aval) / self.mesh.shards(placed)
            results.append(placed)
        self._wire(eqn, uses, leader.node, rule, factors, tuple(results), top)

    def _wire(
        self,
        eqn: core.JaxprEqn,
        uses: Sequence[Value | None],
        node: int,
        rule: Rule,
        factors: Placements,
        results: tuple[Placements, ...],
        top: bool,
    ) -> None:
        """Edges to the operands, and what the results are."""
        wanted: list[Placements | None] = []
        for use, dims in zip(uses, rule.operands, strict=True):
            target = np.array(rule.dimension_of(dims))[factors]
            wanted.append(None if use is None else target)
            if use is not None:
                # Its gradient is a sum over what is split here and is no dimension of it.
                self._edge(use, node, target, (factors != WHOLE) & (target == WHOLE))
        known = [use for use in uses if use is not None]
        for var, placed in zip(eqn.outvars, results, strict=True):
            self.values[var] = Value(
                node=node, placements=placed, size_bytes=aval_bytes(var.aval),
                differentiable=_float(var.aval) and any(use.differentiable for use in known),
                depth=1 + max(use.depth for use in known),
            )  # fmt: skip
        if top:
            self.sites.append(Site(eqn=eqn, node=node, operands=tuple(wanted), results=results))

    def _edge(self, use: Value, node: int, target: Placements, sums: Bool[np.ndarray, "choices axes"]) -> None:
        """Bring an operand to where an equation wants it, and its gradient back."""
        if use.dims is not None:
            inner = np.array([*use.dims, WHOLE])[target]
            sums, target = sums | ((target != WHOLE) & (inner == WHOLE)), inner
        if use.node == node:
            self.nodes[node].communication_s += self._moved(use, use.placements, target, sums)
            return
        table = self._moved(use, use.placements[:, None], target[None], sums[None])
        pair, table = ((use.node, node), table) if use.node < node else ((node, use.node), table.T)
        self.edges[pair] = self.edges[pair] + table if pair in self.edges else table

    def _moved(self, use: Value, source: Any, target: Any, sums: Any) -> Any:
        cost = self.mesh.move_s(use.size_bytes, source, target)
        if use.differentiable:
            back = self.mesh.move_s(use.size_bytes, target, source, sums)
            cost = cost + (self.syncs if use.parameter else 1.0) * back
        return self.scale * cost

    def _broadcast(self, eqn: core.JaxprEqn, use: Value | None) -> None:
        assert use is not None
        shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
        dims = [WHOLE] * len(shape)
        for inner, place in enumerate(places):
            if eqn.invars[0].aval.shape[inner] == shape[place]:
                dims[place] = inner if use.dims is None else use.dims[inner]
        self.values[eqn.outvars[0]] = replace(use, dims=tuple(dims))

    # ---- equations inside equations

    def _open(self, eqn: core.JaxprEqn, uses: Sequence[Value | None]) -> None:
        inner = _jaxpr(eqn.params[OPENED[eqn.primitive.name]])
        self.values.update(zip(inner.invars, uses, strict=True))
        self.read(inner.eqns, top=False)
        self.values.update((var, self._use(atom)) for var, atom in zip(eqn.outvars, inner.outvars, strict=True))

    def _loop(self, eqn: core.JaxprEqn, uses: Sequence[Value | None]) -> None:
        """A loop: its body once, times its length; what it carries lies the same way before and after each round."""
        inner, consts, carried = _jaxpr(eqn.params["jaxpr"]), eqn.params["num_consts"], eqn.params["num_carry"]
        self.values.update(zip(inner.invars[:consts], uses[:consts], strict=True))
        kept: list[Value] = []
        for var, use in zip(inner.invars[consts : consts + carried], uses[consts : consts + carried], strict=True):
            node = self._choosing(f"carried {var.aval.str_short()}", var.aval, 1.0)
            placements = self.nodes[node].placements
            kept.append(Value(node=node, placements=placements, size_bytes=aval_bytes(var.aval),
                              differentiable=_float(var.aval), depth=1 + (use.depth if use else 0)))  # fmt: skip
            if use is not None:
                self._edge(use, node, placements, np.zeros(placements.shape, bool))
            self.values[var] = kept[-1]
        for var, use in zip(inner.invars[consts + carried :], uses[consts + carried :], strict=True):
            rows = tuple(range(1, 1 + len(var.aval.shape)))
            if use is not None:
                dims = rows if use.dims is None else use.dims[1:]
                # One row of it is moved in each round.
                use = replace(use, dims=dims, size_bytes=use.size_bytes // max(1, eqn.params["length"]))
            self.values[var] = use
        outside, self.scale = self.scale, self.scale * eqn.params["length"]
        self.read(inner.eqns, top=False)
        for atom, value in zip(inner.outvars[:carried], kept, strict=True):
            use = self._use(atom)
            if use is not None:
                self._edge(use, value.node, value.placements, np.zeros(value.placements.shape, bool))
        self.scale = outside
        self.values.update(zip(eqn.outvars[:carried], kept, strict=True))
        for var, atom in zip(eqn.outvars[carried:], inner.outvars[carried:], strict=True):
            use = self._use(atom)
            if use is not None:
                seen = use.seen()
                use = replace(use, placements=np.where(seen == WHOLE, WHOLE, seen + 1), dims=None,
                              size_bytes=aval_bytes(var.aval))  # fmt: skip
            self.values[var] = use


def graph_of(
    program: core.Jaxpr,
    parameters: Sequence[core.Var],
    mesh: LogicalMesh,
    *,
    parameter_copies: float = 1.0,
    syncs: float = 1.0,
) -> DecisionGraph:
    """What is to be decided about a forward program, priced with its backward.

    Args:
        program: of a stage or a whole loss.
        parameters: operands that are differentiated.
        mesh: its axes.
        parameter_copies: bytes kept for each byte of a parameter.
        syncs: all-reduces of a gradient for each micro-batch.
    """
    graph = DecisionGraph(mesh=mesh, parameter_copies=parameter_copies, syncs=syncs)
    differentiated = set(parameters)
    for var in program.invars:
        graph.operand(var, differentiable=var in differentiated)
    graph.read(program.eqns)
    return graph


def _float(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _jaxpr(held: Any) -> core.Jaxpr:
    return held.jaxpr if isinstance(held, core.ClosedJaxpr) else held
