"""Plans of small networks against closed forms, and the forms they are known to take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.compiler.sharding.graph import DecisionGraph, graph_of
from meshwright.compiler.sharding.problem import Decision
from meshwright.compiler.sharding.solve import solve_choices


def devices(*sizes: int, latency_s: float = 0.0) -> LogicalMesh:
    axes = tuple(MeshAxis(size=size, latency_s=latency_s, bytes_per_s=10e9) for size in sizes)
    return LogicalMesh(axes=axes, flop_per_s=1e9)


def plan_of(
    loss: Callable[..., Any], shapes: list[tuple[int, ...]], parameters: int, mesh: LogicalMesh, **options: float
) -> tuple[DecisionGraph, Decision]:
    program = flat_jaxpr(lambda *a: [loss(*a)], [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]).jaxpr
    graph = graph_of(program, program.invars[:parameters], mesh, **options)
    return graph, solve_choices(graph.problem())


def network(*operands: jax.Array) -> jax.Array:
    *weights, x = operands
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def chosen(graph: DecisionGraph, found: Decision) -> list[list[str]]:
    """For each product the factor of each axis: k contracted, i rows, j columns."""
    names = ["k", "i", "j", "-"]
    return [
        [names[factor] for factor in node.strategies.factors[choice]]
        for node, choice in zip(graph.nodes, found.choice, strict=True)
        if node.strategies is not None
    ]


def seconds_of_products(graph: DecisionGraph, found: Decision) -> float:
    return sum(float(node.compute_s[choice]) for node, choice in zip(graph.nodes, found.choice, strict=True))


def test_data_parallel_is_found_at_the_price_of_one_all_reduce_of_the_gradients() -> None:
    mesh = devices(8)
    graph, found = plan_of(network, [(16, 16)] * 4 + [(512, 16)], 4, mesh)
    assert chosen(graph, found) == [["i"]] * 4
    gradients, loss = 4 * 16 * 16 * 4, 4
    moved = found.objective_s - seconds_of_products(graph, found)
    assert moved == pytest.approx(mesh.all_reduce_s(0, gradients + loss), rel=1e-9)
    # 3 products for each, 2 for the first, whose input needs no gradient; over 8 devices.
    flop = 2 * 512 * 16 * 16 * (3 * 3 + 2)
    assert seconds_of_products(graph, found) == pytest.approx(flop / 8 / mesh.flop_per_s)


def test_columns_and_rows_alternate_where_weights_dominate() -> None:
    mesh = devices(8)
    graph, found = plan_of(network, [(64, 256), (256, 64)] * 2 + [(8, 64)], 4, mesh)
    assert chosen(graph, found) == [["j"], ["k"]] * 2
    weights = [graph.nodes[place].placements[found.choice[place]].tolist() for place in range(4)]
    assert weights == [[1], [0], [1], [0]]


def test_two_axes_take_samples_and_weights() -> None:
    graph, found = plan_of(network, [(64, 256), (256, 64)] * 2 + [(320, 64)], 4, devices(4, 2))
    for pair in zip(chosen(graph, found)[::2], chosen(graph, found)[1::2], strict=True):
        assert sorted("".join(way) for way in zip(*pair, strict=True)) == ["ii", "jk"]


def test_a_gradient_reduced_once_for_many_micro_batches_costs_less() -> None:
    mesh = devices(8)
    _, often = plan_of(network, [(16, 16)] * 4 + [(512, 16)], 4, mesh)
    _, once = plan_of(network, [(16, 16)] * 4 + [(512, 16)], 4, mesh, syncs=0.25)
    assert often.objective_s - once.objective_s == pytest.approx(0.75 * mesh.all_reduce_s(0, 4 * 16 * 16 * 4))


def test_a_budget_splits_the_parameters() -> None:
    shapes = [(32, 32)] * 3 + [(1024, 32)]
    program = flat_jaxpr(lambda *a: [network(*a)], [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]).jaxpr
    graph = graph_of(program, program.invars[:3], devices(8, latency_s=1e-7), parameter_copies=40.0)
    free = solve_choices(graph.problem())
    assert all((graph.nodes[place].placements[free.choice[place]] == -1).all() for place in range(3))
    held = sum(graph.nodes[place].memory_bytes[free.choice[place]] for place in range(3))
    bound = solve_choices(graph.problem(), memory_bytes=free.memory_bytes - 0.8 * held)
    assert bound.method == "milp"
    assert bound.objective_s > free.objective_s
    assert all((graph.nodes[place].placements[bound.choice[place]] >= 0).all() for place in range(3))


def test_the_gradient_of_a_large_table_is_not_reduced() -> None:
    def loss(table: jax.Array, head: jax.Array, at: jax.Array) -> jax.Array:
        rows = jnp.take(table, at.astype(jnp.int32), axis=0, mode="clip")
        return jnp.mean((rows @ head) ** 2)

    graph, found = plan_of(loss, [(4096, 64), (64, 64), (64, 4)], 2, devices(8))
    moved = found.objective_s - seconds_of_products(graph, found)
    assert seconds_of_products(graph, found) == pytest.approx(3 * 2 * 256 * 64 * 64 / 8 / 1e9)
    assert moved < devices(8).all_reduce_s(0, 4096 * 64 * 4) / 10


def test_a_loop_counts_its_rounds() -> None:
    def looped(weights: jax.Array, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights)
        return jnp.mean(x**2)

    mesh = devices(8)
    graph, found = plan_of(looped, [(6, 16, 16), (512, 16)], 1, mesh)
    assert chosen(graph, found) == [["i"]]
    assert seconds_of_products(graph, found) == pytest.approx(6 * 3 * 2 * 512 * 16 * 16 / 8 / mesh.flop_per_s)
    moved = found.objective_s - seconds_of_products(graph, found)
    assert moved == pytest.approx(mesh.all_reduce_s(0, 6 * 16 * 16 * 4 + 4), rel=1e-6)


def test_a_checkpoint_pays_again_for_what_its_backward_reads() -> None:
    """Its first product is run again, with the sum of its input; the last, whose result is only added, is not."""

    def pair(w: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        return x + jnp.tanh(x @ w[0]) @ w[1]

    def loss(kept: bool, *operands: jax.Array) -> jax.Array:
        up, down, x = operands
        return jnp.mean((pair if kept else jax.checkpoint(pair))((up, down), x) ** 2)

    mesh = devices(8)
    shapes = [(64, 256), (256, 64), (8, 64)]
    kept, again = (seconds_of_products(*plan_of(partial(loss, way), shapes, 2, mesh)) for way in (True, False))
    assert again - kept == pytest.approx(2 * 8 * 64 * 256 / 8 / mesh.flop_per_s)
