"""Causal grouped-query attention, with rotary positions where the model has no table of them."""

from __future__ import annotations

from functools import partial
from math import lcm

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.specs.layers.attention import Attention
from meshwright.zoo.blocks import WHOLE, WholeTensors
from meshwright.zoo.feed_forward import biased
from meshwright.zoo.parts import EPSILON, drawn

Levels = tuple[tuple[str, Axes], ...]


def mixed(spec: Attention, grid: DeviceGrid | None, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(head_dim)) v, [samples, length, heads, head_dim].

    Args:
        spec: mask and window.
        grid: the grid of the devices; tokens are split where it has context axes.
        q: [samples, length, heads, head_dim].
        k: [samples, length, kv_heads, head_dim]; every so many query heads share one.
        v: [samples, length, kv_heads, head_dim].
    """
    if grid is None or not grid.tokens:
        return _block(spec, q, k, v, jnp.arange(q.shape[1]), jnp.arange(k.shape[1]))
    k, v = (_repeated(one, grid.size(grid.tensor)) for one in (k, v))
    split = PartitionSpec(grid.data or None, grid.tokens, grid.tensor or None)

    def ranks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _levels(spec, grid.context, grid, q, k, v)

    return jax.shard_map(ranks, mesh=grid.mesh, in_specs=(split, split, split), out_specs=split)(q, k, v)


def _levels(spec: Attention, levels: Levels, grid: DeviceGrid, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention of one rank's tokens, over the levels that are left, the innermost first."""
    if not levels:
        return _block(spec, q, k, v, jnp.arange(q.shape[1]), jnp.arange(k.shape[1]))
    (kind, axes), *outer = levels
    if kind == "a2a":
        k, v = (_repeated(one, grid.size(axes)) for one in (k, v))
        q, k, v = (jax.lax.all_to_all(one, axes, 2, 1, tiled=True) for one in (q, k, v))
        return jax.lax.all_to_all(_levels(spec, tuple(outer), grid, q, k, v), axes, 1, 2, tiled=True)
    own = jax.lax.axis_index(axes) * q.shape[1] + jnp.arange(q.shape[1])
    if kind == "ag":
        k, v = (jax.lax.all_gather(one, axes, axis=1, tiled=True) for one in (k, v))
        return _block(spec, q, k, v, own, jnp.arange(k.shape[1]))
    return _ring(spec, axes, grid.size(axes), q, k, v, own)


