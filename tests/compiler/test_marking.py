"""The mark changes nothing: its gradients are JAX's."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.marking import grad, value_and_grad
from meshwright.errors import InputError
from tests.compiler.models import language_model, largest_difference, loss, tokens


def plain(weights: dict[str, jax.Array], x: jax.Array, *, power: int = 2) -> jax.Array:
    return ((x @ weights["w"] + weights["b"]) ** power).mean()


WEIGHTS = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(2)}
X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,)])
@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_are_those_of_jax(argnums: int | tuple[int, ...], compiled: bool) -> None:
    ours, theirs = value_and_grad(plain, argnums), jax.value_and_grad(plain, argnums)
    if compiled:
        ours, theirs = jax.jit(ours), jax.jit(theirs)
    assert largest_difference(ours(WEIGHTS, X), theirs(WEIGHTS, X)) < 1e-6
    assert jax.tree.structure(ours(WEIGHTS, X)) == jax.tree.structure(theirs(WEIGHTS, X))


def test_named_arguments_and_results_beside_the_loss() -> None:
    assert largest_difference(grad(plain)(WEIGHTS, X, power=3), jax.grad(plain)(WEIGHTS, X, power=3)) < 1e-6
    weights, batch = language_model(), tokens(2)
    ours = value_and_grad(loss, has_aux=True)(weights, batch)
    theirs = jax.value_and_grad(loss, has_aux=True)(weights, batch)
    assert largest_difference(ours, theirs) < 1e-5
    assert largest_difference(grad(loss, has_aux=True)(weights, batch)[0], theirs[1]) < 1e-5


def test_gradients_of_each_sample_by_vmap() -> None:
    ours = jax.vmap(grad(plain), in_axes=(None, 0))(WEIGHTS, X[:, None])
    theirs = jax.vmap(jax.grad(plain), in_axes=(None, 0))(WEIGHTS, X[:, None])
    assert largest_difference(ours, theirs) < 1e-6


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(InputError, match=r"float32\[4\]"):
        value_and_grad(lambda weights, x: (x @ weights["w"]).sum(1))(WEIGHTS, X)


def test_a_loss_closes_over_values_of_the_step() -> None:
    def step(weights: dict[str, jax.Array], x: jax.Array, of: Any) -> Any:
        scaled = 2 * x
        return of(lambda inner: plain(inner, scaled))(weights)

    ours, theirs = (jax.jit(partial(step, of=of))(WEIGHTS, X) for of in (value_and_grad, jax.value_and_grad))
    assert largest_difference(ours, theirs) < 1e-6
