"""Weights split over a second axis of each mesh, as Megatron-LM does: XLA adds the collectives that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.shardings import DataSharding, Role
from meshwright.compiler.trace import TracedStep

TENSOR = "tensor"
"""Name of the second axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit:
    """How weights are split between the devices of a tensor group."""

    degree: int
    """Devices of a group."""
    axis_of: Callable[[str], int | None]
    """Axis of an input of the step that is split, by its path such as `0.weights.layers.3.mlp.up`; None keeps it whole.
    An axis that the degree does not divide stays whole as well."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TensorSharding:
    """Split weights, their gradients and states; what ZeRO splits over data ranks on top of it."""

    data: DataSharding
    degree: int
    axes: Mapping[core.Var, int]
    """Split axis of weights and states of the step, and of the operands of its loss."""

    @classmethod
    def of(cls, step: TracedStep, split: TensorSplit, data: DataSharding) -> TensorSharding:
        """Find the values that are split.

        Args:
            step: whose.
            split: by path.
            data: what the data ranks of a stage split.
        """
        places = jax.tree.unflatten(step.in_tree, range(len(step.jaxpr.invars)))
        axes: dict[core.Var, int] = {}
        for path, place in jax.tree_util.tree_leaves_with_path(places):
            var = step.jaxpr.invars[place]
            axis = split.axis_of(jax.tree_util.keystr(path, simple=True, separator="."))
            if place not in step.batch and axis is not None and _divides(var, axis, split.degree):
                axes[var] = axis
        for operand, atom in enumerate(step.mark.invars):
            if isinstance(atom, core.Var) and atom in axes:
                axes[step.loss.invars[operand]] = axes[atom]
        return cls(data=data, degree=split.degree, axes=axes)

    def spec(self, role: Role, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded.

        Args:
            role: of the value.
            var: of the step or of its loss.
            devices: of the mesh, over both axes.
        """
        axis = self.axes.get(var)
        whole = self.data.spec(role, var, devices // self.degree)
        if role in (Role.SAMPLES, Role.OTHER) or axis is None:
            return whole
        shape = list(var.aval.shape)
        # The data ranks split another axis than the tensor ranks.
        shape[axis] = 1
        rest = self.data.split(role, shape, devices // self.degree)
        parts: list[Any] = [*rest, *(None for _ in range(len(shape) - len(rest)))]
        parts[axis] = TENSOR
        return PartitionSpec(*parts)


def _divides(var: core.Var, axis: int, degree: int) -> bool:
    shape = var.aval.shape
    return axis < len(shape) and shape[axis] % degree == 0
