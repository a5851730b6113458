"""Causal grouped-query attention, with rotary positions where the model has no table of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshwright.compiler.grid import Axes, DeviceGrid
from meshwright.specs.layers.attention import Attention
from meshwright.strategies import CONTEXTS
from meshwright.zoo.attention_ranks import GatheredRanks, RankAttention, Seen, TreeRanks
from meshwright.zoo.attention_rings import BurstRanks, RingRanks
from meshwright.zoo.blocks import WHOLE, WholeTensors
from meshwright.zoo.feed_forward import biased
from meshwright.zoo.parts import EPSILON, drawn
from meshwright.zoo.scores import dense_attention, repeated
from meshwright.zoo.token_order import order_on

Levels = tuple[tuple[str, Axes], ...]


KINDS: dict[str, type[RankAttention]] = {
    "p2p": RingRanks,
    "striped": RingRanks,
    "burst": BurstRanks,
    "ag": GatheredRanks,
    "tree": TreeRanks,
}
"""What a rank does under each kind of context parallelism but those that exchange heads for tokens."""


def mixed(spec: Attention, grid: DeviceGrid | None, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(head_dim)) v, [samples, length, heads, head_dim].

    Args:
        spec: mask and window.
        grid: the grid of the devices; tokens are split where it has context axes, and stand in the order of its ranks.
        q: [samples, length, heads, head_dim].
        k: [samples, length, kv_heads, head_dim]; every so many query heads share one.
        v: [samples, length, kv_heads, head_dim].
    """
    if grid is None or not grid.tokens:
        return dense_attention(spec, q, k, v, jnp.arange(q.shape[1]), jnp.arange(k.shape[1]))
    k, v = (repeated(one, grid.size(grid.tensor)) for one in (k, v))
    return _levels(spec, grid, grid.context, grid.tensor, q, k, v)


def on_rank(spec: Attention, grid: DeviceGrid | None, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same on one rank of the grid, of its own heads, tokens and samples; arguments as `mixed`."""
    return _on_rank(spec, grid, grid.context if grid else (), q, k, v)


def _on_rank(
    spec: Attention, grid: DeviceGrid | None, levels: Levels, q: jax.Array, k: jax.Array, v: jax.Array
) -> jax.Array:
    if grid is None or not levels:
        return dense_attention(spec, q, k, v, jnp.arange(q.shape[1]), jnp.arange(k.shape[1]))
    (kind, axes), *outer = levels
    if not CONTEXTS[kind].swaps_heads:
        return _of_kind(spec, grid, levels, q.shape[1] * grid.size(axes))(q, k, v)
    every = [q, *(repeated(one, grid.size(axes)) for one in (k, v))]
    exchanged = (jax.lax.all_to_all(one, axes, 2, 1, tiled=True) for one in every)
    return jax.lax.all_to_all(_on_rank(spec, grid, tuple(outer), *exchanged), axes, 1, 2, tiled=True)


@lru_cache(maxsize=64)
def _of_kind(spec: Attention, grid: DeviceGrid, levels: Levels, length: int) -> Seen:
    """Attention on a rank of the last level, one object for all layers alike."""
    ((kind, axes),), places = levels, grid.places(length)
    assert places is not None
    return KINDS[kind](spec=spec, axes=axes, places=places).on_rank()


def _levels(
    spec: Attention, grid: DeviceGrid, levels: Levels, heads: Axes, q: jax.Array, k: jax.Array, v: jax.Array
) -> jax.Array:
    """Attention over the levels that are left, the innermost first; `heads` are the axes along which they are split."""
    if levels and CONTEXTS[levels[0][0]].swaps_heads:
        (_, axes), *outer = levels
        apart, together = _split(grid, levels, heads), _split(grid, outer, (*heads, *axes))

        def exchanged(*own: jax.Array) -> list[jax.Array]:
            every = [own[0], *(repeated(one, grid.size(axes)) for one in own[1:])]
            return [jax.lax.all_to_all(one, axes, 2, 1, tiled=True) for one in every]

        ranks = jax.shard_map(exchanged, mesh=grid.mesh, in_specs=(apart,) * 3, out_specs=[together] * 3)
        made = _levels(spec, grid, tuple(outer), (*heads, *axes), *ranks(q, k, v))
        back = jax.shard_map(
            lambda own: jax.lax.all_to_all(own, axes, 1, 2, tiled=True),
            mesh=grid.mesh,
            in_specs=together,
            out_specs=apart,
        )
        return back(made)
    split = _split(grid, levels, heads)
    over_ranks = _over_ranks(spec, grid, levels, split, q.shape[1]) if levels else None
    if over_ranks is not None:
        return over_ranks(q, k, v)
    every = jnp.arange(q.shape[1])
    alone = partial(dense_attention, spec, queries=every, keys=every)
    return jax.shard_map(alone, mesh=grid.mesh, in_specs=(split,) * 3, out_specs=split)(q, k, v)


@lru_cache(maxsize=64)
def _over_ranks(spec: Attention, grid: DeviceGrid, levels: Levels, split: PartitionSpec, length: int) -> Seen | None:
    """Attention over the ranks of the last level, one object for all layers alike: their passes are traced once.

    None where no level deals tokens out.
    """
    ((kind, axes),), places = levels, grid.places(length)
    return None if places is None else KINDS[kind](spec=spec, axes=axes, places=places).over(grid.mesh, split)


def _split(grid: DeviceGrid, levels: Sequence[tuple[str, Axes]], heads: Axes) -> PartitionSpec:
    """How ranks split [samples, length, heads, head_dim]."""
    tokens = tuple(axis for _, axes in reversed(levels) for axis in axes)
    return PartitionSpec(grid.data or None, tokens or None, heads or None)


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
        x: [samples, length, hidden], tokens in the order of the grid's ranks.
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
        places = held.own_tokens(jnp.asarray(order_on(grid, held.tokens(q.shape[1]))))
        q, k = _turned(q, places), _turned(k, places)
    core = partial(mixed if held is WHOLE else on_rank, spec, grid)
    return biased(weights, "out", held.out((jax.checkpoint(core) if core_again else core)(q, k, v), weights["out"]))


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + EPSILON)


def _turned(x: jax.Array, places: jax.Array) -> jax.Array:
    """Pairs (i, i + d/2) turned by place x base^(-2i/d) (Su et al. 2021, RoFormer, section 3.2.2)."""
    half = x.shape[-1] // 2
    angles = places[:, None] * ROTARY_BASE ** (-jnp.arange(half) / half)
    cosine, sine = (f(angles)[:, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate([*turned, x[..., 2 * half :]], axis=-1)
