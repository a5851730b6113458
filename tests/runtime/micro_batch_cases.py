"""Losses as people write them, and what one device makes of a whole batch of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwright as mw
from tests.runtime.one_device import on_one_device

WORDS, WIDTH, LENGTH, SAMPLES, RATE = 11, 8, 6, 16, 0.1
Loss = Callable[[Any, Any], tuple[jax.Array, Any]]


def weights() -> Any:
    """Of a tiny decoder."""
    drawn = np.random.RandomState(1)
    return {
        "embedding": jnp.asarray(drawn.randn(WORDS, WIDTH)),
        "mix": jnp.asarray(drawn.randn(WIDTH, WIDTH) / 2),
        "head": jnp.asarray(drawn.randn(WIDTH, WORDS)),
    }


def batch() -> Any:
    """Sequences of which the first have hardly any tokens and the last no padding."""
    drawn = np.random.RandomState(0)
    kept = drawn.rand(SAMPLES, LENGTH) < np.linspace(0.2, 1.0, SAMPLES)[:, None]
    return {
        "ids": jnp.asarray(drawn.randint(1, WORDS, (SAMPLES, LENGTH)) * kept),
        "next": jnp.asarray(drawn.randint(0, WORDS, (SAMPLES, LENGTH))),
    }


def logits(own: Any, given: Any) -> jax.Array:
    """Of the next token."""
    return jnp.tanh(own["embedding"][given["ids"]] @ own["mix"]) @ own["head"]


def entropy(own: Any, given: Any) -> jax.Array:
    """Cross entropy of each token."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(own, given)), given["next"][..., None], -1)[..., 0]


def masked(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """The loss of language models: a mean over the tokens that count."""
    counts = jnp.where(given["ids"] > 0, 1.0, 0.0)
    return (entropy(own, given) * counts).sum() / counts.sum(), {"tokens": counts.sum()}


def measured(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Whatever stands beside a loss."""
    counts, each = given["ids"] > 0, entropy(own, given)
    loss = (each * counts).sum() / jnp.maximum(counts.sum(), 1)
    guessed = logits(own, given).argmax(-1)
    return loss, {
        "count": counts.sum(),
        "share": counts.mean(),
        "all": counts.all(),
        "any": counts.any(),
        "largest": each.max(),
        "smallest": each.min(),
        "product": (1 + each / 100).prod(),
        "perplexity": jnp.exp(loss),
        "right": ((guessed == given["next"]) * counts).sum() / counts.sum(),
        "each": each.mean(1),
        "by place": each.T,
        "norm": jnp.sqrt((own["mix"] ** 2).sum()),
        "samples": jnp.asarray(given["ids"].shape[0]),
        "steps": jnp.asarray(3),
    }


def root(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """The root of a mean of squares."""
    return jnp.sqrt((entropy(own, given) ** 2).mean()), ()


def logarithm(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """A soft maximum over the batch."""
    return jnp.log(jnp.exp(entropy(own, given)).mean()), ()


def penalised(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """A sum over samples beside one over weights."""
    return entropy(own, given).sum() + 0.1 * (own["mix"] ** 2).sum(), ()


def dropped(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Dropout, drawn with one key for the batch."""
    x = jnp.tanh(own["embedding"][given["ids"]] @ own["mix"])
    x = jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), 2 * x, 0.0)
    return (x @ own["head"]).var(-1).mean(), ()


