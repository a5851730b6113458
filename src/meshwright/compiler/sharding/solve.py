"""Exact solution of a problem of choices: prune, eliminate node after node; a MILP where memory binds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.compiler.sharding.elimination import eliminated
from meshwright.compiler.sharding.problem import ChoiceProblem, Decision
from meshwright.errors import InfeasibleError
from meshwright.shapes import Bool, Float, Int

LARGEST_PROGRAM = 100_000
"""Edge variables of a MILP; HiGHS takes minutes for more, and the price of a byte is searched instead."""
SMALL_CUBE = 100_000
"""Differences that are taken at once rather than column by column."""
ROUNDS = 20
"""Prices tried."""
MOST_REMEMBERED = 128
"""Tables whose least differences are kept."""


def solve_choices(problem: ChoiceProblem, memory_bytes: float | None = None) -> Decision:
    """The choice of least objective that fits into memory.

    Args:
        problem: what to decide.
        memory_bytes: the bytes of memory of one device; unlimited without it.

    Raises:
        InfeasibleError: no choice fits, with the least that one needs.
    """
    if memory_bytes is not None:
        least = sum(float(memory.min()) for memory in problem.memory)
        if least > memory_bytes:
            raise InfeasibleError(
                what=f"the stage needs at least {least:.4g} bytes on each device, {memory_bytes:.4g} are allowed",
                why="every value is already split over as many devices as divide it",
                fix="more devices, more micro-batches, or a larger memory_bytes",
                field="memory_bytes",
            )
    kept = undominated_choices(problem, by_memory=False)
    choice = _eliminate(reduced(problem, kept))
    if choice is not None:
        whole = _restored(choice, kept)
        if memory_bytes is None or problem.memory_of(whole) <= memory_bytes:
            return _solution(problem, whole, "elimination")
    kept = undominated_choices(problem, by_memory=memory_bytes is not None)
    small = reduced(problem, kept)
    if memory_bytes is not None and sum(table.size for table in small.edges.values()) > LARGEST_PROGRAM:
        found = _lagrangian(small, memory_bytes)
        if found is not None:
            return _solution(problem, _restored(found[0], kept), "lagrangian", gap_s=found[1])
    return _solution(problem, _restored(_milp(small, memory_bytes), kept), "milp")


def _solution(problem: ChoiceProblem, choice: Sequence[int], method: str, gap_s: float = 0.0) -> Decision:
    return Decision(
        choice=tuple(choice),
        objective_s=problem.value(choice),
        memory_bytes=problem.memory_of(choice),
        method=method,
        gap_s=gap_s,
    )


# ---- pruning


def undominated_choices(
    problem: ChoiceProblem, *, by_memory: bool = False, whole: Sequence[int] = ()
) -> list[Int[np.ndarray, " kept"]]:
    """Choices of each node that may be part of an optimum.

    s is left out where some t costs no more whatever the neighbours choose:
    cost[s] - cost[t] + sum_v min_x (edge[s, x] - edge[t, x]) >= 0. One optimum always remains.

    Args:
        problem: what to decide.
        by_memory: whether a choice is left out only for one that also needs no more memory.
        whole: nodes that keep all of their choices.

    Source: Goldstein, "Efficient rotamer elimination applied to protein side-chains and related spin glasses"
    (Biophysical Journal 66, 1994), equation 2.
    """
    around = problem.neighbours()
    kept: list[Int[np.ndarray, " kept"]] = [np.arange(len(cost)) for cost in problem.costs]
    fixed = set(whole)
    waiting = list(range(len(kept)))
    queued = set(waiting)
    least = _Remembered()
    while waiting:
        node = waiting.pop()
        queued.discard(node)
        own = kept[node]
        if len(own) == 1 or node in fixed:
            continue
        cost = problem.costs[node][own]
        margin = cost[:, None] - cost[None, :]
        for other in around[node]:
            table = _edge(problem, node, other)[np.ix_(own, kept[other])]
            margin = margin + least.differences(table)
        beaten: Bool[np.ndarray, "s t"] = margin > 0
        # Of choices that are equal in every respect, the first stays.
        beaten |= (margin == 0) & (np.arange(len(own))[None, :] < np.arange(len(own))[:, None])
        if by_memory:
            memory = problem.memory[node][own]
            beaten &= memory[None, :] <= memory[:, None]
        left = own[~beaten.any(axis=1)]
        if len(left) < len(own):
            kept[node] = left
            for other in around[node] - queued:
                waiting.append(other)
                queued.add(other)
    return kept


class _Remembered:
    """Least differences of tables, those of equal layers computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, bytes], Float[np.ndarray, "s s"]] = {}

    def differences(self, table: Float[np.ndarray, "s x"]) -> Float[np.ndarray, "s s"]:
        """min_x (table[s, x] - table[t, x])."""
        form = table.shape, blake2b(table.tobytes(), digest_size=16).digest()
        if form not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[form] = _least_differences(table)
        return self._known[form]


