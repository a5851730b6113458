"""One layer between all placements of its borders: every entry is the optimum with the borders held there."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.compiler.sharding.problem import ChoiceProblem
from meshwright.compiler.sharding.solve import solve_choices
from meshwright.compiler.stages.search import Layers
from meshwright.compiler.stages.tables import Joined, LayerProblem, Terms, columns_of, joined_layers
from meshwright.compiler.tracing.trace import LossReader
from tests.compiler.models import initial, step, tokens

MESH = LogicalMesh(axes=(MeshAxis(size=2, latency_s=1e-8, bytes_per_s=1e9),) * 2, flop_per_s=1e8)
TERMS = Terms(parameter_copies=4.0, syncs=0.5)


@pytest.fixture(scope="module")
def layers() -> Layers:
    shapes = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(8))
    return Layers.of(*LossReader(step, shapes).read(2))


def held(problem: ChoiceProblem, fixed: dict[int, int]) -> ChoiceProblem:
    """The problem with some nodes fixed."""
    keep = [np.array([fixed[v]]) if v in fixed else np.arange(len(cost)) for v, cost in enumerate(problem.costs)]
    return ChoiceProblem(
        costs=tuple(cost[own] for cost, own in zip(problem.costs, keep, strict=True)),
        memory=tuple(memory[own] for memory, own in zip(problem.memory, keep, strict=True)),
        edges={(u, v): table[np.ix_(keep[u], keep[v])] for (u, v), table in problem.edges.items()},
    )


@pytest.mark.parametrize("recompute", [False, True])
def test_every_entry_is_the_optimum_between_its_borders(layers: Layers, recompute: bool) -> None:
    problem = LayerProblem.of(layers.parts[1], MESH, TERMS)
    (table,) = problem.tables((0.0,), recompute=recompute)
    whole = problem.graph.problem(recompute=recompute)
    (into,), (out,) = problem.handed_in, problem.handed_on
    for i, j in [(0, 0), (3, 5), (7, 2), (table.total_s.shape[0] - 1, table.total_s.shape[1] - 1)]:
        alone = solve_choices(held(whole, {into: i, out: j}))
        assert table.total_s[i, j] == pytest.approx(alone.objective_s, rel=1e-9)
        assert table.objective_s[i, j] == table.total_s[i, j]
    assert (table.forward_s < table.total_s).all()
    assert (table.kept_bytes + table.transient_bytes > 0).all()
    assert (table.transient_bytes > 0).all() == recompute


def test_a_price_of_memory_buys_time_for_bytes(layers: Layers) -> None:
    tables = LayerProblem.of(layers.parts[1], MESH, TERMS).tables((0.0, 0.1, 10.0), recompute=True)
    bytes_held = [(each.state_bytes + each.kept_bytes + each.transient_bytes).min() for each in tables]
    assert bytes_held[2] < bytes_held[0]
    assert (tables[2].total_s >= tables[0].total_s - 1e-15).all()


def test_layers_join_at_the_best_placement_between_them() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.random((4, 4)), rng.random((5, 4, 4))) for _ in range(3)]
    before: Joined | None = None
    for objective, columns in parts:
        before = joined_layers(before, objective, columns)
    assert before is not None
    ways: list[tuple[float, Sequence[int]]] = [
        (sum(parts[k][0][way[k], way[k + 1]] for k in range(3)), way) for way in np.ndindex(4, 4, 4, 4)
    ]
    least, way = min(ways)
    assert before.objective_s.min() == pytest.approx(least)
    chosen = np.array([parts[k][1][:, way[k], way[k + 1]] for k in range(3)])
    assert before.best()[:4] == pytest.approx(chosen.sum(axis=0)[:4])
    assert before.best()[4] == pytest.approx(chosen[:, 4].max())  # layers run one after the other


def test_columns_are_those_of_the_table(layers: Layers) -> None:
    (table,) = LayerProblem.of(layers.parts[0], MESH, TERMS).tables((0.0,), recompute=False)
    assert (columns_of(table)[2] == table.state_bytes).all()
    assert table.total_s.shape[0] == 1  # nothing is handed to the first layer
