"""One choice per node, costs of nodes and of pairs of nodes: what the solver minimises, and what it found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChoiceProblem:
    """Choose s[v] for each node v to minimise sum_v cost[v][s_v] + sum_(u,v) edge[u,v][s_u, s_v]."""

    costs: tuple[Float[np.ndarray, " choices"], ...]
    """Of each node, seconds."""
    memory: tuple[Float[np.ndarray, " choices"], ...]
    """Of each node, bytes on one device."""
    edges: Mapping[Pair, Float[np.ndarray, "choices choices"]]
    """Of pairs u < v, seconds."""

    def value(self, choice: Sequence[int]) -> float:
        """Objective of a choice, seconds.

        Args:
            choice: of each node.
        """
        own = sum(float(cost[s]) for cost, s in zip(self.costs, choice, strict=True))
        return own + sum(float(table[choice[u], choice[v]]) for (u, v), table in self.edges.items())

    def memory_of(self, choice: Sequence[int]) -> float:
        """Bytes on one device.

        Args:
            choice: of each node.
        """
        return sum(float(memory[s]) for memory, s in zip(self.memory, choice, strict=True))

    def neighbours(self) -> dict[int, set[int]]:
        """Nodes that share an edge with each node."""
        found: dict[int, set[int]] = {node: set() for node in range(len(self.costs))}
        for u, v in self.edges:
            found[u].add(v)
            found[v].add(u)
        return found


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Decision:
    """An optimal choice."""

    choice: tuple[int, ...]
    objective_s: float
    memory_bytes: float
    method: str
    """`elimination`; where the memory budget binds `milp`, or `lagrangian` where that is too large."""
    gap_s: float = 0.0
    """How much less another choice could cost at most; 0 for what is proven optimal."""


def equal_choices(problem: ChoiceProblem, rounds: int = 3) -> tuple[ChoiceProblem, tuple[int, ...]]:
    """The problem with one choice for nodes that look alike, and the class of each node.

    Colour refinement: nodes are alike that have the same costs and, `rounds` edges deep, alike neighbours behind the
    same edges. Of repeated layers, those at the ends keep choices of their own and those between share one, so a plan
    of many layers is found, and read, as fast as a plan of a few.

    Args:
        problem: with repeated parts.
        rounds: how far nodes are compared.

    Returns:
        The smaller problem, whose every choice is a choice of the whole with the same objective, and the class of each
        node in it.

    Source: Weisfeiler and Leman (1968).
    """
    around: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for (u, v), table in problem.edges.items():
        around[u].append((table.tobytes(), v))
        around[v].append((np.ascontiguousarray(table.T).tobytes(), u))
    keys: list[object] = [
        (cost.tobytes(), memory.tobytes()) for cost, memory in zip(problem.costs, problem.memory, strict=True)
    ]
    colours = _numbered(keys)
    for _ in range(rounds):
        keys = [
            (colour, tuple(sorted((edge, colours[v]) for edge, v in around[u]))) for u, colour in enumerate(colours)
        ]
        colours = _numbered(keys)
    # A class has one table per pair; nodes of a class that are neighbours agree, which costs the diagonal.
    count = max(colours, default=-1) + 1
    costs = [np.zeros(0)] * count
    memory = [np.zeros(0)] * count
    for node, colour in enumerate(colours):
        first = not costs[colour].size
        costs[colour] = problem.costs[node] + (0.0 if first else costs[colour])
        memory[colour] = problem.memory[node] + (0.0 if first else memory[colour])
    edges: dict[Pair, Float[np.ndarray, "choices choices"]] = {}
    for (u, v), table in problem.edges.items():
        a, b = colours[u], colours[v]
        if a == b:
            costs[a] = costs[a] + np.diagonal(table)
        else:
            pair, oriented = ((a, b), table) if a < b else ((b, a), table.T)
            edges[pair] = edges[pair] + oriented if pair in edges else oriented
    return ChoiceProblem(costs=tuple(costs), memory=tuple(memory), edges=edges), tuple(colours)


def _numbered(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
