"""How a mesh holds the values of a step, and the programs of a stage written for the whole mesh.

Two forms: the partitioner's, in which every value is one of all samples and XLA adds the collectives; and that of data
ranks, in which each rank keeps gradients of its own and the collectives are written here, inside of `shard_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import AbstractMesh, PartitionSpec

from meshwright.compiler.ranks.collectives import gathered, scattered, summed, summed_in_parts
from meshwright.compiler.ranks.samples import OWN, SUM, WHOLE, Lie
from meshwright.compiler.ranks.stages import RankStages
from meshwright.compiler.shardings import Role, Sharding, counts_samples
from meshwright.compiler.trace import TracedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A value on a mesh."""

    aval: jax.ShapeDtypeStruct
    """As the mesh holds it."""
    spec: PartitionSpec | None
    """How it is sharded; None leaves it to the compiler."""
    lie: Lie = WHOLE
    """What each data rank holds of it."""
    shard: int | None = None
    """Dimension of which each rank holds a part, whole only while a stage runs."""


class Layout(Protocol):
    """What lists are written with, for one mesh."""

    def parameter(self, operand: int) -> Held:
        """A differentiated operand of the loss."""
        ...

    def other(self, operand: int) -> Held:
        """Another operand of the loss."""
        ...

    def carried(self, var: core.Var) -> Held:
        """What is handed on between stages."""
        ...

    def cotangent(self, var: core.Var) -> Held:
        """Its gradient, handed back."""
        ...

    def result(self, place: int) -> Held:
        """A result of the loss for one micro-batch."""
        ...

    def kept(self, aval: Any) -> Held:
        """What a task of a stage makes for a later one."""
        ...

    def sum(self, operand: int) -> Held:
        """Gradients added up over micro-batches."""
        ...

    def gradient(self, operand: int) -> Held:
        """The gradient that the update reads."""
        ...

    def program(
        self, closed: core.ClosedJaxpr, reads: Sequence[Held], writes: Sequence[Held], sums: int = 0
    ) -> core.ClosedJaxpr:
        """A program of a stage for the mesh; it adds its last results to as many more operands where `sums` says so."""
        ...

    def totals(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """Gradients from so many sums of each differentiated operand, divided by the micro-batches of a mean."""
        ...

    def together(self, place: int, count: int, parts: int) -> core.ClosedJaxpr:
        """A result of the loss from those of so many micro-batches."""
        ...

    def updated_part(self, operand: int) -> Held | None:
        """A parameter whose parts the ranks update before it is gathered; None where it is updated as it lies."""
        ...

    def whole_parameters(self, parts: Sequence[Held]) -> core.ClosedJaxpr:
        """Updated parameters from their parts."""
        ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PartitionedLayout:
    """The partitioner's form."""

    step: TracedStep
    sharding: Sharding
    devices: int

    def parameter(self, operand: int) -> Held:
        """Where it is put when it is first read is where it lies."""
        return self._held(Role.PARAMETER, self.step.loss.invars[operand])

    def other(self, operand: int) -> Held:
        """Likewise."""
        return self._held(Role.OTHER, self.step.loss.invars[operand])

    def carried(self, var: core.Var) -> Held:
        """Split by samples if it counts them."""
        return self._held(Role.SAMPLES if counts_samples(self.step, var) else Role.OTHER, var)

    def cotangent(self, var: core.Var) -> Held:
        """As the value."""
        return self.carried(var)

    def result(self, place: int) -> Held:
        """Left to the compiler."""
        return self.kept(self.step.loss.outvars[place].aval)

    def kept(self, aval: Any) -> Held:
        """Left to the compiler."""
        return Held(aval=_shape(aval), spec=None)

    def sum(self, operand: int) -> Held:
        """A whole gradient, reduced with every micro-batch."""
        return self._held(Role.GRADIENT, self.step.loss.invars[operand])

    def gradient(self, operand: int) -> Held:
        """As its sum."""
        return self.sum(operand)

    def program(
        self, closed: core.ClosedJaxpr, reads: Sequence[Held], writes: Sequence[Held], sums: int = 0
    ) -> core.ClosedJaxpr:
        """The program as it is."""
        return closed if not sums else _adding(closed, reads, sums)

    def totals(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """Sums of sums."""
        shapes = [_shape(self.step.gradients[number].aval) for number in numbers]
        given = [shape for shape, count in zip(shapes, counts, strict=True) for _ in range(count)]
        return jax.make_jaxpr(lambda *sums: _means(sums, shapes, counts, parts))(*given)

    def together(self, place: int, count: int, parts: int) -> core.ClosedJaxpr:
        """Numbers averaged (summed with a sum loss), counts summed, arrays of samples joined."""
        var = self.step.mark.outvars[place]
        joins = counts_samples(self.step, var)
        return jax.make_jaxpr(lambda *given: _together(given, joins=joins, parts=parts))(*[_shape(var.aval)] * count)

    def updated_part(self, operand: int) -> Held | None:
        """The partitioner gathers them inside the update."""
        return None

    def whole_parameters(self, parts: Sequence[Held]) -> core.ClosedJaxpr:
        """As they are."""
        return jax.make_jaxpr(lambda *given: list(given))(*(held.aval for held in parts))

    def _held(self, role: Role, var: core.Var) -> Held:
        return Held(aval=_shape(var.aval), spec=self.sharding.spec(role, var, self.devices))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RankLayout:
    """The form of data ranks.

    A gradient is added up over the micro-batches on each rank by itself and reduced behind the last one: an all-reduce
    of all gradients of a mesh, or with ZeRO one reduce-scatter per bucket; parameters that were updated in parts are
    gathered, one all-gather per bucket. With split parameters (ZeRO-3) every task gathers those that it reads, and
    every backward scatters its gradients, so that no rank keeps whole ones; with ZeRO-2 where that is asked for.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020).
    """

    ranks: RankStages
    sharding: Sharding
    mesh: AbstractMesh
    zero: int
    """ZeRO stage."""
    splits_sums: bool
    """Whether every backward reduces its gradients."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Of the mesh along which the data ranks lie."""
        return tuple(name for name, _ in self.ranks.axes)

    @property
    def flat(self) -> bool:
        """Whether the data ranks are all there are: arrays that other axes split are no rows of numbers."""
        return self.mesh.size == self.ranks.ranks

    # ---- values

    def parameter(self, operand: int) -> Held:
        """Whole, or a part of which the whole is gathered."""
        var = self.ranks.step.loss.invars[operand]
        spec = self._spec(Role.READ, var)
        return Held(aval=_shape(var.aval), spec=spec, shard=self._split(spec))

    def other(self, operand: int) -> Held:
        """The samples of each rank; its own number; anything else whole."""
        if operand == self.ranks.number:
            return self._lying(jax.ShapeDtypeStruct((), jnp.int32), SUM)
        var = self.ranks.step.loss.invars[operand]
        return self._lying(var.aval, self.ranks.operands[operand])

    def carried(self, var: core.Var) -> Held:
        """As the loss of a rank makes it."""
        return self._lying(var.aval, self.ranks.carried[var])

    def cotangent(self, var: core.Var) -> Held:
        """Of samples by samples; of anything else each rank has a share of its own."""
        lie = self.ranks.carried[var]
        return self._lying(var.aval, lie if lie >= 0 else SUM)

    def result(self, place: int) -> Held:
        """As the loss of a rank makes it."""
        return self._lying(self.ranks.step.mark.outvars[place].aval, self.ranks.results[place])

    def kept(self, aval: Any) -> Held:
        """Each rank's own, side by side along an axis more; what other axes of the mesh do is left to the compiler."""
        held = self._lying(aval, SUM)
        return held if self.flat else replace(held, spec=None)

    def sum(self, operand: int) -> Held:
        """Each rank's own whole gradient, or its part of the reduced one."""
        var = self.ranks.step.loss.invars[operand]
        spec = self._spec(Role.GRADIENT, var)
        shard = self._split(spec) if self.splits_sums else None
        if shard is not None:
            return Held(aval=_shape(var.aval), spec=spec, shard=shard)
        rest = [self._without_ranks(entry) for entry in spec]
        own = self._lying(var.aval, SUM)
        return Held(aval=own.aval, spec=PartitionSpec(self.axes, *rest), lie=OWN)

    def gradient(self, operand: int) -> Held:
        """As the state of the optimizer lies."""
        var = self.ranks.step.loss.invars[operand]
        spec = self._spec(Role.STATE if self.zero else Role.GRADIENT, var)
        return Held(aval=_shape(var.aval), spec=spec, shard=self._split(spec))

    def _lying(self, aval: Any, lie: Lie) -> Held:
        if lie == WHOLE:
            return Held(aval=_shape(aval), spec=PartitionSpec())
        if lie >= 0:
            return Held(aval=_shape(aval), spec=PartitionSpec(*[None] * lie, self.axes), lie=lie)
        whole = jax.ShapeDtypeStruct((self.ranks.ranks, *aval.shape), aval.dtype)
        return Held(aval=whole, spec=PartitionSpec(self.axes), lie=OWN)

    def _spec(self, role: Role, var: core.Var) -> PartitionSpec:
        return self.sharding.spec(role, var, self.mesh.size)

    def _split(self, spec: PartitionSpec) -> int | None:
        """Dimension that the data ranks split."""
        return next((at for at, entry in enumerate(spec) if entry is not None and self._of_ranks(entry)), None)

    def _of_ranks(self, entry: Any) -> bool:
        return bool(set(self.axes) & {entry} if isinstance(entry, str) else set(self.axes) & set(entry))

    def _without_ranks(self, entry: Any) -> Any:
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        return tuple(name for name in names if name not in self.axes) or None

    # ---- programs

    def program(
        self, closed: core.ClosedJaxpr, reads: Sequence[Held], writes: Sequence[Held], sums: int = 0
    ) -> core.ClosedJaxpr:
        """Each rank runs it for its own samples."""
        function, added = core.jaxpr_as_fun(closed), writes[len(writes) - sums :] if sums else []

        def run(*given: Any) -> list[Any]:
            made = self._leave(function(*self._enter(given[: len(reads)], reads)), writes)
            totals = zip(made[len(made) - sums :], given[len(reads) :], strict=True)
            return [*made[: len(made) - sums], *(own + before for own, before in totals)]

        return self._on_mesh(run, [*reads, *added], writes)

    def totals(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """Sums of sums of each rank, then one reduction of all of them."""
        step = self.ranks.step
        operands = [step.wrt[number] for number in numbers]
        sums, writes = [self.sum(operand) for operand in operands], [self.gradient(operand) for operand in operands]
        reads = [held for held, count in zip(sums, counts, strict=True) for _ in range(count)]
        shapes = [jax.ShapeDtypeStruct(self._part(held), held.aval.dtype) for held in sums]

        def run(*given: Any) -> list[Any]:
            own = [value[0] if held.lie == OWN else value for value, held in zip(given, reads, strict=True)]
            return self._reduced(_means(own, shapes, counts, parts), sums, writes)

        return self._on_mesh(run, reads, writes)

    def _part(self, held: Held) -> tuple[int, ...]:
        """Shape of what a rank adds to."""
        if held.lie == OWN:
            return held.aval.shape[1:]
        return tuple(size // self.ranks.ranks if at == held.shard else size for at, size in enumerate(held.aval.shape))

    def _reduced(self, values: Sequence[Any], sums: Sequence[Held], writes: Sequence[Held]) -> list[Any]:
        """Gradients of each rank brought to where the update wants them."""
        found = dict(enumerate(values))
        left = [at for at, held in enumerate(sums) if held.lie == OWN]
        parts = [at for at in left if writes[at].shard is not None]
        odd = [at for at in left if writes[at].shard is None]
        moved = scattered([found[at] for at in parts], [writes[at].shard or 0 for at in parts], self.axes,
                          self.ranks.ranks, flat=self.flat)  # fmt: skip
        found.update(zip(parts, moved, strict=True))
        given = [found[at] for at in odd]
        in_parts = self.zero and self.flat
        whole = summed_in_parts(given, self.axes, self.ranks.ranks) if in_parts else summed(given, self.axes)
        found.update(zip(odd, whole, strict=True))
        return [found[at] for at in range(len(values))]

    def together(self, place: int, count: int, parts: int) -> core.ClosedJaxpr:
        """Sums of each rank are summed over the ranks; anything else is put together as the mesh holds it."""
        held, var = self.result(place), self.ranks.step.mark.outvars[place]
        joins = counts_samples(self.ranks.step, var)
        if held.lie != OWN:
            return jax.make_jaxpr(lambda *given: _together(given, joins=joins, parts=parts))(*[held.aval] * count)
        total = self._lying(var.aval, WHOLE)
        return self._on_mesh(
            lambda *given: summed(_together([one[0] for one in given], joins=False, parts=parts), self.axes),
            [held] * count, [total],
        )  # fmt: skip

    def updated_part(self, operand: int) -> Held | None:
        """The part whose gradient and state a rank has."""
        held = self.gradient(operand)
        return held if self.zero in (1, 2) and held.shard is not None else None

    def whole_parameters(self, parts: Sequence[Held]) -> core.ClosedJaxpr:
        """One all-gather per bucket."""
        whole = [self._lying(held.aval, WHOLE) for held in parts]
        return self._on_mesh(lambda *given: self._enter(given, parts), parts, whole)

    def _enter(self, given: Sequence[Any], reads: Sequence[Held]) -> list[Any]:
        """What a rank is given as its program takes it."""
        found = [value[0] if held.lie == OWN else value for value, held in zip(given, reads, strict=True)]
        parts = [at for at, held in enumerate(reads) if held.shard is not None]
        whole = gathered([found[at] for at in parts], [reads[at].shard or 0 for at in parts], self.axes,
                         self.ranks.ranks, flat=self.flat)  # fmt: skip
        for at, value in zip(parts, whole, strict=True):
            found[at] = value
        return found

    def _leave(self, made: Sequence[Any], writes: Sequence[Held]) -> list[Any]:
        """What its program makes as the mesh holds it."""
        found = [value[None] if held.lie == OWN else value for value, held in zip(made, writes, strict=True)]
        parts = [at for at, held in enumerate(writes) if held.shard is not None]
        own = scattered([found[at] for at in parts], [writes[at].shard or 0 for at in parts], self.axes,
                        self.ranks.ranks, flat=self.flat)  # fmt: skip
        for at, value in zip(parts, own, strict=True):
            found[at] = value
        return found

    def _on_mesh(self, run: Any, reads: Sequence[Held], writes: Sequence[Held]) -> core.ClosedJaxpr:
        mapped = jax.shard_map(
            run, mesh=self.mesh, in_specs=tuple(self._along(held) for held in reads),
            out_specs=[self._along(held) for held in writes], axis_names=set(self.axes), check_vma=False,
        )  # fmt: skip
        return jax.make_jaxpr(jax.jit(mapped))(*(held.aval for held in reads))

    def _along(self, held: Held) -> PartitionSpec:
        """How the data ranks split a value, whatever other axes do."""
        at = 0 if held.lie == OWN else held.shard if held.shard is not None else held.lie
        return PartitionSpec(*[None] * at, self.axes) if at >= 0 else PartitionSpec()


def _adding(closed: core.ClosedJaxpr, reads: Sequence[Held], sums: int) -> core.ClosedJaxpr:
    """The program, adding its last results to what it is given last."""
    function = core.jaxpr_as_fun(closed)
    outputs = closed.jaxpr.outvars
    passed = len(outputs) - sums

    def added(*given: Any) -> list[Any]:
        made = function(*given[: len(closed.jaxpr.invars)])
        before = given[len(closed.jaxpr.invars) :]
        return [*made[:passed], *(a + b for a, b in zip(before, made[passed:], strict=True))]

    return jax.make_jaxpr(added)(*closed.in_avals, *(_shape(var.aval) for var in outputs[passed:]))


def _means(sums: Sequence[Any], shapes: Sequence[Any], counts: Sequence[int], parts: int) -> list[Any]:
    """So many sums of each value added, and divided by the micro-batches of a mean."""
    left, found = list(sums), []
    for shape, count in zip(shapes, counts, strict=True):
        whole = sum(left[1:count], left[0]) if count else jnp.zeros(shape.shape, shape.dtype)
        found.append(whole / parts if parts > 1 else whole)
        del left[:count]
    return found


def _together(given: Sequence[Any], *, joins: bool, parts: int) -> list[Any]:
    """What micro-batches returned, as one."""
    if joins:
        return [jnp.concatenate(given)]
    mean = parts > 1 and jnp.issubdtype(given[0].dtype, jnp.inexact)
    return [sum(given[1:], given[0]) / parts if mean else sum(given[1:], given[0])]


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