def _ring(
    spec: Attention, axes: Axes, count: int, q: jax.Array, k: jax.Array, v: jax.Array, own: jax.Array
) -> jax.Array:
    """Blocks of keys from this rank, then from those before it; sums are scaled to the largest score so far."""
    rank, length = jax.lax.axis_index(axes), q.shape[1]
    around = [(source, (source + 1) % count) for source in range(count)]
    scores = _scores(spec, q, k, own, own)
    # A query sees itself, so that its largest score is a true one from the first block on.
    best = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    shares = jnp.exp(scores - best)
    total, values = shares.sum(-1, keepdims=True), _weighted(shares, v)
    for back in range(1, count):
        k, v = (jax.lax.ppermute(one, axes, around) for one in (k, v))
        there = (rank - back) % count * length + jnp.arange(length)
        scores = _scores(spec, q, k, own, there)
        before, best = best, jnp.maximum(best, jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        shares, scale = jnp.exp(scores - best), jnp.exp(before - best)
        total = total * scale + shares.sum(-1, keepdims=True)
        values = values * scale + _weighted(shares, v)
    return _by_token(values / total, q.shape)


def _block(spec: Attention, q: jax.Array, k: jax.Array, v: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    shares = jax.nn.softmax(_scores(spec, q, k, queries, keys), axis=-1)
    return _by_token(_weighted(shares, v), q.shape)


def _scores(spec: Attention, q: jax.Array, k: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """[samples, kv_heads, heads of each, queries, keys]; what a query does not see has the least."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], q.shape[2] // k.shape[2], q.shape[3])
    scores = jnp.einsum("bqngd,bknd->bngqk", grouped, k) / spec.head_dim**0.5
    return jnp.where(_seen(spec, queries, keys), scores, float(jnp.finfo(scores.dtype).min) / 2)


def _weighted(shares: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.einsum("bngqk,bknd->bngqd", shares, v)


def _by_token(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.moveaxis(values, 3, 1).reshape(shape)


def _seen(spec: Attention, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Which keys a query sees: those before it, and no further back than the window."""
    back = queries[:, None] - keys[None, :]
    seen = back >= 0 if spec.causal else jnp.full(back.shape, True)
    return seen if spec.window is None else seen & (jnp.abs(back) < spec.window)


def _repeated(x: jax.Array, ranks: int) -> jax.Array:
    """Keys or values, each several times where ranks are no divisor of their heads."""
    heads = x.shape[2]
    times = lcm(heads, ranks) // heads
    return jnp.repeat(x, times, axis=2) if times > 1 else x


ROTARY_BASE = 10_000.0

Weights = dict[str, jax.Array]


def attention_weights(spec: Attention, hidden: int, key: jax.Array, scale: float) -> Weights:
    """Projections with an axis for heads: q [hidden, heads, head_dim], out [heads, head_dim, hidden].

    Args:
        spec: heads and their width.
        hidden: width of the stream.
        key: the key of the random numbers.
        scale: the scale of the output projection.
    """
    keys = jax.random.split(key, 4)
    heads = {"q": spec.heads, "k": spec.kv_heads, "v": spec.kv_heads}
    weights = {
        name: drawn(one, (hidden, count, spec.head_dim), hidden)
        for one, (name, count) in zip(keys[:3], heads.items(), strict=True)
    }
    weights["out"] = drawn(keys[3], (spec.heads, spec.head_dim, hidden), spec.value_width, scale)
    if spec.qkv_bias:
        weights |= {f"{name}_bias": jnp.zeros((count, spec.head_dim)) for name, count in heads.items()}
    if spec.out_bias:
        weights["out_bias"] = jnp.zeros(hidden)
    if spec.qk_norm:
        weights |= {"q_norm": jnp.ones(spec.head_dim), "k_norm": jnp.ones(spec.head_dim)}
    return weights


def attention(
    spec: Attention,
    weights: Weights,
    x: jax.Array,
    *,
    rotary: bool,
    core_again: bool,
    grid: DeviceGrid | None = None,
    held: WholeTensors = WHOLE,
) -> jax.Array:
    """Attention of every sample to itself.

    Args:
        spec: heads, window.
        weights: the weights of `attention_weights`.
        x: [samples, length, hidden].
        rotary: whether positions turn queries and keys.
        core_again: whether the backward computes scores again instead of keeping them.
        grid: the grid of the devices that share the work; its context ranks split the tokens of a sample.
        held: how ranks hold the matrices.
    """
    ranks = 1 if grid is None else grid.size(grid.tensor)
    projected = held.into(x, *(weights[name] for name in "qkv"), ranks=ranks)
    q, k, v = (biased(weights, name, one) for name, one in zip("qkv", projected, strict=True))
    if spec.qk_norm:
        q, k = (_unit(one) * weights[f"{name}_norm"] for name, one in (("q", q), ("k", k)))
    if rotary:
        q, k = _turned(q), _turned(k)
    core = partial(mixed, spec, grid)
    return biased(weights, "out", held.out((jax.checkpoint(core) if core_again else core)(q, k, v), weights["out"]))


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + EPSILON)


def _turned(x: jax.Array) -> jax.Array:
    """Pairs (i, i + d/2) turned by position x base^(-2i/d) (Su et al. 2021, RoFormer, section 3.2.2)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * ROTARY_BASE ** (-jnp.arange(half) / half)
    cosine, sine = (f(angles)[:, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate([*turned, x[..., 2 * half :]], axis=-1)
