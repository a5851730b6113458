"""A step small enough to compile quickly, whose head is its first matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwright as mw

WIDTH, SAMPLES = 4, 8


def loss(weights: Any, batch: Any) -> jax.Array:
    """Mean squared error of two layers between a matrix and its transpose."""
    hidden = batch["x"] @ weights["tied"]
    for layer in weights["layers"]:
        hidden = jnp.tanh(hidden @ layer)
    return ((hidden @ weights["tied"].T - batch["x"]) ** 2).mean()


def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    """Gradient descent with momentum."""
    weights, momentum, count = state
    value, gradients = mw.value_and_grad(loss)(weights, batch)
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, gradients)
    weights = jax.tree.map(lambda weight, change: weight - 0.1 * change, weights, momentum)
    return (weights, momentum, count + 1), value


def initial() -> Any:
    """Weights, momentum and the number of steps so far."""
    drawn = np.random.RandomState(0)
    matrices = [jnp.asarray(drawn.randn(WIDTH, WIDTH) * 0.5, jnp.float32) for _ in range(3)]
    weights = {"tied": matrices[0], "layers": matrices[1:]}
    return weights, jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32)


def batch() -> Any:
    """Samples."""
    return {"x": jnp.asarray(np.random.RandomState(1).randn(SAMPLES, WIDTH), jnp.float32)}
