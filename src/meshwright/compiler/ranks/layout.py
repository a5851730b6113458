"""How a mesh holds the values of a step, and the programs of a stage written for the whole mesh.

Two forms: the partitioner's, in which every value is one of all samples and XLA adds the collectives; and that of data
ranks, in which each rank keeps gradients of its own and the collectives are written here, inside of `shard_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.samples.placements import WHOLE, Placement
from meshwright.compiler.shardings import MeshSharding, ValueRole, counts_samples
from meshwright.compiler.traced_step import TracedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedValue:
    """A value on a mesh."""

    aval: jax.ShapeDtypeStruct
    """Shape and dtype as the mesh holds the value."""
    spec: PartitionSpec | None
    """How it is sharded; None leaves it to the compiler."""
    placement: Placement = WHOLE
    """What each data rank holds of it."""
    shard: int | None = None
    """Dimension of which each rank holds a part, whole only while a stage runs."""
    beside: tuple[str, ...] = ()
    """Axes of ranks besides the data ranks that have a summand each, along the first axis."""


class Layout(Protocol):
    """What lists are written with, for one mesh."""

    def parameter(self, operand: int) -> PlacedValue:
        """A differentiated operand of the loss."""
        ...

    def other(self, operand: int) -> PlacedValue:
        """Another operand of the loss."""
        ...

    def carried(self, var: core.Var) -> PlacedValue:
        """What is passed on between stages."""
        ...

    def cotangent(self, var: core.Var) -> PlacedValue:
        """How the gradient of a value is held, passed back."""
        ...

    def result(self, place: int) -> PlacedValue:
        """A result of the loss for one micro-batch."""
        ...

    def kept(self, aval: Any) -> PlacedValue:
        """What a task of a stage makes for a later one."""
        ...

    def sum(self, operand: int) -> PlacedValue:
        """Gradients added up over micro-batches."""
        ...

    def gradient(self, operand: int) -> PlacedValue:
        """The gradient that the update reads."""
        ...

    def program(
        self, closed: core.ClosedJaxpr, reads: Sequence[PlacedValue], writes: Sequence[PlacedValue], sums: int = 0
    ) -> core.ClosedJaxpr:
        """A program of a stage for the mesh; it adds its last results to as many more operands where `sums` says so."""
        ...

    @property
    def sum_is_gradient(self) -> bool:
        """Whether gradients added up over micro-batches are what the update reads."""
        ...

    def totals(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """Gradients from so many sums of each differentiated operand, divided by the micro-batches of a mean."""
        ...

    def together(self, place: int, count: int) -> core.ClosedJaxpr:
        """A result of the loss from those of so many micro-batches."""
        ...

    def updated_part(self, operand: int) -> PlacedValue | None:
        """A parameter whose parts the ranks update before it is gathered; None where it is updated in place."""
        ...

    def whole_parameters(self, parts: Sequence[PlacedValue]) -> core.ClosedJaxpr:
        """Updated parameters from their parts."""
        ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PartitionedLayout:
    """The partitioner's form."""

    step: TracedStep
    sharding: MeshSharding
    devices: int

    def parameter(self, operand: int) -> PlacedValue:
        """How a parameter is held; it stays where it is put when it is first read."""
        return self._held(ValueRole.PARAMETER, self.step.loss.invars[operand])

    def other(self, operand: int) -> PlacedValue:
        """How another operand is held; it stays where it is put when it is first read, as parameters do."""
        return self._held(ValueRole.OTHER, self.step.loss.invars[operand])

    def carried(self, var: core.Var) -> PlacedValue:
        """Split by samples if it counts them."""
        return self._held(ValueRole.SAMPLES if counts_samples(self.step, var) else ValueRole.OTHER, var)

    def cotangent(self, var: core.Var) -> PlacedValue:
        """How the gradient of a value is held: as the value."""
        return self.carried(var)

    def result(self, place: int) -> PlacedValue:
        """Left to the compiler."""
        return self.kept(self.step.loss.outvars[place].aval)

    def kept(self, aval: Any) -> PlacedValue:
        """Left to the compiler."""
        return PlacedValue(aval=shape_only(aval), spec=None)

    def sum(self, operand: int) -> PlacedValue:
        """A whole gradient, reduced with every micro-batch."""
        return self._held(ValueRole.GRADIENT, self.step.loss.invars[operand])

    def gradient(self, operand: int) -> PlacedValue:
        """How a gradient is held: as its sum."""
        return self.sum(operand)

    def program(
        self, closed: core.ClosedJaxpr, reads: Sequence[PlacedValue], writes: Sequence[PlacedValue], sums: int = 0
    ) -> core.ClosedJaxpr:
        """The program as it is."""
        return closed if not sums else _adding(closed, reads, sums)

    @property
    def sum_is_gradient(self) -> bool:
        """The partitioner has reduced them."""
        return True

    def totals(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """Sums of sums."""
        shapes = [shape_only(self.step.gradients[number].aval) for number in numbers]
        given = [shape for shape, count in zip(shapes, counts, strict=True) for _ in range(count)]
        return jax.make_jaxpr(lambda *sums: means(sums, shapes, counts, parts))(*given)

    def together(self, place: int, count: int) -> core.ClosedJaxpr:
        """A program that joins a result's parts as the step says."""
        join = self.step.joins[place]
        shapes = [shape_only(self.step.loss.outvars[place].aval)] * count
        return jax.make_jaxpr(lambda *given: [join(given)])(*shapes)

    def updated_part(self, operand: int) -> PlacedValue | None:
        """The partitioner gathers them inside the update."""
        return None

    def whole_parameters(self, parts: Sequence[PlacedValue]) -> core.ClosedJaxpr:
        """A program that returns parameters as they are."""
        return jax.make_jaxpr(lambda *given: list(given))(*(held.aval for held in parts))

    def _held(self, role: ValueRole, var: core.Var) -> PlacedValue:
        return PlacedValue(aval=shape_only(var.aval), spec=self.sharding.spec(role, var, self.devices))


def _adding(closed: core.ClosedJaxpr, reads: Sequence[PlacedValue], sums: int) -> core.ClosedJaxpr:
    """The program, adding its last results to what it is given last."""
    function = core.jaxpr_as_fun(closed)
    outputs = closed.jaxpr.outvars
    passed = len(outputs) - sums

    def added(*given: Any) -> list[Any]:
        made = function(*given[: len(closed.jaxpr.invars)])
        before = given[len(closed.jaxpr.invars) :]
        return [*made[:passed], *(a + b for a, b in zip(before, made[passed:], strict=True))]

    return jax.make_jaxpr(added)(*closed.in_avals, *(shape_only(var.aval) for var in outputs[passed:]))


def means(sums: Sequence[Any], shapes: Sequence[Any], counts: Sequence[int], parts: int) -> list[Any]:
    """Means: so many sums of each value added, and divided by the micro-batches of a mean.

    Args:
        sums: value after value.
        shapes: the shapes of the values.
        counts: the counts of sums for each.
        parts: micro-batches of a mean; 1 divides nothing.
    """
    left, found = list(sums), []
    for shape, count in zip(shapes, counts, strict=True):
        whole = sum(left[1:count], left[0]) if count else jnp.zeros(shape.shape, shape.dtype)
        found.append(whole / parts if parts > 1 else whole)
        del left[:count]
    return found


def shape_only(aval: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an abstract value.

    Args:
        aval: the abstract value of a variable.
    """
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
