"""Shardings of values on a mesh of devices: presets of data parallelism and ZeRO by the role and shape of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import jax
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.traced_step import TracedStep


class ValueRole(Enum):
    """What a value is for."""

    PARAMETER = "parameter"
    READ = "read"
    """A parameter as the stages of a step read it."""
    GRADIENT = "gradient"
    STATE = "state"
    """Optimizer state and everything else that lives from step to step."""
    SAMPLES = "samples"
    """A value whose first axis counts the samples of a micro-batch."""
    OTHER = "other"


class MeshSharding(Protocol):
    """What lists are written for: presets, or what the intra-operator pass decided."""

    def spec(self, role: ValueRole, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded on a mesh of so many devices."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSharding:
    """Samples split over one axis of the mesh; weights and states whole, or split too (ZeRO).

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020).
    """

    axis: str | tuple[str, ...] = "data"
    stage: int = 0
    """ZeRO stage: 0 nothing, 1 state, 2 state and gradients, 3 parameters too."""
    keep: bool = False
    """Whether split parameters are gathered once a step and kept until their last backward, not by every stage."""
    split_sums: bool = False
    """Whether every backward reduces its gradients, with ZeRO stage 2, so that no device keeps whole ones; with stage 3
    every one does. Else gradients are reduced once a step, and are whole until then."""

    def spec(self, role: ValueRole, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded.

        Args:
            role: the role of the value.
            var: the variable of the step or of its loss; only its shape counts.
            devices: along the axis.
        """
        shape = var.aval.shape
        if role is ValueRole.SAMPLES:
            divides = bool(shape) and shape[0] % devices == 0
            return PartitionSpec(self.axis) if divides else PartitionSpec()
        return self.split(role, shape, devices)

    def split(self, role: ValueRole, shape: Sequence[int], devices: int) -> PartitionSpec:
        """How a value that counts no samples is sharded.

        Args:
            role: the role of the value.
            shape: the shape of the value.
            devices: along the axis.
        """
        read = 4 if self.keep else 3
        sharded = {ValueRole.STATE: 1, ValueRole.GRADIENT: 2, ValueRole.PARAMETER: 3, ValueRole.READ: read}.get(role, 4)
        return _largest_split(shape, devices, self.axis) if self.stage >= sharded else PartitionSpec()


def _largest_split(shape: Sequence[int], devices: int, axis: str | tuple[str, ...]) -> PartitionSpec:
    """Split the largest dimension that divides; small or odd values stay whole."""
    fitting = [(size, -place) for place, size in enumerate(shape) if size % devices == 0 and size >= devices]
    if not fitting or devices == 1:
        return PartitionSpec()
    place = -max(fitting)[1]
    return PartitionSpec(*(axis if place == at else None for at in range(place + 1)))


def counts_samples(step: TracedStep, var: core.Var) -> bool:
    """Whether the first axis of a value counts the samples of a micro-batch.

    Args:
        step: the step that takes the batch.
        var: the value.
    """
    samples = {step.jaxpr.invars[place].aval.shape[0] for place in step.batch}
    return bool(var.aval.shape) and var.aval.shape[0] in samples


def shape_of(var: core.Var) -> jax.ShapeDtypeStruct:
    """Shape and type of a variable.

    Args:
        var: the variable of a program.
    """
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
