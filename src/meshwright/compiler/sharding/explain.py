"""Why an operator is split so: what its way costs, and what the next best way would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.compiler.sharding.graph import DecisionGraph
from meshwright.compiler.sharding.nodes import DecisionNode
from meshwright.compiler.sharding.problem import ChoiceProblem, Decision
from meshwright.compiler.sharding.solve import solve_choices


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChoice:
    """The decision about one operator."""

    operator: str
    chosen: str
    """Dimensions of operands and result with the axes that split them: `16/x,64 @ 64,256/y -> 16/x,256/y`."""
    communication_s: float
    """Communication of the operator itself, forward and backward."""
    compute_s: float
    next_best: str | None
    """The way that costs least of the others; None where there is no other."""
    loss_s: float
    """How much more the stage takes with it, everything else chosen anew."""


def operator_choices(graph: DecisionGraph, solution: Decision, axes: Sequence[str]) -> list[OperatorChoice]:
    """The decision about each operator that chooses for itself, in program order.

    Args:
        graph: the graph of a stage.
        solution: the solution of its problem.
        axes: names of the axes of the mesh.
    """
    problem = graph.problem()
    found = []
    for number, node in enumerate(graph.nodes):
        if node.strategies is None:
            continue
        own = solution.choice[number]
        ways = node.strategies.factors
        others = np.flatnonzero((ways != ways[own]).any(axis=1))
        best, loss = None, 0.0
        if len(others):
            anew = solve_choices(_limited(problem, number, others))
            best = _spelled(node, int(others[anew.choice[number]]), axes)
            loss = anew.objective_s - solution.objective_s
        found.append(
            OperatorChoice(
                operator=node.label,
                chosen=_spelled(node, own, axes),
                communication_s=float(node.communication_s[own]),
                compute_s=float(node.compute_s[own]),
                next_best=best,
                loss_s=loss,
            )
        )
    return found


def explained_sharding(graph: DecisionGraph, solution: Decision, axes: Sequence[str]) -> str:
    """The same as text, one line an operator.

    Args:
        graph: the graph of a stage.
        solution: the solution of its problem.
        axes: names of the axes of the mesh.
    """
    sizes = ", ".join(f"{name}={axis.size}" for name, axis in zip(axes, graph.mesh.axes, strict=False))
    lines = [
        f"mesh {sizes}: {solution.objective_s:.4g} s a micro-batch, {solution.memory_bytes:.4g} bytes a device,"
        + (f" at most {solution.gap_s:.3g} s from the best" if solution.gap_s else f" exact by {solution.method}")
    ]
    lines.append(f"  devices and links: {graph.mesh.source}")
    for one in operator_choices(graph, solution, axes):
        other = "no other way" if one.next_best is None else f"next {one.next_best} costs {one.loss_s:+.3g} s"
        price = f"computes {one.compute_s:.3g} s, sends {one.communication_s:.3g} s"
        lines.append(f"  {one.operator}  {one.chosen}  {price};  {other}")
    return "\n".join(lines)


def _limited(problem: ChoiceProblem, node: int, kept: np.ndarray) -> ChoiceProblem:
    """The problem with fewer choices of one node."""
    costs, memory = list(problem.costs), list(problem.memory)
    costs[node], memory[node] = costs[node][kept], memory[node][kept]
    edges = {
        (u, v): table[kept] if u == node else table[:, kept] if v == node else table
        for (u, v), table in problem.edges.items()
    }
    return ChoiceProblem(costs=tuple(costs), memory=tuple(memory), edges=edges)


def _spelled(node: DecisionNode, choice: int, axes: Sequence[str]) -> str:
    """Shapes with the axes behind the dimensions they split."""
    assert node.strategies is not None
    assert node.rule is not None
    factors = node.strategies.factors[choice]
    texts = []
    for shape, dims in zip(node.shapes, [*node.rule.operands, *node.rule.results], strict=True):
        names = ["".join(axes[a] for a, factor in enumerate(factors) if factor == dim and dim >= 0) for dim in dims]
        texts.append(",".join(f"{size}/{name}" if name else f"{size}" for size, name in zip(shape, names, strict=True)))
    return " @ ".join(texts[:-1]) + " -> " + texts[-1]
