"""In how many parts operators run, and why none is split where every device does all the work."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshwright.compiler.sharding.graph import DecisionGraph
from meshwright.compiler.sharding.solve import reduced, solve_choices
from meshwright.units import seconds


def operator_parts(graph: DecisionGraph, choice: Sequence[int]) -> tuple[int, ...]:
    """Parts into which devices share each operator that chooses for itself, in program order; 1: each does all of it.

    Args:
        graph: the graph of a stage.
        choice: the choice of each node.
    """
    ranks = prod(axis.size for axis in graph.ranks)
    return tuple(
        ranks * int(graph.mesh.shards(node.strategies.factors[[own]])[0])
        for node, own in zip(graph.nodes, choice, strict=True)
        if node.strategies is not None
    )


def why_undivided(graph: DecisionGraph, choice: Sequence[int]) -> str | None:
    """What is said where devices share no product: what they all compute, and what sharing it would take.

    Args:
        graph: the graph of a stage.
        choice: the choice of each node.

    Returns:
        The sentence; None where some product is shared, there is none, or there is one device.
    """
    products = [
        number for number, node in enumerate(graph.nodes) if node.strategies is not None and node.compute_s.any()
    ]
    ways = {number: _shards(graph, number) for number in products}
    devices = prod(axis.size for axis in graph.mesh.axes)
    if devices == 1 or not products or graph.ranks or any(ways[number][choice[number]] > 1 for number in products):
        return None
    many = f"none of {len(products)} products is split" if len(products) > 1 else "its one product is not split"
    said = f"{many} over {devices} devices: every device does all the work"
    shared = {number: np.flatnonzero(shards > 1) for number, shards in ways.items()}
    if not any(len(left) for left in shared.values()):
        return f"{said}, as {devices} divides none of their dimensions; a batch that it divides would be shared"
    problem = graph.problem()
    kept = [
        left if len(left := shared.get(number, np.arange(0))) else np.arange(len(cost))
        for number, cost in enumerate(problem.costs)
    ]
    found = solve_choices(reduced(problem, kept))
    compute_s = sum(float(node.compute_s[own[s]]) for node, own, s in zip(graph.nodes, kept, found.choice, strict=True))
    return (
        f"{said}, {seconds(problem.value(choice))} a micro-batch; split, it would take {seconds(found.objective_s)},"
        f" {seconds(found.objective_s - compute_s)} of it traffic (devices and links: {graph.mesh.source})"
    )


def _shards(graph: DecisionGraph, number: int) -> np.ndarray:
    """Parts of an operator, by its choices."""
    strategies = graph.nodes[number].strategies
    assert strategies is not None
    return graph.mesh.shards(strategies.factors)
