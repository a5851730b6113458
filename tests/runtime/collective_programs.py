"""Steps of several kinds whose compiled collectives are held against their prices, as shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiler.methods.shard import ShardParallel
from meshwright.runtime.parallelize import parallelize

Step = Callable[[Any, Any], Any]
BYTES: dict[str, Any] = {"flop_per_s": 20.0, "link_bytes_per_s": 1.0, "link_latency_s": 1e-6}
"""Devices and links whose seconds of communication are bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBytes:
    """What a step sends out of one device."""

    priced_bytes: float
    sent_bytes: float
    scattered_bytes: float
    """Where sums that are kept in parts are reduce-scattered."""
    rank_axes: tuple[str, ...]


def collective_bytes(step: Step, arguments: Any, shape: tuple[int, ...]) -> CollectiveBytes:
    """Priced and compiled bytes of a step.

    Args:
        step: of training.
        arguments: shapes of its state and batch.
        shape: of the mesh.
    """
    compiled = parallelize(step, method=ShardParallel(mesh_shape=shape, **BYTES)).lower(*arguments)
    solved: Any = compiled.sharding
    nodes = zip(solved.graph.nodes, solved.solution.choice, strict=True)
    found = compiled.collectives().values()
    return CollectiveBytes(
        priced_bytes=solved.solution.objective_s - sum(float(node.compute_s[own]) for node, own in nodes),
        sent_bytes=sum(one.sent_bytes for one in found),
        scattered_bytes=sum(one.scattered_bytes for one in found),
        rank_axes=solved.rank_axes,
    )


