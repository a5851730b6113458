"""Weights and gradients in few bits on the network: whole numbers of a block, and its scale.

Source: Wang et al. 2023, ZeRO++ (arXiv 2306.10209), sections 3.1 (qwZ) and 3.3 (qgZ).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK = 2048
"""Most elements that share a scale."""
LEVELS = {"int8": 127, "int4": 7}
"""Largest whole number of each format."""

Quantised = tuple[jax.Array, jax.Array]
"""Numbers, two to a byte where they have four bits, and the scale of each block: [..., bytes], [..., blocks]."""


def padded(elements: int, ranks: int) -> int:
    """Elements of a rank's part of a tensor, in whole blocks and bytes.

    Args:
        elements: the number of elements of the tensor.
        ranks: the number of ranks that share it.
    """
    part = -(-elements // ranks)
    return -(-part // BLOCK) * BLOCK if part > BLOCK else part + part % 2


def quantised(values: jax.Array, dtype: str) -> Quantised:
    """The nearest numbers of each block of the last axis.

    Args:
        values: [..., elements], of `padded`.
        dtype: int8 or int4.
    """
    *outer, elements = values.shape
    blocks = values.reshape(*outer, -1, min(elements, BLOCK))
    scale = jnp.maximum(jnp.abs(blocks).max(-1), 1e-30) / LEVELS[dtype]
    numbers = jnp.round(blocks / scale[..., None]).astype(jnp.int8).reshape(*outer, elements)
    if dtype == "int4":
        pairs = (numbers + 8).astype(jnp.uint8).reshape(*outer, -1, 2)
        numbers = pairs[..., 0] * 16 + pairs[..., 1]
    return numbers, scale.astype(jnp.float32)


def restored(sent: Quantised, dtype: str, like: jax.Array) -> jax.Array:
    """Values of numbers and scales.

    Args:
        sent: what `quantised` sent.
        dtype: the number format of what was quantised.
        like: has the format of the values.
    """
    numbers, scale = sent
    if dtype == "int4":
        pairs = jnp.stack([numbers // 16, numbers % 16], axis=-1)
        numbers = (pairs.astype(jnp.int8) - 8).reshape(*numbers.shape[:-1], -1)
    *outer, elements = numbers.shape
    blocks = numbers.reshape(*outer, scale.shape[-1], -1).astype(like.dtype) * scale[..., None].astype(like.dtype)
    return blocks.reshape(*outer, elements)