def picked(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Classes picked with the number of the sample."""
    scores = jax.nn.log_softmax(logits(own, given).mean(1))
    return -scores[jnp.arange(SAMPLES), given["next"][:, 0]].mean(), scores.argmax(-1)


def standardised(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Inputs less their mean over the batch, by their deviation, as advantages are."""
    x = given["ids"].astype(own["mix"].dtype)
    x = (x - x.mean()) / (x.std() + 1e-6)
    return ((x @ own["embedding"][:LENGTH]) ** 2).mean(), x.max()


def routed(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Work chosen by a number of the weights, in a loop and in a checkpoint."""

    def layer(x: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.cond(row.sum() > 0, jnp.tanh, jnp.sin, x + row), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), own["embedding"][given["ids"]], own["mix"])
    return ((x @ own["head"]) ** 2).mean(), ()


def balanced(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """How many words chose each expert, times how much they were drawn to it: whole numbers have no gradient."""
    drawn = jax.nn.softmax(logits(own, given))
    sizes = jnp.bincount(drawn.argmax(-1).reshape(-1), length=drawn.shape[-1])
    balance = (sizes / sizes.sum() * drawn.mean((0, 1))).sum()
    return entropy(own, given).mean() + 0.1 * balance, (sizes, sizes.max())


@jax.custom_vjp
def _clipped(x: jax.Array, row: jax.Array) -> jax.Array:
    """A product whose gradients are clipped on their way."""
    return jnp.sin(x) * row


def _clipped_forward(x: jax.Array, row: jax.Array) -> Any:
    return _clipped(x, row), (x, row)


def _clipped_backward(kept: Any, cotangent: jax.Array) -> Any:
    x, row = kept
    cotangent = jnp.clip(cotangent, -1e-3, 1e-3)
    return jnp.cos(x) * row * cotangent, (jnp.sin(x) * cotangent).sum((0, 1))


_clipped.defvjp(_clipped_forward, _clipped_backward)


def ruled(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Functions with a rule for their backward, or their derivative."""
    x = _clipped(own["embedding"][given["ids"]], own["mix"][0])
    return (jax.nn.relu(x) @ own["head"]).var(-1).mean(), ()


def recomputed(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """A number of the whole batch in what is recomputed."""
    counts = jnp.where(given["ids"] > 0, 1.0, 0.0)
    mean = jax.checkpoint(lambda own, counts, tokens: (entropy(own, given) * counts / tokens).sum())
    return mean(own, counts, counts.sum()), ()


def chunked(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """A sum that a loop carries, its rounds recomputed; and one that shrinks with the number of all tokens."""
    counts = jnp.where(given["ids"] > 0, 1.0, 0.0)

    @jax.checkpoint
    def one(carried: Any, place: Any) -> Any:
        total, tokens = carried
        own_place = {name: given[name][:, place][:, None] for name in given}
        return (total + entropy(own, own_place).sum() / tokens, tokens + 1.0), None

    (total, _), _ = jax.lax.scan(one, (jnp.zeros(()), counts.sum()), jnp.arange(LENGTH))
    return total, ()


def mapped(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Samples a few at a time, whose logits need no memory at once, with a factor of their own."""
    parts = {**given, "factor": jnp.linspace(0.5, 1.5, SAMPLES)}
    each = jax.lax.map(lambda one: one["factor"] * entropy(own, one).sum(), parts, batch_size=2)
    return each.mean(), {"worst": each.max()}


def largest(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """The worst token."""
    return entropy(own, given).max(), ()


def hardest(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """The worst samples."""
    return jnp.sort(entropy(own, given).mean(1))[-3:].mean(), ()


def shifted(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Samples beside their neighbours."""
    each = entropy(own, given)
    return (each * jax.lax.pad(each, 0.0, ((1, -1, 0), (0, 0, 0)))).mean(), ()


def normalised(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Batch norm."""
    x = own["embedding"][given["ids"]] @ own["mix"]
    x = (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-3)
    return ((x @ own["head"]) ** 2).mean(), ()


def renormalised(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Batch norm behind batch norm, the second corrected towards statistics of earlier steps, as batch renorm is."""
    x = own["embedding"][given["ids"]] @ own["mix"]
    norm = jax.checkpoint(lambda x: jax.nn.relu((x - x.mean((0, 1))) * jax.lax.rsqrt(x.var((0, 1)) + 1e-3)))
    x = norm(x) @ own["mix"]
    mean, deviation = x.mean((0, 1)), jnp.sqrt(x.var((0, 1)) + 1e-3)
    by = jax.lax.stop_gradient(jnp.clip(deviation / 1.5, 0.5, 2.0))
    away = jax.lax.stop_gradient(jnp.clip((mean - 0.1) / 1.5, -1.0, 1.0))
    kept = jax.random.bernoulli(jax.random.key(3), 0.8, x.shape)
    x = jnp.where(kept, (x - mean) / deviation * by + away, 0.0)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(x @ own["head"]), given["next"][..., None], -1).mean()
    return loss, {"mean": 0.9 * 0.1 + 0.1 * mean, "deviation": 0.9 * 1.5 + 0.1 * deviation, "each": x.mean((1, 2))}


def handed_on(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Samples that each read what the one before has left."""
    left, _ = jax.lax.scan(lambda left, one: (0.9 * left + jnp.tanh(one), left), 0.0, entropy(own, given).sum(1))
    return left, ()


def in_eights(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Samples a few at a time, in rounds that micro-batches do not share."""
    return jax.lax.map(lambda one: entropy(own, one).sum(), given, batch_size=8).mean(), ()


def contrasted(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """Every sample against all others, with a mean of them that is no gradient, and which is nearest."""
    x = jnp.tanh(own["embedding"][given["ids"]] @ own["mix"]).mean(1)
    near = x @ jax.lax.stop_gradient(x - x.mean(0)).T * jnp.exp(own["head"].mean())
    return -jnp.diagonal(jax.nn.log_softmax(near)).mean(), {"nearest": near.argmax(1), "x": x, "norm": (x**2).sum()}


def spread(own: Any, given: Any) -> tuple[jax.Array, Any]:
    """The entropy of the mean guess: of many sums, none of which is the loss."""
    mean = jax.nn.softmax(own["embedding"][given["ids"]] @ own["mix"] @ own["head"]).mean((0, 1))
    return (mean * jnp.log(mean)).sum() + jnp.prod(1.0 + mean), ()


EXACT: tuple[Loss, ...] = (
    masked, measured, root, logarithm, penalised, dropped, picked, standardised, routed, balanced, ruled, recomputed,
    chunked, mapped,
)  # fmt: skip
MET: tuple[Loss, ...] = (largest, hardest, shifted, handed_on, contrasted, spread, normalised, renormalised)
"""Exact, but for some work that is done twice."""
UNDIVIDED: tuple[Loss, ...] = (in_eights,)
"""Their batch stays in one piece."""


@cache
def step_of(loss: Loss, value_and_grad: Callable[..., Any] = mw.value_and_grad) -> Callable[[Any, Any], Any]:
    """Gradient descent.

    Args:
        loss: with what stands beside it.
        value_and_grad: of meshwright or of JAX.
    """

    def step(own: Any, given: Any) -> tuple[Any, jax.Array, Any]:
        (value, beside), gradients = value_and_grad(loss, has_aux=True)(own, given)
        return jax.tree.map(lambda one, gradient: one - RATE * gradient, own, gradients), value, beside

    return step


def difference(loss: Loss, method: Any, own: Any, given: Any) -> float:
    """Largest difference from one device and the whole batch, of the newer weights and all results.

    Args:
        loss: of the step.
        method: how it runs.
        own: weights.
        given: batch.
    """
    expected = on_one_device(step_of(loss, jax.value_and_grad), own, given)
    found = mw.parallelize(step_of(loss), method=method)(own, given)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.shape(one) == np.shape(other)
        assert one.dtype == other.dtype
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(np.asarray(one, float) - np.asarray(other, float)).max()) for one, other in pairs)
