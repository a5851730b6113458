"""One choice per node, costs of nodes and of pairs of nodes: what the solver minimises, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChoiceProblem:
    """Choose s[v] for each node v to minimise sum_v cost[v][s_v] + sum_(u,v) edge[u,v][s_u, s_v]."""

    costs: tuple[Float[np.ndarray, " choices"], ...]
    """Seconds of each node, by choice."""
    memory: tuple[Float[np.ndarray, " choices"], ...]
    """Bytes of each node on one device, by choice."""
    edges: Mapping[Pair, Float[np.ndarray, "choices choices"]]
    """Seconds of resharding between nodes u < v, by their choices."""

    def value(self, choice: Sequence[int]) -> float:
        """Objective of a choice, seconds.

        Args:
            choice: the choice of each node.
        """
        own = sum(float(cost[s]) for cost, s in zip(self.costs, choice, strict=True))
        return own + sum(float(table[choice[u], choice[v]]) for (u, v), table in self.edges.items())

    def memory_of(self, choice: Sequence[int]) -> float:
        """Bytes on one device.

        Args:
            choice: the choice of each node.
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
