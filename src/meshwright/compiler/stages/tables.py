"""One layer on one logical mesh: the best sharding for every placement of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from jax.extend import core

from meshwright.compiler.cost import bytes_of
from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.sharding.cost import LogicalMesh
from meshwright.compiler.sharding.graph import DecisionGraph, graph_of
from meshwright.compiler.sharding.problem import ChoiceProblem, Pair
from meshwright.compiler.sharding.solve import best_for_each, reduced, undominated_choices
from meshwright.shapes import Bool, Float, Int

MOST_PLACEMENTS = 256
"""Joint placements of a border; of more values, the smallest are passed on free of charge."""
PRICES = (0.0, 0.1, 10.0)
"""Prices of a byte, in units of the layer's seconds by its bytes when bytes cost nothing."""

Border = Float[np.ndarray, "handed_in handed_on"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LayerTable:
    """A layer for one price of memory: what its best choice takes, by placements of its borders."""

    objective_s: Border
    """Seconds and the price of bytes: what is minimised."""
    total_s: Border
    """Forward and backward of one micro-batch, recomputation with them."""
    forward_s: Border
    state_bytes: Border
    """Bytes on one device that do not depend on the micro-batches in flight."""
    kept_bytes: Border
    """Bytes on one device for each micro-batch in flight."""
    transient_bytes: Border
    """Bytes on one device while the layer runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What prices depend on beside the mesh."""

    parameter_copies: float
    """Bytes kept for each byte of a parameter."""
    syncs: float
    """Reductions of a gradient for each micro-batch."""
    split_state: bool = True
    """Whether optimizer state is split over all devices of a stage."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LayerProblem:
    """What is to be decided about a layer, and the nodes at its borders."""

    graph: DecisionGraph
    handed_in: tuple[int, ...]
    handed_on: tuple[int, ...]
    inputs: Bool[np.ndarray, " nodes"]
    """Nodes that are operands of the layer."""

    @classmethod
    def of(cls, layer: CutStage, mesh: LogicalMesh, terms: Terms) -> LayerProblem:
        """Read a layer.

        Args:
            layer: its program.
            mesh: the mesh on which it runs.
            terms: the terms of the whole plan.
        """
        program = layer.program.jaxpr
        start = len(layer.parameters)
        carried = program.invars[start : start + len(layer.carried_in)]
        graph = graph_of(
            program,
            program.invars[:start],
            mesh,
            parameter_copies=terms.parameter_copies,
            syncs=terms.syncs,
            split_state=terms.split_state,
            carried=carried,
        )
        inputs = {var: value.node for var in program.invars if (value := graph.values[var]) is not None}
        made = [atom for atom in program.outvars[: len(layer.carried_out)] if isinstance(atom, core.Var)]
        handed_on = {var: node for var in made if (node := graph.border(var)) is not None}
        is_input = np.zeros(len(graph.nodes), bool)
        is_input[list(inputs.values())] = True
        return cls(
            graph=graph,
            handed_in=_border(graph, {var: inputs[var] for var in carried}),
            handed_on=_border(graph, handed_on),
            inputs=is_input,
        )

    def whole_bytes(self) -> tuple[float, float, float]:
        """Bytes of the layer on all of its devices together, at least: state, its inputs, all activations."""
        state = sum(float(node.state_bytes.max()) for node in self.graph.nodes)
        activations = [float((node.memory_bytes - node.state_bytes).max()) for node in self.graph.nodes]
        handed = sum(size for size, is_input in zip(activations, self.inputs, strict=True) if is_input)
        return state, handed, sum(activations)

    def tables(self, prices: Sequence[float], *, recompute: bool) -> tuple[LayerTable, ...]:
        """The layer for every price of memory, the first of which is 0.

        Args:
            prices: the prices of a byte, in units of the layer's seconds by its bytes when bytes cost nothing.
            recompute: whether its forward runs again before its backward, so that only its inputs is kept.
        """
        problem = self.graph.problem(recompute=recompute)
        # A choice that takes no less time and no less memory than another is best at no price.
        useful = undominated_choices(problem, by_memory=True, whole=[*self.handed_in, *self.handed_on])
        found: list[LayerTable] = []
        for price in prices:
            scale = 0.0
            if price:
                free = found[0]
                least = np.unravel_index(np.argmin(free.objective_s), free.objective_s.shape)
                held = free.state_bytes[least] + free.kept_bytes[least] + free.transient_bytes[least]
                scale = price * float(free.total_s[least]) / max(float(held), 1.0)
            found.append(self._table(problem, useful, recompute, scale))
        return tuple(found)

    def _table(
        self, problem: ChoiceProblem, useful: Sequence[Int[np.ndarray, " kept"]], recompute: bool, price: float
    ) -> LayerTable:
        graph = self.graph
        small = reduced(problem, useful)
        costs = tuple(cost + price * memory for cost, memory in zip(small.costs, small.memory, strict=True))
        priced = ChoiceProblem(costs=costs, memory=small.memory, edges=small.edges)
        borders = [*self.handed_in, *self.handed_on]
        left = undominated_choices(priced, whole=borders)
        choice = best_for_each(reduced(priced, left), borders)
        chosen = [first[own][picked] for first, own, picked in zip(useful, left, choice, strict=True)]
        shape = tuple(
            prod(len(graph.nodes[node].placements) for node in side) for side in (self.handed_in, self.handed_on)
        )

        def of_nodes(columns: Sequence[Float[np.ndarray, " choices"]]) -> Border:
            summed = sum((column[own] for column, own in zip(columns, chosen, strict=True)), np.zeros(()))
            return np.asarray(summed).reshape(shape)

        def of_edges(edges: Mapping[Pair, Float[np.ndarray, "choices choices"]]) -> Border:
            summed = sum((table[chosen[u], chosen[v]] for (u, v), table in edges.items()), np.zeros(choice[0].shape))
            return np.asarray(summed).reshape(shape)

        total_s = of_nodes(problem.costs) + of_edges(problem.edges)
        activations = [node.memory_bytes - node.state_bytes for node in graph.nodes]
        own = of_nodes(activations)
        handed = of_nodes([size * is_input for size, is_input in zip(activations, self.inputs, strict=True)])
        return LayerTable(
            objective_s=total_s + price * of_nodes(problem.memory),
            total_s=total_s,
            forward_s=of_nodes([node.forward_s for node in graph.nodes]) + of_edges(graph.forward_edges),
            state_bytes=of_nodes([node.state_bytes for node in graph.nodes]),
            kept_bytes=handed if recompute else own,
            transient_bytes=own - handed if recompute else np.zeros(shape),
        )


def _border(graph: DecisionGraph, nodes: Mapping[core.Var, int]) -> tuple[int, ...]:
    """Nodes of the largest values of a border, as many as fit into one table, in the order of the border."""
    chosen: list[int] = []
    for var in sorted(nodes, key=bytes_of, reverse=True):
        if prod(len(graph.nodes[node].placements) for node in [*chosen, nodes[var]]) <= MOST_PLACEMENTS:
            chosen.append(nodes[var])
    return tuple(node for node in nodes.values() if node in chosen)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Joined:
    """Layers one behind the other, by placement of the outputs of the last one."""

    objective_s: Float[np.ndarray, " handed_on"]
    columns: Float[np.ndarray, "columns handed_on"]
    """Seconds, seconds of the forward, bytes of state, kept bytes, transient bytes of the choice of least objective."""

    def best(self) -> Float[np.ndarray, " columns"]:
        """Columns of the best placement."""
        return self.columns[:, int(np.argmin(self.objective_s))]


def columns_of(table: LayerTable) -> Float[np.ndarray, "columns handed_in handed_on"]:
    """The parts of a table in one array.

    Args:
        table: the table of a layer.
    """
    return np.stack([table.total_s, table.forward_s, table.state_bytes, table.kept_bytes, table.transient_bytes])


def joined_layers(
    before: Joined | None, objective_s: Border, columns: Float[np.ndarray, "columns handed_in handed_on"]
) -> Joined:
    """One more layer: the best placement between it and those before it, for each of its outputs.

    Args:
        before: layers so far; None for none.
        objective_s: the objective seconds of the layer.
        columns: the columns of the layer.
    """
    way = objective_s if before is None else before.objective_s[:, None] + objective_s
    best: Int[np.ndarray, " handed_on"] = way.argmin(axis=0)
    on = np.arange(way.shape[1])
    found = columns[:, best, on]
    if before is not None:
        earlier = before.columns[:, best]
        transient = np.maximum(found[4], earlier[4])
        found = found + earlier
        found[4] = transient
    return Joined(objective_s=way[best, on], columns=found)