def of(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def descent(loss: Callable[[Any, Any], jax.Array]) -> Step:
    """A step of plain descent."""

    def step(weights: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda one, change: one - 0.1 * change, weights, gradients), value

    return step


def perceptron(samples: int = 512, pairs: int = 4) -> tuple[Step, Any]:
    """Pairs of products, each with a way around."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for up, down in weights:
            x = x + jax.nn.relu(x @ up) @ down
        return jnp.mean(x**2)

    return descent(loss), ([(of(256, 1024), of(1024, 256))] * pairs, of(samples, 256))


def decoder(
    *, layers: int = 4, samples: int = 16, tokens: int = 64, scanned: bool = False, checkpoints: bool = False
) -> tuple[Step, Any]:
    """A GPT whose head is its embedding."""
    width, heads, words = 256, 8, 1024

    def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    def layer(x: jax.Array, own: Any) -> jax.Array:
        parts = jnp.split(normed(x, own["before"]) @ own["qkv"], 3, -1)
        q, k, v = (part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for part in parts)
        scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), q @ k.swapaxes(2, 3) / 8, -1e9)
        x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ own["out"]
        return x + jax.nn.gelu(normed(x, own["behind"]) @ own["up"] + own["bias"]) @ own["down"]

    each = jax.checkpoint(layer) if checkpoints else layer

    def loss(weights: Any, ids: jax.Array) -> jax.Array:
        x = weights["embedding"][ids[:, :-1]] + weights["positions"]
        if scanned:
            x, _ = jax.lax.scan(lambda x, own: (each(x, own), None), x, weights["layers"])
        else:
            for own in weights["layers"]:
                x = each(x, own)
        logits = normed(x, weights["last"]) @ weights["embedding"].T
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1).mean()

    one = {
        "before": of(width),
        "behind": of(width),
        "qkv": of(width, 3 * width),
        "out": of(width, width),
        "up": of(width, 4 * width),
        "bias": of(4 * width),
        "down": of(4 * width, width),
    }
    stacked = jax.tree.map(lambda own: of(layers, *own.shape), one)
    weights = {
        "embedding": of(words, width),
        "positions": of(tokens, width),
        "last": of(width),
        "layers": stacked if scanned else [one] * layers,
    }
    return descent(loss), (weights, of(samples, tokens + 1, dtype=jnp.int32))


def convolutions(samples: int = 64, *, normed: bool = True) -> tuple[Step, Any]:
    """Three convolutions, each with statistics of the batch and pooling, and a classifier."""
    features, classes = 32, 128

    def loss(weights: Any, batch: Any) -> jax.Array:
        x, labels = batch
        for kernel, scale in zip(weights["kernels"], weights["scales"], strict=True):
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            if normed:
                x = x - x.mean((0, 1, 2))
                x = x * jax.lax.rsqrt((x**2).mean((0, 1, 2)) + 1e-5) * scale
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.reshape(x.shape[0], -1) @ weights["head"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()

    kernels = [of(3, 3, 8, features), of(3, 3, features, features), of(3, 3, features, features)]
    weights = {"kernels": kernels, "scales": [of(features)] * 3, "head": of(4 * 4 * features, classes)}
    return descent(loss), (weights, (of(samples, 32, 32, 8), of(samples, dtype=jnp.int32)))


def sorted_experts(tokens: int = 1024, layers: int = 2) -> tuple[Step, Any]:
    """Tokens sorted by expert, grouped products."""
    width, wide, experts = 128, 256, 8

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for own in weights:
            scores = x @ own["router"]
            chosen, share = jnp.argmax(scores, -1), jnp.max(jax.nn.softmax(scores), -1)
            order = jnp.argsort(chosen)
            rows = jnp.bincount(chosen, length=experts).astype(jnp.int32)
            y = jax.nn.relu(jax.lax.ragged_dot(x[order], own["up"], rows))
            x = x + jax.lax.ragged_dot(y, own["down"], rows)[jnp.argsort(order)] * share[:, None]
        return jnp.mean(x**2)

    one = {"router": of(width, experts), "up": of(experts, width, wide), "down": of(experts, wide, width)}
    return descent(loss), ([one] * layers, of(tokens, width))


def dispatched_experts() -> tuple[Step, Any]:
    """Tokens of a group go to experts by products with a dispatch (GShard)."""
    groups, tokens, width, wide, experts = 64, 32, 64, 256, 8

    def loss(weights: Any, batch: Any) -> jax.Array:
        x, dispatch = batch
        y = jnp.einsum("gsec,gsm->egcm", dispatch, x @ weights["before"])
        y = jax.nn.relu(jnp.einsum("egcm,emh->egch", y, weights["up"]))
        y = jnp.einsum("egch,ehm->egcm", y, weights["down"])
        return jnp.mean((jnp.einsum("gsec,egcm->gsm", dispatch, y) @ weights["after"]) ** 2)

    weights = {
        "before": of(width, width),
        "up": of(experts, width, wide),
        "down": of(experts, wide, width),
        "after": of(width, width),
    }
    return descent(loss), (weights, (of(groups, tokens, width), of(groups, tokens, experts, tokens // experts)))


PROGRAMS: dict[str, Callable[[], tuple[Step, Any]]] = {
    "mlp": perceptron,
    "mlp small batch": partial(perceptron, samples=16),
    "gpt": decoder,
    "gpt small batch": partial(decoder, samples=2, tokens=32),
    "gpt checkpoints": partial(decoder, checkpoints=True),
    "gpt scanned": partial(decoder, scanned=True),
    "gpt scanned checkpoints": partial(decoder, scanned=True, checkpoints=True),
    "conv batch norm": convolutions,
    "conv": partial(convolutions, normed=False),
    "experts sorted": sorted_experts,
    "experts dispatched": dispatched_experts,
}


def blocks(layers: int, *, width: int = 2048, heads: int = 16, samples: int = 16, tokens: int = 1024) -> Any:
    """Layers of a GPT of 1.3 billion parameters, its products by heads, without embedding and head."""

    def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for own in weights:
            y = normed(x, own["before"])
            q, k, v = (jnp.einsum("bsh,hnd->bsnd", y, own[name]) for name in "qkv")
            seen = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
            share = jax.nn.softmax(jnp.where(seen, jnp.einsum("bqnd,bknd->bnqk", q, k), -1e9))
            x = x + jnp.einsum("bnqk,bknd,ndh->bqh", share, v, own["out"])
            x = x + jax.nn.gelu(normed(x, own["behind"]) @ own["up"]) @ own["down"]
        return jnp.mean(x**2)

    by_heads = of(width, heads, width // heads)
    one = {
        "q": by_heads,
        "k": by_heads,
        "v": by_heads,
        "out": of(heads, width // heads, width),
        "up": of(width, 4 * width),
        "down": of(4 * width, width),
        "before": of(width),
        "behind": of(width),
    }
    return descent(loss), ([one] * layers, of(samples, tokens, width))
