"""Logical meshes of three axes: every choice counted out, and prices in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.compiler.sharding.graph import DecisionGraph, graph_of
from meshwright.compiler.sharding.solve import solve_choices

AXES = LogicalMesh(
    axes=(
        MeshAxis(size=2, latency_s=1e-7, bytes_per_s=1e9),
        MeshAxis(size=2, latency_s=2e-7, bytes_per_s=4e9),
        MeshAxis(size=2, latency_s=3e-7, bytes_per_s=2e9),
    ),
    flop_per_s=1e9,
)


def decisions(shapes: list[tuple[int, ...]], mesh: LogicalMesh = AXES) -> DecisionGraph:
    """Products one after the other; the last operand holds samples."""

    def loss(*operands: jax.Array) -> list[jax.Array]:
        *weights, x = operands
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return [jnp.mean(x**2)]

    program = flat_jaxpr(loss, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]).jaxpr
    return graph_of(program, program.invars[:-1], mesh)


def least_of_all(graph: DecisionGraph, memory_bytes: float = np.inf) -> float:
    """The least objective of all choices: one table with an axis for each node."""
    problem = graph.problem()
    count = len(problem.costs)

    def along(table: np.ndarray, *nodes: int) -> np.ndarray:
        return table.reshape([table.shape[nodes.index(node)] if node in nodes else 1 for node in range(count)])

    total = sum(along(cost, node) for node, cost in enumerate(problem.costs))
    total = total + sum(along(table, u, v) for (u, v), table in problem.edges.items())
    held = sum(along(memory, node) for node, memory in enumerate(problem.memory))
    return float(np.where(held <= memory_bytes, total, np.inf).min())


@pytest.mark.parametrize("shapes", [[(8, 8), (8, 8)], [(8, 4), (256, 8)], [(2, 3), (3, 2), (8, 2)]])
def test_no_choice_is_better(shapes: list[tuple[int, ...]]) -> None:
    graph = decisions(shapes)
    found = solve_choices(graph.problem())
    assert found.method == "elimination"
    assert found.objective_s == pytest.approx(least_of_all(graph), rel=1e-12)


def test_no_choice_that_fits_is_better() -> None:
    graph = decisions([(8, 4), (64, 8)])
    problem = graph.problem()
    free, least = solve_choices(problem), sum(float(memory.min()) for memory in problem.memory)
    budget = least + 0.3 * (free.memory_bytes - least)
    bound = solve_choices(problem, memory_bytes=budget)
    assert bound.memory_bytes <= budget
    assert bound.objective_s == pytest.approx(least_of_all(graph, budget), rel=1e-9)
    assert bound.objective_s > free.objective_s


def test_samples_on_three_equal_axes_cost_a_ring_over_all_devices() -> None:
    layers, width, samples, bytes_per_s = 4, 16, 4096, 1e9
    axes = (MeshAxis(size=2, latency_s=0.0, bytes_per_s=bytes_per_s),) * 3
    graph = decisions([(width, width)] * layers + [(samples, width)], LogicalMesh(axes=axes, flop_per_s=1e9))
    found = solve_choices(graph.problem())
    products = [(node, choice) for node, choice in zip(graph.nodes, found.choice, strict=True) if node.strategies]
    assert all((node.placements[choice] == 0).all() for node, choice in products)
    compute = sum(float(node.compute_s[choice]) for node, choice in products)
    assert compute == pytest.approx(2 * samples * width * width * (3 * layers - 1) / 8 / 1e9)
    # Weights lie in eighths: gathered axis by axis, their gradients scattered likewise, 1/8 + 1/4 + 1/2 each way.
    gradients = 2 * 7 / 8 * layers * width * width * 4
    # The loss is one number, reduced along each axis.
    assert found.objective_s - compute == pytest.approx((gradients + 3 * 4) / bytes_per_s, rel=1e-9)


def test_an_axis_of_one_device_changes_nothing() -> None:
    shapes = [(64, 256), (256, 64), (8, 64)]
    flat = LogicalMesh(axes=AXES.axes[:2], flop_per_s=1e9)
    more = LogicalMesh(axes=(*AXES.axes[:2], MeshAxis(size=1, latency_s=0.0, bytes_per_s=1e9)), flop_per_s=1e9)
    two, three = (solve_choices(decisions(shapes, mesh).problem()).objective_s for mesh in (flat, more))
    # Three axes may not scatter sums, two may: they never cost more.
    assert two <= three * (1 + 1e-12)