def _least_differences(table: Float[np.ndarray, "s x"]) -> Float[np.ndarray, "s s"]:
    """min_x (table[s, x] - table[t, x])."""
    if table.size * len(table) <= SMALL_CUBE:
        return np.asarray((table[:, None] - table[None]).min(axis=-1))
    found = np.full((len(table), len(table)), np.inf)
    for column in table.T:
        np.minimum(found, column[:, None] - column[None, :], out=found)
    return found


def _edge(problem: ChoiceProblem, node: int, other: int) -> Float[np.ndarray, "own others"]:
    return problem.edges[node, other] if node < other else problem.edges[other, node].T


def reduced(problem: ChoiceProblem, kept: Sequence[Int[np.ndarray, " kept"]]) -> ChoiceProblem:
    """The problem with some choices of each node.

    Args:
        problem: the whole.
        kept: choices that are left of each node.
    """
    return ChoiceProblem(
        costs=tuple(cost[own] for cost, own in zip(problem.costs, kept, strict=True)),
        memory=tuple(memory[own] for memory, own in zip(problem.memory, kept, strict=True)),
        edges={(u, v): table[np.ix_(kept[u], kept[v])] for (u, v), table in problem.edges.items()},
    )


def _restored(choice: Sequence[int], kept: Sequence[Int[np.ndarray, " kept"]]) -> list[int]:
    return [int(own[s]) for own, s in zip(kept, choice, strict=True)]


# ---- elimination


def _eliminate(problem: ChoiceProblem) -> list[int] | None:
    """Choices of least cost; None where a table grows too large."""
    found = eliminated(problem)
    return None if found is None else [int(choice) for choice in found]


def best_for_each(problem: ChoiceProblem, kept: Sequence[int]) -> list[Int[np.ndarray, "..."]]:
    """Best choice of every node for each combination of choices of the nodes that are kept, however large the problem.

    All at once by elimination; where a table of that grows too large, one combination after the other.

    Args:
        problem: what to decide.
        kept: nodes whose every choice is wanted.

    Returns:
        The same as `eliminated`.
    """
    found = eliminated(problem, kept)
    if found is not None:
        return found
    shape = tuple(len(problem.costs[node]) for node in kept)
    choice = [np.zeros(shape, np.int64) for _ in problem.costs]
    for picked in np.ndindex(shape):
        own = [np.arange(len(cost)) for cost in problem.costs]
        for node, pick in zip(kept, picked, strict=True):
            own[node] = np.array([pick])
        left = [one[more] for one, more in zip(own, undominated_choices(reduced(problem, own)), strict=True)]
        small = reduced(problem, left)
        best = _eliminate(small)
        for node, one in enumerate(_restored(_milp(small, None) if best is None else best, left)):
            choice[node][picked] = one
    return choice


# ---- a price for memory


