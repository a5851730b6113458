"""A problem of choices, minimised over one node after the other."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np

from meshwright.compiler.sharding.problem import ChoiceProblem
from meshwright.shapes import Float, Int

MOST_SUMS = 100_000_000
"""Sums of which a table of the elimination holds the least; beyond it the MILP is as exact and quicker."""
LARGEST_TABLE = 15_000_000
"""Entries of a table of the elimination."""

Scope = tuple[int, ...]
Table = tuple[Scope, Float[np.ndarray, "..."]]


def eliminated(problem: ChoiceProblem, kept: Sequence[int] = ()) -> list[Int[np.ndarray, "..."]] | None:
    """Minimise over one node after the other, smallest table first, but not over those that are kept.

    Args:
        problem: what to decide.
        kept: nodes whose every choice is wanted.

    Returns:
        Best choice of every node, with one axis for each kept node; None where a table grows too large.

    Source: Bertele and Brioschi, "Nonserial Dynamic Programming" (1972).
    """
    sizes = [len(cost) for cost in problem.costs]
    # An array has at most 64 axes: nodes that have nothing to choose get none.
    single = {node for node, size in enumerate(sizes) if size == 1}
    around = {node: near - single for node, near in problem.neighbours().items() if node not in single}
    order = _order(around, sizes, kept)
    if order is None:
        return None
    waiting = _tables(problem, single)
    grid = np.indices([sizes[node] for node in kept])
    combinations = math.prod(grid.shape[1:])
    gone: list[tuple[int, Scope, list[Table], Int[np.ndarray, "..."] | None]] = []
    # A table waits at each of its nodes and is summed at the first of them that goes.
    spent: set[int] = set()
    for node, scope in order:
        own = [(axes, table) for axes, table in waiting[node] if id(table) not in spent]
        spent.update(id(table) for _, table in own)
        shape = tuple(sizes[other] for other in scope)
        if math.prod(shape) <= combinations:
            total = sum((_aligned(axes, table, (*scope, node)) for axes, table in own), np.zeros((*shape, sizes[node])))
            message, best = total.min(axis=-1), total.argmin(axis=-1)
            gone.append((node, scope, [], best))
        else:
            # Its best choices are asked for fewer times than the table has entries.
            message = _least(node, scope, own, shape)
            gone.append((node, scope, own, None))
        for other in scope:
            waiting[other].append((scope, message))
    choice = [np.zeros(grid.shape[1:], np.int64)] * len(sizes)
    for axis, node in enumerate(kept):
        choice[node] = grid[axis]
    for node, scope, own, best in reversed(gone):
        picked = _picked(node, sizes[node], own, choice) if best is None else best[tuple(choice[v] for v in scope)]
        choice[node] = np.broadcast_to(picked, grid.shape[1:])
    return choice


def _picked(
    node: int, size: int, tables: Sequence[Table], choice: Sequence[Int[np.ndarray, "..."]]
) -> Int[np.ndarray, "..."]:
    """Best choice of a node beside choices of its neighbours."""
    each = np.arange(size).reshape(-1, *[1] * choice[node].ndim)
    total: Float[np.ndarray, "..."] = np.zeros(())
    for axes, table in tables:
        total = total + table[tuple(each if other == node else choice[other][None] for other in axes)]
    return total.argmin(axis=0)


def _order(around: Mapping[int, set[int]], sizes: Sequence[int], kept: Sequence[int]) -> list[tuple[int, Scope]] | None:
    """Nodes in the order in which they go, least table left behind first, and their neighbours then."""
    near = {node: set(others) for node, others in around.items()}

    def left_behind(node: int) -> float:
        return math.prod(float(sizes[other]) for other in near[node])

    queue = [(left_behind(node), node) for node in near if node not in kept]
    heapq.heapify(queue)
    order: list[tuple[int, Scope]] = []
    done = set(kept)
    while queue:
        size, node = heapq.heappop(queue)
        if node in done or size != left_behind(node):
            continue
        if size > LARGEST_TABLE or size * sizes[node] > MOST_SUMS:
            return None
        done.add(node)
        scope = tuple(sorted(near[node]))
        order.append((node, scope))
        for other in scope:
            near[other].discard(node)
            near[other].update(each for each in scope if each != other)
        for other in scope:
            if other not in done:
                heapq.heappush(queue, (left_behind(other), other))
    return order


def _tables(problem: ChoiceProblem, single: set[int]) -> list[list[Table]]:
    """Tables of every node: its costs and the edges at it."""
    waiting: list[list[Table]] = [[((node,), cost)] for node, cost in enumerate(problem.costs)]
    for (u, v), table in problem.edges.items():
        if u in single:
            waiting[v].append(((v,), table[0]))
        elif v in single:
            waiting[u].append(((u,), table[:, 0]))
        else:
            for node in (u, v):
                waiting[node].append(((u, v), table))
    return waiting


def _least(node: int, scope: Scope, tables: Sequence[Table], shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """Least over a node of the sum of tables, for every choice of its neighbours.

    The smallest are summed first, and only two are left to be summed at full size, one choice of the node at a time.
    """
    rows = sorted((_aligned(axes, table, (node, *scope)) for axes, table in tables), key=lambda table: table.size)
    small = sum(rows[1:-1], start=rows[0])
    large = rows[-1] if len(rows) > 1 else np.zeros([1] * (1 + len(scope)))
    count = max(len(small), len(large))
    found, held = np.full(shape, np.inf), np.empty(shape)
    for pick in range(count):
        np.add(small[min(pick, len(small) - 1)], large[min(pick, len(large) - 1)], out=held)
        np.minimum(found, held, out=found)
    return found


def _aligned(own: Scope, table: Float[np.ndarray, "..."], scope: Scope) -> Float[np.ndarray, "..."]:
    """A table with one axis for each node of the scope, in that order."""
    order = sorted(range(len(own)), key=lambda place: scope.index(own[place]))
    shape = iter([table.shape[place] for place in order])
    return table.transpose(order).reshape([next(shape) if node in own else 1 for node in scope])
