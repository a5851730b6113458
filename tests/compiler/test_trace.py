"""What is read from a step: the loss, what is a mean and what a sum, and steps that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.trace import trace_step
from meshwright.errors import InputError
from tests.compiler.models import initial, step, tokens

WEIGHTS = jnp.ones((3, 2))
BATCH = jnp.ones((8, 3))


def descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = value_and_grad(loss)(weights, batch)
        return weights - 0.1 * gradient, value

    return step


TWO = descent(lambda w, x: (x @ w).mean())


@pytest.mark.parametrize(
    ("loss", "mean"),
    [
        (lambda w, x: ((x @ w) ** 2).mean(), True),
        (lambda w, x: jnp.sqrt(((x @ w) ** 2).mean()), True),
        (lambda w, x: ((x @ w) ** 2).sum() / x.shape[0], True),
        (lambda w, x: ((x @ w) ** 2).sum(), False),
        (lambda w, x: ((x @ w) ** 2).mean() * x.size, False),
    ],
)
def test_means_and_sums_are_told_apart(loss: Callable[..., Any], mean: bool) -> None:
    assert trace_step(descent(loss), (WEIGHTS, BATCH), micro_batches=4).mean is mean


def test_a_loss_divided_by_its_weights_is_neither() -> None:
    def weighted(w: jax.Array, x: jax.Array) -> jax.Array:
        weight = (x[:, 0] > 0).astype(jnp.float32)
        return (((x @ w) ** 2).sum(1) * weight).sum() / weight.sum()

    with pytest.raises(InputError, match="neither a mean nor a sum"):
        trace_step(descent(weighted), (WEIGHTS, BATCH), micro_batches=4)
    assert trace_step(descent(weighted), (WEIGHTS, BATCH), micro_batches=4, mean=True).mean


def test_a_step_is_read_from_shapes_alone() -> None:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (initial(), tokens(8)))
    read = trace_step(step, shapes, micro_batches=4)
    assert read.micro_batches == 4
    assert read.mean
    assert len(read.gradients) == len(read.wrt) == len(jax.tree.leaves(initial()[0]))
    assert all(read.jaxpr.invars[place].aval.shape[0] == 2 for place in read.batch)


@pytest.mark.parametrize(
    ("fun", "micro_batches", "words"),
    [
        (lambda w, x: (w - jax.grad(lambda w: (x @ w).mean())(w)), 2, "0 times"),
        (lambda w, x: TWO(TWO(w, x)[0], x), 2, "2 times"),
        (descent(lambda w, x: (x @ w).mean()), 3, "num_micro_batches=2"),
    ],
)  # fmt: skip
def test_steps_that_cannot_be_read(fun: Callable[..., Any], micro_batches: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        trace_step(fun, (WEIGHTS, BATCH), micro_batches=micro_batches)
    assert words in str(caught.value)


def test_a_batch_without_an_axis_is_refused() -> None:
    with pytest.raises(InputError, match="number without axes"):
        trace_step(descent(lambda w, x: (w * x).mean()), (WEIGHTS, 1.0), micro_batches=2)
