"""A parallelized step compared with the same step on one device: loss, gradients and weights, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.runtime.training.planned import PlannedTraining

TOLERANCE = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-2, "fp16": 1e-2}
"""Largest difference of a tensor, after ten steps."""
ZERO_GRADIENT = {"fp64": 1e-13, "fp32": 1e-6, "bf16": 1e-3, "fp16": 1e-3}
"""Share of the largest gradient of all tensors below which a gradient is rounding. Adam divides it by its own size, so
that the weights it moves differ whatever computes them; true zeros are the biases of keys, which a softmax does not
see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """One tensor, in max-norm."""

    tensor: str
    gradient: float
    """max |a - b| / max |b| of the first step's."""
    weight: float
    """max |a - b| / max(1, max |b|) after the last step."""
    zero_gradient: bool
    """Whether its true gradient is zero: then it is listed, and not compared with the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far two runs of the same steps are apart."""

    losses: tuple[float, ...]
    losses_alone: tuple[float, ...]
    tensors: tuple[TensorDifference, ...]
    tolerance: float
    routed: int = 0
    """Choices of experts that were compared, after the last step: every token's on every layer."""
    routed_otherwise: int = 0
    """Number of those for which the two runs choose different experts."""

    @property
    def loss(self) -> float:
        """Largest difference of a loss, over its size."""
        return max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(self.losses, self.losses_alone, strict=True))

    @property
    def compared(self) -> tuple[TensorDifference, ...]:
        """Tensors with a gradient."""
        return tuple(one for one in self.tensors if not one.zero_gradient)

    @property
    def gradient(self) -> float:
        """Largest of all tensors that are compared."""
        return max((one.gradient for one in self.compared), default=0.0)

    @property
    def weight(self) -> float:
        """Largest of all tensors that are compared."""
        return max((one.weight for one in self.compared), default=0.0)

    @property
    def holds(self) -> bool:
        """Whether loss, gradients and weights are within the tolerance; false for what is no number, and for tokens
        that go to other experts."""
        near = all(difference <= self.tolerance for difference in (self.loss, self.gradient, self.weight))
        return near and not self.routed_otherwise


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StepsOutcome:
    """What some steps end with."""

    losses: tuple[float, ...]
    gradients: Any
    """Gradients of the first step; where one call runs several steps, the mean that Adam keeps of them."""
    weights: Any
    """Weights after the last step, and what else the loss is differentiated in."""
    routes: np.ndarray | None
    """Experts that the weights after the last step choose for the tokens of the first, where there are any."""


def run_alone(training: PlannedTraining, steps: int, state: Any = None) -> StepsOutcome:
    """The steps on one device.

    Args:
        training: what is trained; of the plan only micro-batches and recomputation count.
        steps: optimizer steps.
        state: the state before the first; that of the training without it.
    """
    return outcome(training, training.alone(), steps, state)


def run_parallel(training: PlannedTraining, devices: Sequence[Any], steps: int, state: Any = None) -> StepsOutcome:
    """The steps under the plan.

    Args:
        training: what is trained, under which plan.
        devices: the devices, at least as many as the plan has.
        steps: optimizer steps.
        state: the state before the first; that of the training without it.
    """
    step = training.step(devices, gradients_too=True)
    try:
        return outcome(training, step, steps, state)
    finally:
        step.close()


def parity_of(there: StepsOutcome, alone: StepsOutcome, dtype: str, tolerance: float | None = None) -> Parity:
    """Hold one against the other.

    Args:
        there: the losses of the plan.
        alone: the losses of one device.
        dtype: the number format of `TOLERANCE`.
        tolerance: instead of that of the format.
    """
    otherwise = 0
    if there.routes is not None and alone.routes is not None:
        otherwise = int((np.sort(there.routes) != np.sort(alone.routes)).any(-1).sum())
    return Parity(
        losses=there.losses,
        losses_alone=alone.losses,
        tensors=_differences(there, alone, ZERO_GRADIENT[dtype]),
        tolerance=TOLERANCE[dtype] if tolerance is None else tolerance,
        routed=0 if alone.routes is None else alone.routes[..., 0].size,
        routed_otherwise=otherwise,
    )


def outcome(training: PlannedTraining, step: Callable[[Any, Any], Any], steps: int, state: Any = None) -> StepsOutcome:
    """What some steps end with.

    Args:
        training: the training of which they are.
        step: the step of a state and a batch; returns the next state, the loss (of each step, where one call runs
            several) and the gradients.
        steps: optimizer steps.
        state: the state before the first; that of the training without it.
    """
    state = training.initial() if state is None else state
    losses: list[float] = []
    first, most = None, training.most_steps_at_once
    for number in range(0, steps, most):
        state, loss, gradients = step(state, training.batches(number, min(most, steps - number)))
        losses += np.ravel(loss).tolist()
        if first is None:
            first = jax.tree.map(np.asarray, gradients)
    state = jax.tree.map(np.asarray, state)
    made = training.updates_by.differentiated(state["weights"], state.get("moments"))
    routes = training.routes(state["weights"])
    return StepsOutcome(losses=tuple(losses), gradients=first, weights=made, routes=routes)


def _differences(there: StepsOutcome, alone: StepsOutcome, zero: float) -> tuple[TensorDifference, ...]:
    keys = [
        jax.tree_util.keystr(key, simple=True, separator=".")
        for key, _ in jax.tree_util.tree_leaves_with_path(alone.weights)
    ]
    sizes = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(alone.gradients)]
    columns = [jax.tree.leaves(tree) for tree in (there.gradients, alone.gradients, there.weights, alone.weights)]
    return tuple(
        TensorDifference(
            tensor=key,
            gradient=_difference(gradient, gradient_alone, 1e-30),
            weight=_difference(weight, weight_alone, 1.0),
            zero_gradient=size <= zero * max(sizes),
        )
        for key, size, gradient, gradient_alone, weight, weight_alone in zip(keys, sizes, *columns, strict=True)
    )


def _difference(one: Any, other: Any, least: float) -> float:
    """max |a - b| over the largest |b|, or the least scale, in 64 bits."""
    a, b = (np.asarray(leaf).astype(np.float64) for leaf in (one, other))
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), least))
