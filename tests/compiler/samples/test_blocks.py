"""Batches behind each other: each part computes with its own samples of every one of them, or is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.samples.placements import NotShared
from tests.compiler.ranks.test_walk import RANKS, SAMPLES, WIDTH, Loss, batch, of_all_ranks, shared_out, weight


def both(b: dict[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([b["x"], jnp.sin(b["x"])])


def by_layers(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    def layer(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.nn.relu(x @ w * scale)
        return x, x

    start = both(b)
    last, every = jax.lax.scan(jax.checkpoint(layer), start, jnp.arange(1.0, 4.0))
    return jnp.mean(last[:SAMPLES] * last[SAMPLES:]) + jnp.mean(every[:, SAMPLES:] ** 2)


def begun_with_zeros(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    rows = jnp.stack([both(b), 2 * both(b)])
    hidden, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros((2 * SAMPLES, WIDTH)), rows)
    one, other = jnp.split(hidden, 2)
    return jnp.mean((one - other) ** 2)


def picked(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    logits = jax.nn.log_softmax(both(b) @ w)
    labels = jnp.tile(jnp.argmax(b["x"], -1), 2)
    right = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jnp.log(jnp.sum(jnp.exp(right))) - jnp.mean(right[SAMPLES:])


def unequal(b: dict[str, jax.Array]) -> jax.Array:
    """Samples, and two of each behind them."""
    return jnp.concatenate([b["x"], jnp.repeat(jnp.cos(b["x"]), 2, axis=0)])


def labelled_and_not(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    known, guessed = jnp.split(jnp.tanh(unequal(b) @ w), [SAMPLES])
    return jnp.mean(known * b["x"]) + jnp.log(jnp.sum(jnp.exp(guessed)))


ADDED: dict[str, Loss] = {
    "twice as many": lambda w, b: jnp.mean((unequal(b) @ w)[SAMPLES:] ** 2),
    "twice as many, tiled": lambda w, b: jnp.mean(
        (jnp.tile(unequal(b), (2, 1)) @ w)[3 * SAMPLES : 4 * SAMPLES] * b["x"]
    ),
    "twice as many and weights of every row": lambda w, b: jnp.mean(
        (unequal(b) @ w) * jnp.arange(3.0 * SAMPLES)[:, None]
    ),
    "twice as many behind two": lambda w, b: jnp.mean(
        (jnp.concatenate([both(b), unequal(b)]) @ w)[SAMPLES : 3 * SAMPLES] * both(b)
    ),
    "labelled and not": labelled_and_not,
    "taken apart again": lambda w, b: jnp.mean((both(b) @ w)[:SAMPLES] * (both(b) @ w)[SAMPLES:]),
    "two of three": lambda w, b: jnp.mean(jnp.concatenate([both(b), b["x"] + 1])[SAMPLES:] @ w * both(b)),
    "weights of every row": lambda w, b: jnp.mean((both(b) @ w) * jnp.arange(2.0 * SAMPLES)[:, None]),
    "labels of two kinds": lambda w, b: jnp.mean(
        jnp.tanh(both(b) @ w)[:, 0] * jnp.concatenate([jnp.ones(SAMPLES), jnp.zeros(SAMPLES)])
    ),
    "with what is no sample": lambda w, b: jnp.mean(jnp.concatenate([b["x"], jnp.arange(96.0).reshape(16, 6)]) @ w),
    "tiled": lambda w, b: jnp.mean(jnp.tile(b["x"], (3, 1)).reshape(3, SAMPLES, WIDTH).sum(0) @ w * b["x"]),
    "stacked and joined": lambda w, b: jnp.mean(
        (jnp.stack([b["x"], b["x"] ** 2]).reshape(-1, WIDTH) @ w)[SAMPLES:] ** 3
    ),
    "words of a row": lambda w, b: jnp.mean(
        (both(b).reshape(-1, 1) * w[0]).reshape(2 * SAMPLES, WIDTH, WIDTH)[SAMPLES:] * b["x"][..., None]
    ),
    "one mask": lambda w, b: jnp.mean(
        jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, (2 * SAMPLES, WIDTH)), both(b) @ w, 0.0) ** 2
    ),
    "layers": by_layers,
    "begun with zeros": begun_with_zeros,
    "picked": picked,
}


@pytest.mark.parametrize("name", ADDED)
def test_losses_of_parts_add_up(name: str) -> None:
    loss, given = ADDED[name], batch()
    value, gradient = of_all_ranks(shared_out(loss), given)
    expected, expected_gradient = jax.value_and_grad(loss)(weight(), given)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@jax.custom_vjp
def halved(x: jax.Array) -> jax.Array:
    return x / 2


halved.defvjp(lambda x: (x / 2, None), lambda _, change: (change / 2,))


def looped(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean(jax.lax.cond(w[0, 0] > 0, lambda x: x[1:], lambda x: x[:-1], both(b) @ w))


MIXED: dict[str, tuple[Loss, str]] = {
    "all but one": (lambda w, b: jnp.mean((both(b) @ w)[1:]), "slice"),
    "more than one batch": (lambda w, b: jnp.mean((both(b) @ w)[: SAMPLES + RANKS]), "slice"),
    "every other": (lambda w, b: jnp.mean((both(b) @ w)[::2]), "slice"),
    "turned over": (lambda w, b: jnp.mean((both(b) @ w)[::-1] * both(b)), "rev"),
    "counted up": (lambda w, b: jnp.mean(jnp.cumsum(both(b) @ w, 0)), "cumsum"),
    "every pair": (lambda w, b: jnp.mean(jax.nn.softmax(both(b) @ w @ both(b).T)), "dot_general"),
    "rows of each sample": (lambda w, b: jnp.mean((both(b) @ w) * jnp.repeat(b["x"], 2, axis=0)), "mul"),
    "one batch and half of one of twice as many": (lambda w, b: jnp.mean((unequal(b) @ w)[: 2 * SAMPLES]), "slice"),
    "halves of a batch of twice as many": (
        lambda w, b: jnp.mean((unequal(b) @ w).reshape(3, SAMPLES, WIDTH)[1] * b["x"]),
        "reshape",
    ),
    "batches in another order": (
        lambda w, b: jnp.mean((unequal(b) @ w) * jnp.concatenate([unequal(b)[SAMPLES:], b["x"]])),
        "mul",
    ),
    "pairs of rows": (lambda w, b: jnp.mean((both(b) @ w)[:12].reshape(2, 6, WIDTH)), "slice"),
    "branches": (looped, "cond"),
    "sorted": (lambda w, b: jnp.mean(jnp.sort(both(b) @ w, 0) * both(b)), "sort"),
    "a pullback of its own": (lambda w, b: jnp.mean(halved(both(b) @ w)), "custom_vjp_call"),
    "one by one": (lambda w, b: jnp.mean(jax.lax.map(lambda x: x @ w, both(b))), "a loop over samples"),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_are_not_read_one_by_one_are_refused(name: str) -> None:
    loss, why = MIXED[name]
    with pytest.raises(NotShared, match=why):
        shared_out(loss)


def test_pairs_of_neighbours_within_a_batch() -> None:
    """A row of two samples belongs to the part that both belong to."""

    def loss(w: jax.Array, b: dict[str, Any]) -> jax.Array:
        return jnp.mean(jnp.prod((both(b) @ w).reshape(SAMPLES, 2, WIDTH), axis=1))

    value, gradient = of_all_ranks(shared_out(loss), batch())
    expected, expected_gradient = jax.value_and_grad(loss)(weight(), batch())
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
