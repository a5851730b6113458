"""Scores of queries and keys, their softmax, and parts of both: sums that are joined later, and gradients of a part.

A part has the keys of one block. Its sums are scaled to its own largest score, so that those of two blocks are joined
by scaling them to the larger one. Source: Dao et al. 2022 (FlashAttention, arXiv 2205.14135), algorithms 1 and 4.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshwright.specs.layers.attention import Attention


class Sums(NamedTuple):
    """What a part of the keys gives every query: [samples, kv_heads, heads of each, queries, 1 or head_dim]."""

    best: jax.Array
    """Largest score."""
    total: jax.Array
    """Sum of exp(score - best)."""
    values: jax.Array
    """Values weighted by exp(score - best)."""

    def joined(self, other: Sums) -> Sums:
        """Sums over the keys of both parts."""
        best = jnp.maximum(self.best, other.best)
        own, its = jnp.exp(self.best - best), jnp.exp(other.best - best)
        return Sums(best, self.total * own + other.total * its, self.values * own + other.values * its)


class QueryParts(NamedTuple):
    """What the gradients of a part of the keys need of queries."""

    q: jax.Array
    """[samples, queries, heads, head_dim]."""
    slope: jax.Array
    """Gradient of their outputs, [samples, queries, heads, head_dim]."""
    log_total: jax.Array
    """log sum exp(score) over all keys, [samples, kv_heads, heads of each, queries, 1]."""
    mean: jax.Array
    """Output times its gradient, summed over the width; shaped as `log_total`."""


def dense_attention(
    spec: Attention, q: jax.Array, k: jax.Array, v: jax.Array, queries: jax.Array, keys: jax.Array
) -> jax.Array:
    """softmax(q k^T / sqrt(head_dim)) v where all keys are there, [samples, queries, heads, head_dim].

    Args:
        spec: mask and window.
        q: [samples, queries, heads, head_dim].
        k: [samples, keys, kv_heads, head_dim].
        v: [samples, keys, kv_heads, head_dim].
        queries: places of the queries in the sequence.
        keys: places of the keys.
    """
    shares = jax.nn.softmax(_scores(spec, q, k, queries, keys), axis=-1)
    return by_token(_weighted(shares, v), q.shape)


def part_sums(spec: Attention, q: jax.Array, k: jax.Array, v: jax.Array, queries: jax.Array, keys: jax.Array) -> Sums:
    """Sums over the keys of one block, arguments as in `dense_attention`."""
    scores = wide(_scores(spec, q, k, queries, keys))
    best = scores.max(-1, keepdims=True)
    shares = jnp.exp(scores - best)
    return Sums(best, shares.sum(-1, keepdims=True), _weighted(shares, wide(v)))


def part_gradients(
    spec: Attention, own: QueryParts, k: jax.Array, v: jax.Array, queries: jax.Array, keys: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of queries, keys and values from one block of keys.

    Args:
        spec: mask and window.
        own: what is needed of the queries.
        k: [samples, keys, kv_heads, head_dim].
        v: [samples, keys, kv_heads, head_dim].
        queries: places of the queries in the sequence.
        keys: places of the keys.
    """
    shares = jnp.exp(wide(_scores(spec, own.q, k, queries, keys)) - own.log_total)
    slope = _grouped(wide(own.slope), k.shape[2])
    of_values = jnp.einsum("bngqk,bqngd->bknd", shares, slope)
    of_scores = shares * (jnp.einsum("bqngd,bknd->bngqk", slope, wide(v)) - own.mean) / spec.head_dim**0.5
    of_queries = jnp.einsum("bngqk,bknd->bqngd", of_scores, wide(k)).reshape(own.q.shape)
    of_keys = jnp.einsum("bngqk,bqngd->bknd", of_scores, _grouped(wide(own.q), k.shape[2]))
    return of_queries, of_keys, of_values


def nothing(q: jax.Array, kv_heads: int) -> Sums:
    """Sums over no keys.

    Args:
        q: [samples, queries, heads, head_dim].
        kv_heads: the heads of keys that its heads share.
    """
    values = jnp.zeros_like(wide(jnp.moveaxis(_grouped(q, kv_heads), 1, 3)))
    return Sums(values[..., :1] + _least(values.dtype), values[..., :1], values)


def log_total(sums: Sums) -> jax.Array:
    """log sum exp(score) of all keys."""
    return sums.best + jnp.log(sums.total)


def outputs(sums: Sums, like: jax.Array) -> jax.Array:
    """Values of sums over all keys, in the shape and format of the queries."""
    return by_token(sums.values / sums.total, like.shape).astype(like.dtype)


def slope_means(out: jax.Array, slope: jax.Array, kv_heads: int) -> jax.Array:
    """`QueryParts.mean` of outputs and their gradient, both [samples, queries, heads, head_dim]."""
    means = (wide(out) * wide(slope)).sum(-1, keepdims=True)
    return jnp.moveaxis(_grouped(means, kv_heads), 1, 3)


def by_token(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """[samples, kv_heads, heads of each, queries, width] as [samples, queries, heads, width]."""
    return jnp.moveaxis(values, 3, 1).reshape(shape)


def repeated(x: jax.Array, ranks: int) -> jax.Array:
    """Keys or values, each several times where ranks are no divisor of their heads."""
    heads = x.shape[2]
    times = lcm(heads, ranks) // heads
    return jnp.repeat(x, times, axis=2) if times > 1 else x


def _scores(spec: Attention, q: jax.Array, k: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """[samples, kv_heads, heads of each, queries, keys]; what a query does not see has the least."""
    scores = jnp.einsum("bqngd,bknd->bngqk", _grouped(q, k.shape[2]), k) / spec.head_dim**0.5
    return jnp.where(_seen(spec, queries, keys), scores, _least(scores.dtype))


def _least(dtype: jnp.dtype) -> float:
    return float(jnp.finfo(dtype).min) / 2


def _weighted(shares: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.einsum("bngqk,bknd->bngqd", shares, v)


def _grouped(q: jax.Array, kv_heads: int) -> jax.Array:
    """[samples, queries, kv_heads, heads of each, width]."""
    return q.reshape(*q.shape[:2], kv_heads, q.shape[2] // kv_heads, q.shape[3])


def _seen(spec: Attention, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Which keys a query sees: those before it, and no further back than the window."""
    back = queries[:, None] - keys[None, :]
    seen = back >= 0 if spec.causal else jnp.full(back.shape, True)
    return seen if spec.window is None else seen & (jnp.abs(back) < spec.window)


def wide(x: jax.Array) -> jax.Array:
    """Values as sums over blocks take them: in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
