"""Objectives in closed form, of the networks that Alpa's own tests plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.sharding.graph import DecisionGraph
from meshwright.compiler.sharding.problem import Decision
from tests.compiler.sharding.test_graph import devices, network, plan_of, seconds_of_products


def moved_s(planned: tuple[DecisionGraph, Decision]) -> float:
    return planned[1].objective_s - seconds_of_products(*planned)


@pytest.mark.parametrize(("sizes", "pairs"), [((2, 2), 2), ((2, 2), 3), ((4, 2), 1), ((2, 4), 1)])
def test_samples_on_one_axis_and_columns_and_rows_on_the_other(sizes: tuple[int, int], pairs: int) -> None:
    narrow, wide, samples = 64, 256, 320
    mesh = devices(*sizes)
    planned = plan_of(network, [(narrow, wide), (wide, narrow)] * pairs + [(samples, narrow)], 2 * pairs, mesh)
    # Which axis takes which is the solver's; a pair sums its result forward and, but for the first, its input's
    # gradient backward, over the weights' axis; gradients are summed over the samples' axis.
    closed = []
    for data, tensor in ((0, 1), (1, 0)):
        activations = samples * narrow * 4 / sizes[data]
        gradient = narrow * wide * 4 / sizes[tensor]
        closed.append(
            (2 * pairs - 1) * mesh.all_reduce_s(tensor, activations)
            + 2 * pairs * mesh.all_reduce_s(data, gradient)
            + mesh.all_reduce_s(data, 4)
        )
    assert moved_s(planned) == pytest.approx(min(closed), rel=1e-6)


def test_convolutions_by_samples_reduce_their_kernels() -> None:
    layers, features, samples = 3, 8, 64

    def loss(*operands: jax.Array) -> jax.Array:
        *kernels, x = operands
        for kernel in kernels:
            x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))
        return jnp.mean(x**2)

    mesh = devices(8)
    shapes: list[tuple[int, ...]] = [(features, features, 3, 3)] * layers + [(samples, features, 16, 16)]
    planned = plan_of(loss, shapes, layers, mesh)
    assert moved_s(planned) == pytest.approx(mesh.all_reduce_s(0, layers * features**2 * 9 * 4 + 4), rel=1e-6)


FREE: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "argmax": (lambda w, x: jnp.mean(w * jnp.take_along_axis(x, jnp.argmax(x, -1)[:, None], -1)), [(1,), (64, 32)]),
    "sort": (lambda w, x: jnp.mean(w * jnp.sort(x, -1)), [(1,), (64, 32)]),
    "uneven reshape": (
        lambda w, x: jnp.mean(w * x.reshape(64, 4, 3).transpose(0, 2, 1).reshape(64, 12)),
        [(1,), (64, 12)],
    ),
    "gather": (lambda w, x: jnp.mean(w * jnp.take(x, jnp.arange(8), axis=1, mode="clip")), [(1,), (64, 32)]),
}


@pytest.mark.parametrize("name", FREE)
def test_what_every_device_does_for_its_own_samples_costs_two_numbers(name: str) -> None:
    loss, shapes = FREE[name]
    mesh = devices(8)
    # The loss, and the gradient of the one weight.
    assert moved_s(plan_of(loss, shapes, 1, mesh)) <= 2 * mesh.all_reduce_s(0, 4) * (1 + 1e-9)
