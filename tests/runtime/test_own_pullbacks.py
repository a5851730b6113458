"""Pullbacks that users write (`jax.custom_vjp`) see in every micro-batch what they see in the whole batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw

W = jax.random.normal(jax.random.key(0), (3, 2))
X = jax.random.normal(jax.random.key(1), (32, 3))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


@jax.custom_vjp
def product(w: Any, x: Any) -> Any:
    return x @ w


product.defvjp(lambda w, x: (x @ w, (w, x)), lambda kept, g: (3 * kept[1].T @ g, g @ kept[0].T))


@jax.custom_vjp
def calling_itself(w: Any, x: Any) -> Any:
    return x @ w


calling_itself.defvjp(lambda w, x: (calling_itself(w, x), x), lambda x, g: (2 * x.T @ g, jnp.zeros_like(x)))


@jax.custom_vjp
def scaled(x: Any, largest: Any) -> Any:
    return x * 1.0


scaled.defvjp(lambda x, largest: (x * 1.0, jnp.abs(x).max()), lambda largest, g: (g, largest))


def stepped(loss: Any) -> Any:
    def step(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - gradient, value

    return step


@pytest.mark.parametrize(
    "method", [mw.DataParallel(num_micro_batches=4), mw.PipeshardParallel(num_stages=2, num_micro_batches=2)]
)
@pytest.mark.parametrize("pulled", [lambda w, x: clipped(x @ w), product, calling_itself])
def test_gradients_are_those_of_the_whole_batch(method: Any, pulled: Any) -> None:
    step = stepped(lambda w, x: (jnp.tanh(pulled(w, x)) ** 2).mean())
    found = mw.parallelize(step, method=method)(W, X)
    for one, other in zip(found, jax.jit(step)(W, X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(
    "method", [mw.DataParallel(num_micro_batches=2), mw.PipeshardParallel(num_stages=2, num_micro_batches=2)]
)
def test_a_pullback_before_a_root_of_the_mean_sees_slopes_of_the_whole_batch(method: Any) -> None:
    step = stepped(lambda w, x: jnp.sqrt((clipped(x @ w) ** 2).mean()))
    found = mw.parallelize(step, method=method)(W, X)
    for one, other in zip(found, jax.jit(step)(W, X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::meshwright.compiler.lowering.whole.WholeStepWarning")
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("clip", [clipped, jax.jit(clipped), jax.checkpoint(clipped)], ids=["", "jit", "checkpoint"])
def test_a_pullback_of_weights_sees_gradients_of_the_whole_batch(clip: Any, parts: int) -> None:
    step = stepped(lambda w, x: (jnp.tanh(x @ clip(w)) ** 2).mean())
    found = mw.parallelize(step, method=mw.DataParallel(num_micro_batches=parts))(W, X)
    assert np.abs(found[0] - W).max() == pytest.approx(0.01)
    np.testing.assert_allclose(found[0], jax.jit(step)(W, X)[0], rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 4])
def test_what_a_pullback_returns_in_place_of_a_gradient_is_returned_once(parts: int) -> None:
    def step(state: Any, x: Any) -> Any:
        return jax.grad(lambda state: (x @ scaled(*state)).mean())(state)

    largest = mw.parallelize(step, method=mw.DataParallel(num_micro_batches=parts))((W, jnp.ones(())), X)[1]
    assert float(largest) == pytest.approx(float(jnp.abs(W).max()))


def test_a_sum_over_the_batch_before_a_pullback_is_known_to_it() -> None:
    step = stepped(lambda w, x: clipped((x @ w) / jax.lax.stop_gradient((x @ w).sum())).mean())
    found = mw.parallelize(step, method=mw.DataParallel())(W, X)
    np.testing.assert_allclose(found[0], jax.jit(step)(W, X)[0], rtol=1e-5)
