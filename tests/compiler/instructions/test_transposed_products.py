"""Transposed products are the products of their operands in the other order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from meshwright.compiler.inline import holds
from meshwright.compiler.instructions.transposed_products import without_transposed_products


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.RandomState(sum(shape)).randn(*shape), jnp.float32)


def check(fun: Any, *given: Any, transposes: bool = False) -> None:
    closed = without_transposed_products(jax.make_jaxpr(fun)(*given))
    assert any(holds(eqn, "transpose") for eqn in closed.eqns) is transposes
    for one, other in zip(core.jaxpr_as_fun(closed)(*given), jax.tree.leaves(fun(*given)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def gradient(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.grad(lambda weight: (jnp.tanh(x @ weight) ** 2).sum())(weight)


@pytest.mark.parametrize("samples", [(5,), (2, 5)])
def test_the_gradient_of_a_weight_transposes_nothing(samples: tuple[int, ...]) -> None:
    check(gradient, drawn(*samples, 3), drawn(3, 4))


def test_products_of_batches_keep_their_batch_in_front() -> None:
    check(
        lambda a, b: jnp.swapaxes(jnp.einsum("bij,bjk->bik", a, b, precision=("high", "default")), 1, 2),
        drawn(2, 3, 4),
        drawn(2, 4, 5),
    )


def test_loops_and_branches_are_gone_through() -> None:
    def looped(x: jax.Array, weight: jax.Array) -> jax.Array:
        def once(weight: jax.Array, _: None) -> tuple[jax.Array, None]:
            return lax.cond(weight.sum() > 0, lambda: weight - 0.1 * gradient(x, weight), lambda: weight), None

        return lax.scan(once, weight, None, length=3)[0]

    check(looped, drawn(5, 3), drawn(3, 4))


def test_solvers_keep_the_names_of_their_programs() -> None:
    matrix = drawn(3, 3) + 3 * jnp.eye(3)
    check(lambda a, b: gradient(jnp.linalg.solve(a, b), drawn(4, 2)), matrix, drawn(3, 4), transposes=True)


def test_what_is_transposed_otherwise_or_read_twice_stays() -> None:
    check(
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b).transpose(1, 0, 2),
        drawn(2, 3, 4),
        drawn(2, 4, 5),
        transposes=True,
    )
    check(lambda a, b: [(made := a @ b), made.T], drawn(3, 4), drawn(4, 5), transposes=True)
