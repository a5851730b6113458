"""Small models and steps that the tests of compiler and runtime share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshwright.compiler.marking import value_and_grad

WIDTH, WORDS, LENGTH, LAYERS = 8, 12, 6, 4


def language_model() -> dict[str, Any]:
    """Weights of a tiny decoder whose head is its embedding."""
    drawn = np.random.RandomState(0)

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(drawn.randn(*shape) * 0.3, jnp.float32)

    def layer() -> dict[str, jax.Array]:
        return {
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 2 * WIDTH),
            "down": matrix(2 * WIDTH, WIDTH),
            "bias": matrix(WIDTH),
        }

    return {"embedding": matrix(WORDS, WIDTH), "layers": [layer() for _ in range(LAYERS)]}


def tokens(samples: int) -> dict[str, jax.Array]:
    """A batch of token ids and the ids that follow them."""
    drawn = np.random.RandomState(1)
    ids = drawn.randint(0, WORDS, (2, samples, LENGTH))
    return {"ids": jnp.asarray(ids[0]), "next": jnp.asarray(ids[1])}


def loss(weights: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross entropy, and counts and predictions beside it."""
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    x = weights["embedding"][batch["ids"]]
    for layer in weights["layers"]:
        q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
        scores = jnp.where(seen, jnp.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5, -1e9)
        x = x + jax.nn.softmax(scores) @ v @ layer["out"] + layer["bias"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    logits = x @ weights["embedding"].T
    right = logits.argmax(-1) == batch["next"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["next"][..., None], axis=-1)
    return -chosen.mean(), {"right": right.sum(), "logits": logits}


OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(optax.linear_schedule(1e-2, 1e-3, 20)))


def step(state: Any, batch: Any) -> tuple[Any, jax.Array, Any]:
    """One training step: clipped by the global norm, Adam, a schedule of the learning rate."""
    weights, optimizer = state
    (value, seen), gradients = value_and_grad(loss, has_aux=True)(weights, batch)
    changes, optimizer = OPTIMIZER.update(gradients, optimizer, weights)
    return (optax.apply_updates(weights, changes), optimizer), value, seen


def accumulated(state: Any, batch: Any, micro_batches: int) -> tuple[Any, jax.Array, Any]:
    """The same step on one device: gradients of the micro-batches added one after the other, and divided once."""
    weights, optimizer = state
    parts = jax.tree.map(lambda array: array.reshape(micro_batches, -1, *array.shape[1:]), batch)

    def add(total: Any, part: Any) -> tuple[Any, Any]:
        found, gradients = jax.value_and_grad(loss, has_aux=True)(weights, part)
        return jax.tree.map(jnp.add, total, gradients), found

    # A loop, as its body is compiled once.
    total, (values, seen) = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), parts)
    gradients = jax.tree.map(lambda array: array / micro_batches, total)
    changes, optimizer = OPTIMIZER.update(gradients, optimizer, weights)
    extra = {"right": seen["right"].sum(), "logits": seen["logits"].reshape(-1, *seen["logits"].shape[2:])}
    return (optax.apply_updates(weights, changes), optimizer), values.mean(), extra


def initial() -> tuple[Any, Any]:
    """Weights and optimizer state before the first step."""
    weights = language_model()
    return weights, OPTIMIZER.init(weights)


def largest_difference(one: Any, other: Any) -> float:
    """Over all leaves, in max-norm."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()) for a, b in pairs)
