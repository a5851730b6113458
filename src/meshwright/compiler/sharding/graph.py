"""The decisions of a stage: operators and operands that choose, followers that go with their deepest operand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.extend import core

from meshwright.compiler.cost import PRODUCTS, aval_bytes, eqn_flop
from meshwright.compiler.sharding.checkpoints import NOT_KEPT
from meshwright.compiler.sharding.cost import WHOLE, LogicalMesh, MeshAxis, Placements
from meshwright.compiler.sharding.inside import OPENED, is_float, open_equation, read_loop
from meshwright.compiler.sharding.nodes import ChosenValue, DecisionNode, EquationSite, HeldValue, Operand
from meshwright.compiler.sharding.problem import ChoiceProblem, Pair
from meshwright.compiler.sharding.rules import SUMS_OF_RANKS, SplitRule, rule_of
from meshwright.compiler.sharding.shared_operands import share_operands
from meshwright.compiler.sharding.strategies import divides, equation_strategies, operand_placements, spread_axes
from meshwright.shapes import Bool, Float

CHOOSE = (*PRODUCTS, "gather")
"""Equations that choose for themselves."""


@dataclass(eq=False, slots=True, kw_only=True)
class DecisionGraph:
    """Everything that is decided about a program."""

    mesh: LogicalMesh
    parameter_copies: float = 1.0
    """Bytes kept for each byte of a parameter: itself, its gradient, the state of its optimizer."""
    syncs: float = 1.0
    """All-reduces of a gradient for each micro-batch: 1 over the micro-batches where it is reduced once, at the end."""
    split_state: bool = False
    """Whether the state of the optimizer is split over the axes that its parameter leaves whole, too (ZeRO-1)."""
    ranks: tuple[MeshAxis, ...] = ()
    """Axes beside the mesh, along which data ranks run the program for samples of their own."""
    rank_syncs: float = 1.0
    """All-reduces of a gradient over them for each micro-batch."""
    nodes: list[DecisionNode] = field(default_factory=list)
    edges: dict[Pair, Float[np.ndarray, "choices choices"]] = field(default_factory=dict)
    forward_edges: dict[Pair, Float[np.ndarray, "choices choices"]] = field(default_factory=dict)
    """The part of `edges` that is spent in the forward."""
    operands: list[Operand] = field(default_factory=list)
    """Operands of equations that choose for themselves: values that several of them take are moved once
    (`share_operands`)."""
    sites: list[EquationSite] = field(default_factory=list)
    values: dict[Any, ChosenValue | None] = field(default_factory=dict)
    scale: float = 1.0
    """Trip count of the loops around the equation that is read."""
    again: float = 0.0
    """How often the backward runs the equation that is read once more, because a checkpoint keeps nothing of it."""

    # ---- what is decided

    def problem(self, *, in_flight: float = 1.0, recompute: bool = False) -> ChoiceProblem:
        """Costs of all decisions for one micro-batch, forward and backward.

        Args:
            in_flight: micro-batches whose activations are held at once.
            recompute: whether the backward computes the forward again.
        """
        again = 1.0 if recompute else 0.0
        return ChoiceProblem(
            costs=tuple(node.communication_s + node.compute_s + again * node.forward_s for node in self.nodes),
            memory=tuple(node.state_bytes + in_flight * (node.memory_bytes - node.state_bytes) for node in self.nodes),
            edges=self._all_edges(again),
        )

    def compute_s(self, choice: Sequence[int]) -> float:
        """Seconds of a choice that are work, for one micro-batch.

        Args:
            choice: the choice of each node.
        """
        return sum(float(node.compute_s[own]) for node, own in zip(self.nodes, choice, strict=True))

    def _all_edges(self, again: float) -> dict[Pair, Float[np.ndarray, "choices choices"]]:
        if not again:
            return self.edges
        return {pair: table + again * self.forward_edges[pair] for pair, table in self.edges.items()}

    def placement(self, var: core.Var, choice: Sequence[int]) -> tuple[int, ...] | None:
        """Dimension of a variable that each axis splits; None where nothing is decided.

        Args:
            var: the variable of the program.
            choice: the choice of each node.
        """
        value = self.values.get(var)
        return None if value is None else tuple(value.seen()[choice[value.node]].tolist())

    # ---- building

    def operand(self, var: core.Var, *, differentiable: bool, parameter: bool | None = None) -> int:
        """Add an operand of the program.

        Args:
            var: the operand.
            differentiable: whether it has a gradient.
            parameter: whether it is kept from step to step; as `differentiable` without it.

        Returns:
            Its node.
        """
        parameter = differentiable if parameter is None else parameter
        node = self.choosing(str(var.aval.str_short()), var.aval, parameter=parameter)
        if parameter and differentiable:
            self.nodes[node].communication_s += self.rank_syncs * self._over_ranks(
                var.aval, self.nodes[node].placements
            )
        self.values[var] = ChosenValue(
            node=node,
            placements=self.nodes[node].placements,
            size_bytes=aval_bytes(var.aval),
            differentiable=differentiable,
            depth=0,
            parameter=parameter,
        )
        return node

    def border(self, var: core.Var) -> int | None:
        """Let a result choose how it is passed on, whatever way it was made; its node.

        Args:
            var: the variable of the program; None for one about which nothing is decided.
        """
        use = self.use_of(var)
        if use is None:
            return None
        node = self.choosing(f"passed on {var.aval.str_short()}", var.aval)
        self.nodes[node].memory_bytes[:] = 0.0
        placements = self.nodes[node].placements
        self.edge(use, node, placements, np.zeros(placements.shape, bool))
        return node

    def read(self, eqns: Sequence[core.JaxprEqn], again: Collection[int] = ()) -> None:
        """Add equations in order.

        Args:
            eqns: the equations of the program.
            again: those, by their id, that the backward runs once more.
        """
        for eqn in eqns:
            self.again = 1.0 if id(eqn) in again else 0.0
            uses = [self.use_of(atom) for atom in eqn.invars]
            if all(use is None for use in uses):
                self.values.update((var, None) for var in eqn.outvars)
            elif eqn.primitive.name in OPENED:
                open_equation(self, eqn, uses)
            elif eqn.primitive.name == "scan":
                read_loop(self, eqn, uses)
            elif eqn.primitive.name == "broadcast_in_dim":
                self._broadcast(eqn, uses[0])
            elif eqn.primitive.name in CHOOSE:
                self._decide(eqn, uses)
            else:
                self._follow(eqn, uses)

    def use_of(self, atom: Any) -> ChosenValue | None:
        """What is known of a value; None where nothing is decided about it.

        Args:
            atom: a variable or literal of the program.
        """
        return self.values.get(atom) if isinstance(atom, core.Var) else None

    def _over_ranks(self, aval: Any, placements: Placements) -> Float[np.ndarray, " choices"]:
        """Seconds of a sum over data ranks, one of many that go together, so that its bytes count alone."""
        held = aval_bytes(aval) / self.mesh.shards(placements)
        return sum((2.0 * np.asarray(axis.gather_s(held)) for axis in self.ranks), np.zeros(len(held)))

    def choosing(self, label: str, aval: Any, *, parameter: bool = False) -> int:
        """Add a value that chooses its placement for itself; its node.

        Args:
            label: the label of the node.
            aval: the abstract value of the value.
            parameter: whether it is kept from step to step.
        """
        placements = operand_placements(aval.shape, self.mesh)
        nothing = np.zeros(len(placements))
        kept = aval_bytes(aval) / self.mesh.shards(placements)
        if parameter:
            kept = self._parameter_bytes(aval, placements)
        state = kept.copy() if parameter else nothing.copy()
        self.nodes.append(
            DecisionNode(
                label, placements, nothing.copy(), nothing.copy(), kept, state, nothing.copy(), shapes=(aval.shape,)
            )
        )
        return len(self.nodes) - 1

    def _parameter_bytes(self, aval: Any, placements: Placements) -> Float[np.ndarray, " choices"]:
        """Itself and its gradient, and the state of the optimizer, which may be split further."""
        whole = float(aval_bytes(aval))
        if not self.split_state:
            return self.parameter_copies * whole / self.mesh.shards(placements)
        own = min(self.parameter_copies, 2.0)
        state = whole / self.mesh.shards(spread_axes(aval.shape, placements, self.mesh))
        return own * whole / self.mesh.shards(placements) + (self.parameter_copies - own) * state

    def _decide(self, eqn: core.JaxprEqn, uses: Sequence[ChosenValue | None]) -> None:
        rule = rule_of(eqn)
        ways = equation_strategies(rule, self.mesh)
        aval = eqn.outvars[0].aval
        to = np.array(rule.dimension_of(rule.results[0]))
        running, placed = to[ways.factors], to[ways.placed]
        sums = (ways.factors != WHOLE) & (running == WHOLE)
        differentiable = is_float(aval) and any(use is not None and use.differentiable for use in uses)
        cost = forward = self.mesh.move_s(aval_bytes(aval), running, placed, sums)
        if differentiable:
            cost = cost + self.mesh.move_s(aval_bytes(aval), placed, np.where(sums, WHOLE, running))
        cost = cost + self.again * forward
        passes = 1 + self.again + sum(use is not None and use.differentiable for use in uses)
        flop = passes * eqn_flop(eqn) if eqn.primitive.name in PRODUCTS else 0.0
        compute = self.scale * flop / self.mesh.flop_per_s / self.mesh.shards(ways.factors)
        if flop:
            compute = compute + self.scale * passes * self.mesh.launch_s
        memory = self.scale * aval_bytes(aval) / self.mesh.shards(placed)
        forward = self.scale * forward + compute / passes
        label = f"{eqn.primitive.name} {aval.str_short()}"
        shapes = tuple(atom.aval.shape for atom in [*eqn.invars, *eqn.outvars])
        self.nodes.append(
            DecisionNode(
                label, placed, self.scale * cost, compute, memory, np.zeros(len(memory)), forward, ways, rule, shapes
            )
        )
        node = len(self.nodes) - 1
        self._wire(eqn, uses, node, rule, ways.factors, (placed,), (np.where(sums, WHOLE, running),), chooses=True)

    def _follow(self, eqn: core.JaxprEqn, uses: Sequence[ChosenValue | None]) -> None:
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
            if sums.any():
                summed = self.scale * self.mesh.move_s(aval_bytes(var.aval), placed, placed, sums)
                node.communication_s += (1.0 + self.again) * summed
                node.forward_s += summed
            if eqn.primitive.name in SUMS_OF_RANKS:
                taken = self.scale * self._over_ranks(var.aval, placed)
                node.communication_s += taken * (2.0 if leader.differentiable else 1.0)
                node.forward_s += taken
            if eqn.primitive.name not in NOT_KEPT and is_float(var.aval) and leader.differentiable:
                node.memory_bytes += self.scale * aval_bytes(var.aval) / self.mesh.shards(placed)
            results.append(placed)
        self._wire(eqn, uses, leader.node, rule, factors, tuple(results), tuple(results))

    def _wire(
        self,
        eqn: core.JaxprEqn,
        uses: Sequence[ChosenValue | None],
        node: int,
        rule: SplitRule,
        factors: Placements,
        results: tuple[Placements, ...],
        made: tuple[Placements, ...],
        *,
        chooses: bool = False,
    ) -> None:
        """Edges to the operands, and what the results are."""
        wanted: list[Placements | None] = []
        taken: list[Operand | None] = []
        for atom, use, dims in zip(eqn.invars, uses, rule.operands, strict=True):
            taken.append(None)
            target = np.array(rule.dimension_of(dims))[factors]
            wanted.append(None if use is None else target)
            if use is not None:
                # Its gradient is a sum over what is split here and is no dimension of it.
                sums = (factors != WHOLE) & (target == WHOLE)
                if chooses and use.dims is None:
                    taken[-1] = one = Operand(
                        var=atom,
                        use=use,
                        node=node,
                        target=target,
                        sums=sums,
                        scale=self.scale,
                        again=self.again,
                        adds=eqn.primitive.name == "dot_general",
                        sizes=tuple(self.mesh.sizes.tolist()),
                    )
                    self.operands.append(one)
                else:
                    self.edge(use, node, target, sums)
        known = [use for use in uses if use is not None]
        for var, placed in zip(eqn.outvars, results, strict=True):
            self.values[var] = ChosenValue(
                node=node,
                placements=placed,
                size_bytes=aval_bytes(var.aval),
                differentiable=is_float(var.aval) and any(use.differentiable for use in known),
                depth=1 + max(use.depth for use in known),
                parameter=all(use.parameter for use in known),
            )
        self.sites.append(
            EquationSite(
                eqn=eqn,
                given=tuple(None if use is None else HeldValue(node=use.node, placements=use.seen()) for use in uses),
                operands=tuple(None if rows is None else HeldValue(node=node, placements=rows) for rows in wanted),
                made=tuple(HeldValue(node=node, placements=rows) for rows in made),
                results=tuple(HeldValue(node=node, placements=rows) for rows in results),
                taken=tuple(taken),
            )
        )

    def edge(self, use: ChosenValue, node: int, target: Placements, sums: Bool[np.ndarray, "... axes"]) -> None:
        """Bring an operand to where an equation wants it, and its gradient back.

        Args:
            use: the operand.
            node: the node that takes it.
            target: the target where it wants it.
            sums: axes along which its gradient is a sum still to be taken, for each choice of the node, or for each of
                the operand and of the node.
        """
        if use.dims is not None:
            inner = np.array([*use.dims, WHOLE])[target]
            sums, target = sums | ((target != WHOLE) & (inner == WHOLE)), inner
        if use.node == node and np.array_equal(use.placements, target) and not sums.any():
            return
        if use.node == node:
            there, back = self._moved(use, use.placements, target, sums)
            self.nodes[node].communication_s += (1.0 + self.again) * there + back
            self.nodes[node].forward_s += there
            return
        there, back = self._moved(use, use.placements[:, None], target[None], sums)
        pair = (use.node, node)
        if use.node > node:
            pair, there, back = (node, use.node), there.T, np.transpose(back)
        self.edges[pair] = self.edges.get(pair, 0.0) + (1.0 + self.again) * there + back
        self.forward_edges[pair] = self.forward_edges.get(pair, 0.0) + there

    def _moved(self, use: ChosenValue, source: Any, target: Any, sums: Any) -> tuple[Any, Any]:
        """Seconds of the way there in the forward, and of the gradient's way back."""
        there = self.scale * self.mesh.move_s(use.size_bytes, source, target)
        if not use.differentiable:
            return there, np.zeros_like(there)
        if use.dims is not None:
            # No sum is scattered over a dimension that one row of a stack does not have.
            source = np.where(np.isin(source, use.dims), source, WHOLE)
        back = self.mesh.move_s(use.size_bytes, target, source, sums)
        return there, self.scale * (self.syncs if use.parameter else 1.0) * back

    def _broadcast(self, eqn: core.JaxprEqn, use: ChosenValue | None) -> None:
        assert use is not None
        shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
        dims = [WHOLE] * len(shape)
        for inner, place in enumerate(places):
            if eqn.invars[0].aval.shape[inner] == shape[place]:
                dims[place] = inner if use.dims is None else use.dims[inner]
        self.values[eqn.outvars[0]] = replace(use, dims=tuple(dims))


