"""The solver against all choices, and at the size of a large stage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.compiler.sharding import elimination
from meshwright.compiler.sharding.elimination import eliminated
from meshwright.compiler.sharding.problem import ChoiceProblem
from meshwright.compiler.sharding.solve import best_for_each, solve_choices
from meshwright.errors import InfeasibleError


def drawn(seed: int, nodes: int, extra: int, most: int) -> ChoiceProblem:
    """A chain of nodes with some edges across, costs and bytes at random."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, most + 1, nodes)
    pairs = {(v, v + 1) for v in range(nodes - 1)}
    while len(pairs) < nodes - 1 + extra:
        u = int(random.integers(0, nodes - 4))
        pairs.add((u, u + int(random.integers(2, 5))))
    return ChoiceProblem(
        costs=tuple(random.random(size) for size in sizes),
        memory=tuple(random.integers(1, 20, size).astype(float) for size in sizes),
        edges={(u, v): random.random((sizes[u], sizes[v])) * 2.0 for u, v in sorted(pairs)},
    )


def least(problem: ChoiceProblem, memory_bytes: float = np.inf) -> float:
    choices = itertools.product(*(range(len(cost)) for cost in problem.costs))
    return min(problem.value(choice) for choice in choices if problem.memory_of(choice) <= memory_bytes)


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_is_better(seed: int) -> None:
    problem = drawn(seed, nodes=7, extra=3, most=4)
    found = solve_choices(problem)
    assert found.method == "elimination"
    assert found.objective_s == pytest.approx(least(problem), rel=1e-12)
    assert problem.value(found.choice) == found.objective_s


def test_a_node_may_have_many_neighbours_without_a_choice() -> None:
    """More of them than an array has axes."""
    star = ChoiceProblem(
        costs=(np.zeros(3), *(np.ones(1) for _ in range(80))),
        memory=(np.zeros(3), *(np.zeros(1) for _ in range(80))),
        edges={(0, leaf): np.array([[2.0], [1.0], [3.0]]) for leaf in range(1, 81)},
    )
    found = solve_choices(star)
    assert found.choice == (1, *(0,) * 80)
    assert found.objective_s == pytest.approx(160.0)


@pytest.mark.parametrize("seed", range(4))
def test_no_choice_that_fits_is_better(seed: int) -> None:
    problem = drawn(seed, nodes=6, extra=2, most=3)
    smallest = sum(memory.min() for memory in problem.memory)
    budget = float(smallest + 0.2 * (solve_choices(problem).memory_bytes - smallest))
    found = solve_choices(problem, memory_bytes=budget)
    assert found.method == "milp"
    assert found.memory_bytes <= budget
    assert found.objective_s == pytest.approx(least(problem, budget), rel=1e-9)


def test_a_budget_nobody_meets_is_refused_with_the_least_that_is_needed() -> None:
    problem = drawn(0, nodes=5, extra=0, most=3)
    smallest = sum(memory.min() for memory in problem.memory)
    with pytest.raises(InfeasibleError, match=f"at least {smallest:.4g} bytes"):
        solve_choices(problem, memory_bytes=smallest - 1.0)


@pytest.mark.parametrize("largest", [elimination.LARGEST_TABLE, 10])
def test_the_best_beside_every_choice_of_some_nodes(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, kept = drawn(5, nodes=8, extra=3, most=3), [0, 6]
    whole = eliminated(problem, kept)
    monkeypatch.setattr(elimination, "LARGEST_TABLE", largest)
    assert (eliminated(problem, kept) is None) == (largest == 10)
    found = best_for_each(problem, kept)
    assert whole is not None
    for picked in np.ndindex(found[0].shape):
        choice = [int(own[picked]) for own in found]
        assert [choice[node] for node in kept] == list(picked)
        assert problem.value(choice) == pytest.approx(problem.value([int(own[picked]) for own in whole]), rel=1e-12)


@pytest.mark.parametrize("kept", [(), (0,), (0, 6)])
def test_every_node_beside_every_other_is_the_least_of_all_choices(kept: tuple[int, ...]) -> None:
    problem = drawn(11, nodes=7, extra=9, most=4)
    found = eliminated(problem, kept)
    assert found is not None
    every = list(itertools.product(*(range(len(cost)) for cost in problem.costs)))
    for picked in np.ndindex(found[0].shape):
        choice = [int(own[picked]) for own in found]
        beside = [one for one in every if all(one[node] == at for node, at in zip(kept, picked, strict=True))]
        assert problem.value(choice) == pytest.approx(min(map(problem.value, beside)), rel=1e-12)


def test_five_hundred_nodes_are_eliminated() -> None:
    problem = drawn(3, nodes=500, extra=24, most=10)
    found = solve_choices(problem)
    assert found.method == "elimination"
    # No node can do better by itself.
    for node, cost in enumerate(problem.costs[:50]):
        for other in range(len(cost)):
            changed = (*found.choice[:node], other, *found.choice[node + 1 :])
            assert problem.value(changed) >= found.objective_s - 1e-9


def test_a_budget_that_binds_costs_time() -> None:
    problem = drawn(3, nodes=60, extra=4, most=6)
    free = solve_choices(problem)
    bound = solve_choices(problem, memory_bytes=0.95 * free.memory_bytes)
    assert bound.method == "milp"
    assert bound.memory_bytes <= 0.95 * free.memory_bytes
    assert bound.objective_s > free.objective_s


def test_where_the_program_is_too_large_a_price_of_memory_bounds_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn(7, nodes=40, extra=3, most=6)
    budget = 0.9 * solve_choices(problem).memory_bytes
    exact = solve_choices(problem, memory_bytes=budget)
    monkeypatch.setattr("meshwright.compiler.sharding.solve.LARGEST_PROGRAM", 0)
    near = solve_choices(problem, memory_bytes=budget)
    assert (exact.method, near.method) == ("milp", "lagrangian")
    assert near.memory_bytes <= budget
    assert exact.objective_s <= near.objective_s + 1e-12
    assert near.objective_s - near.gap_s <= exact.objective_s + 1e-12
    assert near.gap_s < 0.02 * exact.objective_s
