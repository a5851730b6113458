"""One optimizer step of a model: marked gradient, clipping by the global norm, Adam. No optimizer library is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiler.marking import value_and_grad
from meshwright.zoo.model import Model

State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Kingma and Ba 2015, algorithm 1, with gradients clipped by their global norm."""

    rate: float = 1e-3
    mean_decay: float = 0.9
    square_decay: float = 0.95
    epsilon: float = 1e-5
    """As Touvron et al. 2023 (Llama 2), section 2.2: rounding of gradients near zero moves no weight."""
    clip: float | None = 1.0
    """Largest global norm of the gradients."""

    def init(self, weights: Any) -> Any:
        """Moments before the first step.

        Args:
            weights: of the model.
        """
        return {"mean": jax.tree.map(jnp.zeros_like, weights), "square": jax.tree.map(jnp.zeros_like, weights)}

    def update(self, weights: Any, moments: Any, gradients: Any, step: jax.Array) -> tuple[Any, Any]:
        """Weights and moments after a step.

        Args:
            weights: before it.
            moments: before it.
            gradients: of the loss.
            step: counted from 0.
        """
        if self.clip is not None:
            squares = [(leaf.astype(jnp.result_type(float)) ** 2).sum() for leaf in jax.tree.leaves(gradients)]
            size = jnp.sqrt(sum(squares[1:], squares[0]))
            factor = jnp.minimum(1.0, self.clip / jnp.maximum(size, 1e-12))
            gradients = jax.tree.map(lambda leaf: leaf * factor, gradients)

        def blended(decay: float, old: Any, new: Any) -> Any:
            return jax.tree.map(lambda a, b: decay * a + (1.0 - decay) * b, old, new)

        mean = blended(self.mean_decay, moments["mean"], gradients)
        square = blended(self.square_decay, moments["square"], jax.tree.map(jnp.square, gradients))
        count = step.astype(jnp.result_type(float)) + 1.0
        mean_share, square_share = 1.0 - self.mean_decay**count, 1.0 - self.square_decay**count

        def moved(weight: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
            return weight - self.rate * (first / mean_share) / (jnp.sqrt(second / square_share) + self.epsilon)

        return jax.tree.map(moved, weights, mean, square), {"mean": mean, "square": square}


def initial_state(model: Model, optimizer: Adam, seed: int = 0) -> State:
    """Weights, moments and the number of steps so far.

    Args:
        model: whose weights.
        optimizer: whose moments.
        seed: of the weights.
    """
    weights = jax.jit(model.init)(jax.random.key(seed))
    return {"weights": weights, "moments": optimizer.init(weights), "step": jnp.zeros((), jnp.int32)}


def train_step(
    model: Model, optimizer: Adam, seed: int = 0, *, gradients_too: bool = False
) -> Callable[[State, Any], tuple[Any, ...]]:
    """The step that `parallelize` takes: of a state and a batch, returns the next state and the loss.

    Args:
        model: trained.
        optimizer: that moves it.
        seed: of dropout.
        gradients_too: whether it returns the gradients as well, before they are clipped.
    """

    def step(state: State, batch: Any) -> tuple[Any, ...]:
        key = jax.random.fold_in(jax.random.key(seed), state["step"])
        value, gradients = value_and_grad(model.loss)(state["weights"], batch, key)
        weights, moments = optimizer.update(state["weights"], state["moments"], gradients, state["step"])
        after = {"weights": weights, "moments": moments, "step": state["step"] + 1}
        return (after, value, gradients) if gradients_too else (after, value)

    return step