def graph_of(
    program: core.Jaxpr,
    parameters: Sequence[core.Var],
    mesh: LogicalMesh,
    *,
    parameter_copies: float = 1.0,
    syncs: float = 1.0,
    split_state: bool = False,
    carried: Sequence[core.Var] = (),
    ranks: Sequence[MeshAxis] = (),
    rank_syncs: float = 1.0,
) -> DecisionGraph:
    """What is to be decided about a forward program, priced with its backward.

    Args:
        program: the program of a stage or a whole loss.
        parameters: operands that are differentiated.
        mesh: its axes.
        parameter_copies: bytes kept for each byte of a parameter.
        syncs: all-reduces of a gradient for each micro-batch.
        split_state: whether optimizer state is split over every axis that divides it.
        carried: operands that the stage before made; those with gradients send them back.
        ranks: axes beside the mesh, whose ranks run the program for samples of their own.
        rank_syncs: all-reduces of a gradient over them for each micro-batch.
    """
    graph = DecisionGraph(
        mesh=mesh,
        parameter_copies=parameter_copies,
        syncs=syncs,
        split_state=split_state,
        ranks=tuple(ranks),
        rank_syncs=rank_syncs,
    )
    kept, handed = set(parameters), set(carried)
    for var in program.invars:
        differentiable = var in kept or (var in handed and is_float(var.aval))
        graph.operand(var, differentiable=differentiable, parameter=var in kept)
    graph.read(program.eqns)
    share_operands(graph)
    return graph
