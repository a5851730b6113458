"""A parallelized step held against the same step on one device: loss, gradients and weights, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.runtime.training_run import Training

TOLERANCE = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-2}
"""Largest difference of a tensor over its largest entry, after ten steps."""
ZERO_GRADIENT = {"fp64": 1e-13, "fp32": 1e-6, "bf16": 1e-3}
"""Of the largest gradient of all tensors: below it a gradient is rounding. Adam divides it by its own size, so that the
weights it moves differ whatever computes them; true zeros are the biases of keys, which a softmax does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tensor, over its largest entry on one device."""

    tensor: str
    gradient: float
    """Of the first step."""
    weight: float
    """After the last."""
    zero_gradient: bool
    """Whether its true gradient is zero: then it is listed, and not held to the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far two runs of the same steps are apart."""

    losses: tuple[float, ...]
    losses_alone: tuple[float, ...]
    tensors: tuple[Difference, ...]
    tolerance: float

    @property
    def loss(self) -> float:
        """Largest difference of a loss, over its size."""
        return max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(self.losses, self.losses_alone, strict=True))

    @property
    def compared(self) -> tuple[Difference, ...]:
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
        """Whether loss, gradients and weights are within the tolerance; false for what is no number."""
        return all(difference <= self.tolerance for difference in (self.loss, self.gradient, self.weight))


def compare(training: Training, devices: Sequence[Any], steps: int, dtype: str, tolerance: float | None) -> Parity:
    """Run the same steps under the plan and on one device.

    Args:
        training: what is trained, under which plan.
        devices: at least as many as the plan has.
        steps: optimizer steps.
        dtype: of `TOLERANCE`.
        tolerance: instead of that of the format.
    """
    there = training.step(devices, gradients_too=True)
    here = training.alone()
    begin = training.initial()
    state: Any = begin
    reference: Any = begin
    first: tuple[Any, Any] = ({}, {})
    losses, losses_alone = [], []
    try:
        for number in range(steps):
            batch = training.batch(number)
            state, loss, gradients = there(state, batch)
            reference, loss_alone, gradients_alone = here(reference, batch)
            losses.append(float(loss))
            losses_alone.append(float(loss_alone))
            if number == 0:
                first = jax.tree.map(np.asarray, gradients), jax.tree.map(np.asarray, gradients_alone)
        weights = jax.tree.map(np.asarray, state["weights"])
    finally:
        there.close()
    return Parity(
        losses=tuple(losses),
        losses_alone=tuple(losses_alone),
        tensors=_differences(*first, weights, reference["weights"], ZERO_GRADIENT[dtype]),
        tolerance=TOLERANCE[dtype] if tolerance is None else tolerance,
    )


def _differences(gradients: Any, gradients_alone: Any, weights: Any, weights_alone: Any, zero: float) -> tuple[
    Difference, ...
]:  # fmt: skip
    keys = [jax.tree_util.keystr(key, simple=True, separator=".")
            for key, _ in jax.tree_util.tree_leaves_with_path(weights_alone)]  # fmt: skip
    sizes = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradients_alone)]
    columns = [jax.tree.leaves(tree) for tree in (gradients, gradients_alone, weights, weights_alone)]
    return tuple(
        Difference(
            tensor=key,
            gradient=_relative(gradient, gradient_alone),
            weight=_relative(weight, weight_alone),
            zero_gradient=size <= zero * max(sizes),
        )
        for key, size, gradient, gradient_alone, weight, weight_alone in zip(keys, sizes, *columns, strict=True)
    )


def _relative(one: Any, other: Any) -> float:
    """max |a - b| / max |b|, in 64 bits."""
    a, b = (np.asarray(leaf).astype(np.float64) for leaf in (one, other))
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))
