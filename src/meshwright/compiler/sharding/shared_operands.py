"""Values that several equations take which choose for themselves: moved once for all that want them in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from meshwright.compiler.sharding.cost import LogicalMesh, Placements
from meshwright.compiler.sharding.nodes import ChosenValue, DecisionNode, MovedValue, Operand
from meshwright.compiler.sharding.strategies import moved_once
from meshwright.shapes import Bool


class OfOperands(Protocol):
    """A graph whose products wait for their operands."""

    mesh: LogicalMesh
    nodes: list[DecisionNode]
    operands: list[Operand]
    scale: float
    again: float

    def edge(self, use: ChosenValue, node: int, target: Placements, sums: Bool[np.ndarray, "... axes"]) -> None:
        """Bring an operand to where an equation wants it, and its gradient back."""
        ...


def share_operands(graph: OfOperands) -> None:
    """Edges to the operands of equations that choose.

    A value that several of them take may go to them by way of one move: where they want it in the same place it
    arrives once, and their gradients are added before they are summed over devices. Queries, keys and values of a
    block read its input so. The move is a decision of its own: to where, and along which axes the gradient that comes
    back is a sum still to be taken.

    Args:
        graph: all of whose equations have been read.
    """
    # Equal layers may be calls of one program, whose variables then stand for a value of each.
    takers: dict[tuple[Any, int], list[Operand]] = {}
    for one in graph.operands:
        takers.setdefault((one.var, id(one.use)), []).append(one)
    for own in takers.values():
        use, graph.scale, graph.again = own[0].use, own[0].scale, own[0].again
        moved = _moved_once(graph, own) if graph.mesh.axes and len({one.node for one in own}) > 1 else None
        if moved is not None:
            use = replace(use, node=moved.node, placements=graph.nodes[moved.node].placements)
        for one in own:
            graph.again, sums = one.again, one.sums[None]
            if moved is not None and one.adds:
                # What is summed on the way back to the value needs no sum of its own.
                one.through, sums = moved, sums & ~moved.sums[:, None]
            graph.edge(use, one.node, one.target, sums)
    graph.scale, graph.again = 1.0, 0.0


def _moved_once(graph: OfOperands, takers: list[Operand]) -> MovedValue:
    use = takers[0].use
    wanted = [(one.target, one.sums & one.adds & use.differentiable) for one in takers]
    placements, sums = moved_once(use.placements, wanted)
    label, nothing = f"moved for {len(takers)} operators", [np.zeros(len(placements)) for _ in range(5)]
    graph.nodes.append(DecisionNode(label, placements, nothing[0], nothing[1], nothing[2], nothing[3], nothing[4]))
    node = len(graph.nodes) - 1
    graph.edge(use, node, placements, sums)
    return MovedValue(node=node, sums=sums)
