"""The dense MLP of a layer: two matrices with GELU, or three with SiLU gates."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.zoo.blocks import WHOLE, WholeTensors
from meshwright.zoo.parts import drawn

Weights = dict[str, jax.Array]


def mlp_weights(spec: DenseMlp, hidden: int, key: jax.Array, scale: float) -> Weights:
    """Matrices up [hidden, ffn], gate likewise, down [ffn, hidden], and their biases.

    Args:
        spec: width, gate, biases.
        hidden: width of the stream.
        key: the key of the random numbers.
        scale: the scale of the matrix down.
    """
    up, gate, down = jax.random.split(key, 3)
    weights = {
        "up": drawn(up, (hidden, spec.ffn_hidden), hidden),
        "down": drawn(down, (spec.ffn_hidden, hidden), spec.ffn_hidden, scale),
    }
    if spec.gated:
        weights["gate"] = drawn(gate, (hidden, spec.ffn_hidden), hidden)
    if spec.bias:
        weights |= {f"{name}_bias": jnp.zeros(weights[name].shape[-1]) for name in tuple(weights)}
    return weights


def mlp(weights: Weights, x: jax.Array, held: WholeTensors = WHOLE) -> jax.Array:
    """down(gelu(up x)), or down(silu(gate x) * up x) (Shazeer 2020, GLU variants).

    Args:
        weights: the weights of `mlp_weights`.
        x: [..., hidden].
        held: how ranks hold the matrices.
    """
    names = [name for name in ("gate", "up") if name in weights]
    *gate, wide = (
        biased(weights, name, made)
        for name, made in zip(names, held.into(x, *(weights[name] for name in names)), strict=True)
    )
    wide = jax.nn.silu(gate[0]) * wide if gate else jax.nn.gelu(wide)
    return biased(weights, "down", held.out(wide, weights["down"]))


def biased(weights: Weights, name: str, made: jax.Array) -> jax.Array:
    """A product with its bias, where there is one.

    Args:
        weights: the weights of a part of a layer.
        name: the name of the matrix.
        made: what it made.
    """
    bias = weights.get(f"{name}_bias")
    return made if bias is None else made + bias
