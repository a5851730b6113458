"""Causal grouped-query attention, with rotary positions where the model has no table of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from meshwright.compiler.grid import DeviceGrid
from meshwright.specs.layers import Attention
from meshwright.zoo.attention_core import mixed
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


def attention(
    spec: Attention, weights: Weights, x: jax.Array, *, rotary: bool, core_again: bool, grid: DeviceGrid | None = None
) -> jax.Array:
    """Attention of every sample to itself.

    Args:
        spec: heads, window.
        weights: of `attention_weights`.
        x: [samples, length, hidden].
        rotary: whether positions turn queries and keys.
        core_again: whether the backward computes scores again instead of keeping them.
        grid: of the devices that share the work; its context ranks split the tokens of a sample.
    """
    q, k, v = (_projected(weights, name, x) for name in "qkv")
    if spec.qk_norm:
        q, k = (_unit(one) * weights[f"{name}_norm"] for name, one in (("q", q), ("k", k)))
    if rotary:
        q, k = _turned(q), _turned(k)
    core = partial(mixed, spec, grid)
    out = jnp.einsum("bqnd,ndh->bqh", (jax.checkpoint(core) if core_again else core)(q, k, v), weights["out"])
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
