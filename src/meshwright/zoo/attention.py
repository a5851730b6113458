"""Causal grouped-query attention, with rotary positions where the model has no table of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshwright.specs.model import Attention
from meshwright.zoo.parts import EPSILON, drawn

ROTARY_BASE = 10_000.0

Weights = dict[str, jax.Array]


def attention_weights(spec: Attention, hidden: int, key: jax.Array, scale: float) -> Weights:
    """Projections with an axis for heads: q [hidden, heads, head_dim], out [heads, head_dim, hidden].

    Args:
        spec: heads and their width.
        hidden: width of the stream.
        key: of the random numbers.
        scale: of the output projection.
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


def attention(spec: Attention, weights: Weights, x: jax.Array, *, rotary: bool, core_again: bool) -> jax.Array:
    """Attention of every sample to itself.

    Args:
        spec: heads, window.
        weights: of `attention_weights`.
        x: [samples, length, hidden].
        rotary: whether positions turn queries and keys.
        core_again: whether the backward computes scores again instead of keeping them.
    """
    q, k, v = (_projected(weights, name, x) for name in "qkv")
    if spec.qk_norm:
        q, k = (_unit(one) * weights[f"{name}_norm"] for name, one in (("q", q), ("k", k)))
    if rotary:
        q, k = _turned(q), _turned(k)
    grouped = q.reshape(*q.shape[:2], spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)

    def core(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqngd,bknd->bngqk", q, k) / spec.head_dim**0.5
        shares = jax.nn.softmax(jnp.where(_seen(spec, x.shape[1]), scores, _least(scores.dtype)), axis=-1)
        return jnp.einsum("bngqk,bknd->bqngd", shares, v)

    mixed = (jax.checkpoint(core) if core_again else core)(grouped, k, v).reshape(q.shape)
    out = jnp.einsum("bqnd,ndh->bqh", mixed, weights["out"])
    return out + weights["out_bias"] if spec.out_bias else out


def _projected(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    projected = jnp.einsum("bsh,hnd->bsnd", x, weights[name])
    bias = weights.get(f"{name}_bias")
    return projected if bias is None else projected + bias


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


def _seen(spec: Attention, length: int) -> jax.Array:
    """Which keys a query sees: those before it, and no further back than the window."""
    back = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
    seen = back >= 0 if spec.causal else jnp.full(back.shape, True)
    return seen if spec.window is None else seen & (jnp.abs(back) < spec.window)


def _least(dtype: jnp.dtype) -> float:
    return float(jnp.finfo(dtype).min) / 2
