"""A plain multi-layer perceptron on vectors: the smallest thing that has layers to cut between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.marking import layer_boundary
from meshwright.zoo.parts import drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Perceptron:
    """Layers of tanh, fitted to a fixed matrix."""

    name: str = "mlp-tiny"
    hidden: int = 32
    num_layers: int = 8
    ends: frozenset[int] = frozenset()
    """Layers before each place where a stage has to end; without it the compiler finds where."""

    def init(self, key: jax.Array) -> list[dict[str, jax.Array]]:
        """A square matrix and a bias per layer.

        Args:
            key: the key of the random numbers.
        """
        keys = jax.random.split(key, self.num_layers)
        return [
            {"weight": drawn(one, (self.hidden, self.hidden), self.hidden), "bias": jnp.zeros(self.hidden)}
            for one in keys
        ]

    def loss(self, weights: list[dict[str, jax.Array]], batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        """Mean squared error.

        Args:
            weights: the weights of `init`.
            batch: vectors and what is wanted of them.
            key: not needed.
        """
        x = batch["x"]
        for number, layer in enumerate(weights[:-1], 1):
            x = jnp.tanh(x @ layer["weight"] + layer["bias"])
            x = layer_boundary(x) if number in self.ends else x
        return ((x @ weights[-1]["weight"] + weights[-1]["bias"] - batch["wanted"]) ** 2).mean()

    def batch(self, step: int, samples: int, seed: int = 0) -> dict[str, Any]:
        """Normal vectors and their product with a fixed matrix.

        Args:
            step: counted from 0.
            samples: the number of samples in the batch.
            seed: the seed of the data.
        """
        teacher = np.random.default_rng(seed).standard_normal((self.hidden, self.hidden)) / self.hidden**0.5
        x = np.random.default_rng((seed, step)).standard_normal((samples, self.hidden))
        dtype = np.dtype(jnp.result_type(float))
        return {"x": x.astype(dtype), "wanted": np.tanh(x @ teacher).astype(dtype)}
