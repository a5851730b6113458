"""Layers whose backward finds what it needs in the host's memory: forward sends it there, backward fetches it.

Weights stay where they are, as do keys of random numbers and numbers that are no activations. Where nothing is sent,
the mathematics are the same.

Source: Rhu et al. 2016, vDNN (arXiv 1602.08124), section 3; Rajbhandari et al. 2021, ZeRO-Infinity (arXiv 2104.07857),
section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

Layer = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""A layer: from weights, the stream and keys of dropout, the next stream and the imbalance of routers."""


def swapped(layer: Layer) -> Layer:
    """A layer, or several, whose kept activations wait in the host's memory.

    Args:
        layer: the layer of weights, the stream and keys; what it keeps itself, recomputation included, is what leaves.

    Returns:
        The same function with another backward.
    """

    def forward(weights: Any, x: jax.Array, keys: jax.Array) -> tuple[tuple[jax.Array, Any], Any]:
        made, back = jax.vjp(lambda own, given: layer(own, given, keys), weights, x)
        stays = {id(leaf) for leaf in jax.tree.leaves(weights)}

        def sent(leaf: Any) -> Any:
            if id(leaf) in stays or not _is_activation(leaf):
                return leaf
            return jax.device_put(leaf, jax.memory.Space.Host)

        leaves, tree = jax.tree.flatten(back)
        return made, jax.tree.unflatten(tree, [sent(leaf) for leaf in leaves])

    def backward(back: Any, given: tuple[jax.Array, Any]) -> tuple[Any, jax.Array, None]:
        fetched = jax.tree.map(_fetched, back)
        own, x = fetched(given)
        return own, x, None

    whole = jax.custom_vjp(layer)
    whole.defvjp(forward, backward)
    return cast(Layer, whole)


def _is_activation(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.ndim > 0


def _fetched(leaf: Any) -> Any:
    away = getattr(jax.typeof(leaf), "memory_space", None) == jax.memory.Space.Host
    return jax.device_put(leaf, jax.memory.Space.Device) if away else leaf