def _lagrangian(problem: ChoiceProblem, memory_bytes: float) -> tuple[list[int], float] | None:
    """A choice that fits and how far it may be from the best; None where the elimination is too large.

    With a price p of a byte, min (cost + p memory) - p budget is a lower bound of what fits: the price is bisected
    between the last that is too cheap to fit and the first that fits.

    Source: Everett, "Generalized Lagrange multiplier method" (Operations Research 11, 1963).
    """

    def priced(price: float) -> list[int] | None:
        costs = tuple(cost + price * memory for cost, memory in zip(problem.costs, problem.memory, strict=True))
        dearer = ChoiceProblem(costs=costs, memory=problem.memory, edges=problem.edges)
        left = undominated_choices(dearer, by_memory=False)
        found = _eliminate(reduced(dearer, left))
        return None if found is None else _restored(found, left)

    free = priced(0.0)
    if free is None:
        return None
    low, high = 0.0, max(problem.value(free), 1e-9) / memory_bytes
    best, bound = None, problem.value(free)
    for _ in range(ROUNDS):
        price = high if best is None else 0.5 * (low + high)
        choice = priced(price)
        if choice is None:
            return None
        value, memory = problem.value(choice), problem.memory_of(choice)
        bound = max(bound, value + price * (memory - memory_bytes))
        if memory > memory_bytes:
            low, high = price, (4.0 * high if best is None else high)
        else:
            high = price
            if best is None or value < problem.value(best):
                best = choice
    return None if best is None else (best, max(0.0, problem.value(best) - bound))


# ---- mixed-integer program


def _milp(problem: ChoiceProblem, memory_bytes: float | None) -> list[int]:
    """Alpa's program: one-hot choices, and for each edge a product of them that may be continuous.

    Source: Zheng et al. (OSDI 2022), section 4.2, with row and column sums of an edge equal to its ends' choices.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    sizes = np.array([len(cost) for cost in problem.costs])
    first = np.append(0, np.cumsum(sizes))
    cost = [*problem.costs]
    rows, columns, signs = [np.repeat(np.arange(len(sizes)), sizes)], [np.arange(first[-1])], [np.ones(first[-1])]
    right = [np.ones(len(sizes))]
    row, column = len(sizes), int(first[-1])
    for pair, table in problem.edges.items():
        for node, own, count in zip(pair, _directions(table), table.shape, strict=True):
            # sum over the other end of e[s, t] - choice[s] = 0
            rows += [row + own, row + np.arange(count)]
            columns += [column + np.arange(table.size), first[node] + np.arange(count)]
            signs += [np.ones(table.size), -np.ones(count)]
            right.append(np.zeros(count))
            row += count
        cost.append(table.ravel())
        column += table.size
    matrix = coo_array(
        (np.concatenate(signs), (np.concatenate(rows), np.concatenate(columns))), shape=(row, column)
    ).tocsr()
    exact = np.concatenate(right)
    constraints = [LinearConstraint(matrix, exact, exact)]
    if memory_bytes is not None:
        # Bytes are scaled to a budget of one: HiGHS is no friend of large coefficients.
        load = np.zeros((1, column))
        load[0, : first[-1]] = np.concatenate(problem.memory) / memory_bytes
        constraints.append(LinearConstraint(load, -np.inf, 1.0))
    objective = np.concatenate(cost)
    scale = float(np.abs(objective).max()) or 1.0
    result = milp(
        objective / scale,
        constraints=constraints,
        integrality=np.arange(column) < first[-1],
        bounds=Bounds(0.0, 1.0),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise InfeasibleError(
            what="no choice of shardings fits into the memory of one device",
            why=f"memory_bytes = {memory_bytes:.4g}" if memory_bytes is not None else result.message,
            fix="more devices, more micro-batches, or a larger memory_bytes",
            field="memory_bytes",
        )
    return [int(np.argmax(result.x[low:high])) for low, high in pairwise(first)]


def _directions(table: Float[np.ndarray, "s t"]) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"]]:
    """Row and column of each entry of a table."""
    places = np.indices(table.shape)
    return places[0].ravel(), places[1].ravel()
