"""One optimizer step of a model: marked gradient, clipping by the global norm, Adam. No optimizer library is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    """Epsilon as of Touvron et al. 2023 (Llama 2), section 2.2: rounding of gradients near zero moves no weight."""
    clip: float | None = 1.0
    """Largest global norm of the gradients."""

    def differentiated(self, weights: Any, moments: Any) -> Any:
        """What the loss of `loss_of` is differentiated in.

        Args:
            weights: the weights of the model.
            moments: the moments of the state.
        """
        return weights

    def loss_of(self, model: Model) -> Callable[[Any, Any, Any], jax.Array]:
        """The loss whose gradients `update` takes.

        Args:
            model: the model that is trained.
        """
        return model.loss

    def init(self, weights: Any) -> Any:
        """Moments before the first step.

        Args:
            weights: the weights of the model.
        """
        return {"mean": jax.tree.map(jnp.zeros_like, weights), "square": jax.tree.map(jnp.zeros_like, weights)}

    def update(self, weights: Any, moments: Any, gradients: Any, step: jax.Array) -> tuple[Any, Any]:
        """Weights and moments after a step.

        Args:
            weights: the weights before it.
            moments: the moments before it.
            gradients: the gradients of the loss.
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


ADAM = Adam()
"""The optimizer of runs that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """Gradients of a scaled loss, so that those of fp16 products do not vanish; the scale follows what overflows.

    A step whose gradients are not finite changes nothing and halves the scale; `grow_every` finite ones in a row double
    it.

    Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2; the constants are those of PyTorch's GradScaler.
    """

    first: float = 2.0**16
    grow_every: int = 2000

    def init(self) -> dict[str, jax.Array]:
        """Scale and finite steps in a row before the first step."""
        return {"scale": jnp.asarray(self.first, jnp.float32), "finite": jnp.zeros((), jnp.int32)}

    def after(self, before: dict[str, jax.Array], *, finite: jax.Array) -> dict[str, jax.Array]:
        """Scale and finite steps after a step.

        Args:
            before: the state before the step.
            finite: whether all gradients of the step were.
        """
        row = jnp.where(finite, before["finite"] + 1, 0)
        grows = row >= self.grow_every
        scale = before["scale"] * jnp.where(finite, jnp.where(grows, 2.0, 1.0), 0.5)
        return {"scale": jnp.maximum(scale, 1.0), "finite": jnp.where(grows, 0, row)}


def first_weights(model: Model, seed: int) -> Any:
    """Weights before the first step; equal models are compiled once.

    Args:
        model: the model with these weights.
        seed: the seed of them.
    """
    return _drawn(model, jax.random.key(seed))


@partial(jax.jit, static_argnums=0)
def _drawn(model: Model, key: jax.Array) -> Any:
    return model.init(key)


def initial_state(model: Model, optimizer: Adam, seed: int = 0, scaling: LossScaling | None = None) -> State:
    """Weights, moments and the number of steps so far.

    Args:
        model: the model with these weights.
        optimizer: the optimizer with these moments.
        seed: the seed of the weights.
        scaling: the scaling of the loss; None for none.
    """
    weights = first_weights(model, seed)
    state = {"weights": weights, "moments": optimizer.init(weights), "step": jnp.zeros((), jnp.int32)}
    return state if scaling is None else state | {"scaling": scaling.init()}


def scaled_loss(
    model: Model, scaling: LossScaling | None, optimizer: Adam = ADAM
) -> Callable[[Any, Any, Any], jax.Array]:
    """The loss of what the optimizer differentiates, a batch, and `of_step` of the state.

    Args:
        model: the model that it belongs to.
        optimizer: the optimizer that takes its gradients.
        scaling: the scaling of the loss; None for none.
    """
    loss = optimizer.loss_of(model)
    if scaling is None:
        return loss
    return lambda weights, batch, given: loss(weights, batch, given[0]) * given[1]


def of_step(state: State, seed: int) -> Any:
    """What a loss takes besides weights and samples: the key of dropout, and the scale where there is one.

    Args:
        state: the state before the step.
        seed: the seed of dropout.
    """
    key = jax.random.fold_in(jax.random.key(seed), state["step"])
    return (key, state["scaling"]["scale"]) if "scaling" in state else key


def updated(
    optimizer: Adam, scaling: LossScaling | None, state: State, value: jax.Array, gradients: Any
) -> tuple[State, jax.Array, Any]:
    """The next state, the loss and its gradients, neither of them scaled.

    Args:
        optimizer: the optimizer that moves the weights.
        scaling: the scaling of the loss; None for none.
        state: the state before the step.
        value: the loss, scaled.
        gradients: the gradients, scaled.
    """
    held, step = (state["weights"], state["moments"]), state["step"]
    if scaling is None:
        weights, moments = optimizer.update(*held, gradients, step)
        return {"weights": weights, "moments": moments, "step": step + 1}, value, gradients
    scale = state["scaling"]["scale"]
    gradients = jax.tree.map(lambda leaf: leaf / scale, gradients)
    finite = jnp.isfinite(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(gradients)))
    moved = optimizer.update(*held, gradients, step)
    weights, moments = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, held)
    after = {
        "weights": weights,
        "moments": moments,
        "step": step + finite.astype(step.dtype),
        "scaling": scaling.after(state["scaling"], finite=finite),
    }
    return after, value / scale, gradients


def train_step(
    model: Model,
    optimizer: Adam,
    seed: int = 0,
    *,
    gradients_too: bool = False,
    scaling: LossScaling | None = None,
) -> Callable[[State, Any], tuple[Any, ...]]:
    """The step that `parallelize` takes: of a state and a batch, returns the next state and the loss.

    Args:
        model: trained.
        optimizer: the optimizer that moves it.
        seed: the seed of dropout.
        gradients_too: whether it returns the gradients as well, before they are clipped.
        scaling: the scaling of the loss, whose state is in the step's; None for none.
    """
    loss = scaled_loss(model, scaling, optimizer)

    def step(state: State, batch: Any) -> tuple[Any, ...]:
        variables = optimizer.differentiated(state["weights"], state["moments"])
        value, gradients = value_and_grad(loss)(variables, batch, of_step(state, seed))
        made = updated(optimizer, scaling, state, value, gradients)
        return made if gradients_too else made[:2]

    return step
