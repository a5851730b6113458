"""The form of data ranks: each runs a stage for its own samples, and the collectives are written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, zip_longest
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from meshwright.compiler.grid import Ranks
from meshwright.compiler.narrow_sums import over_ranks
from meshwright.compiler.ranks.collectives import bucket_row, gathered, scattered, summed
from meshwright.compiler.ranks.layout import PlacedValue, means, shape_only
from meshwright.compiler.ranks.own_sums import with_own_sums
from meshwright.compiler.ranks.stages import RankStages
from meshwright.compiler.samples.placements import OWN, SUM, WHOLE, Placement
from meshwright.compiler.shardings import MeshSharding, ValueRole


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
    sharding: MeshSharding
    mesh: AbstractMesh
    zero: int
    """ZeRO stage."""
    splits_sums: bool
    """Whether every backward reduces its gradients."""
    beside: tuple[tuple[str, int], ...] = ()
    """Axes of ranks that share the tokens of a sample, with their sizes: their gradients are summed with those of data
    ranks."""
    beside_experts: tuple[tuple[str, int], ...] = ()
    """Axes of ranks that hold the same experts, data ranks apart; likewise."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the mesh of the data ranks."""
        return tuple(name for name, _ in self.ranks.axes)

    @property
    def flat(self) -> bool:
        """Whether the data ranks are all there are: arrays that other axes split are no rows of numbers."""
        return self.mesh.size == self.ranks.ranks

    # ---- values

    def parameter(self, operand: int) -> PlacedValue:
        """Whole, or a part of which the whole is gathered."""
        var = self.ranks.step.loss.invars[operand]
        spec = self._spec(ValueRole.READ, var)
        return PlacedValue(aval=shape_only(var.aval), spec=spec, shard=self._split(spec))

    def other(self, operand: int) -> PlacedValue:
        """The samples of each rank; its own number; anything else whole."""
        if operand == self.ranks.number:
            return self._placed(jax.ShapeDtypeStruct((), jnp.int32), SUM)
        var = self.ranks.step.loss.invars[operand]
        return self._placed(var.aval, self.ranks.operands[operand])

    def carried(self, var: core.Var) -> PlacedValue:
        """How a carried value is held: as the loss of a rank makes it, of which its devices may have parts."""
        return self._in_parts(var, self.ranks.carried[var])

    def cotangent(self, var: core.Var) -> PlacedValue:
        """Cotangent of a value: split by samples if the value is, else a partial sum on each rank."""
        placement = self.ranks.carried[var]
        return self._in_parts(var, placement if placement >= 0 else SUM)

    def result(self, place: int) -> PlacedValue:
        """How a result is held: as the loss of a rank makes it."""
        return self._placed(self.ranks.step.loss.outvars[place].aval, self.ranks.results[place])

    def kept(self, aval: Any) -> PlacedValue:
        """Each rank's own, side by side along an axis more; what other axes of the mesh do is left to the compiler."""
        held = self._placed(aval, SUM if self.axes else WHOLE)
        return held if self.flat else replace(held, spec=None)

    def sum(self, operand: int) -> PlacedValue:
        """Each rank's own whole gradient, or its part of the reduced one."""
        if beside := self._beside(operand):
            return replace(self._with(beside).sum(operand), beside=tuple(name for name, _ in beside))
        var = self.ranks.step.loss.invars[operand]
        spec = self._spec(ValueRole.GRADIENT, var)
        shard = self._split(spec) if self.splits_sums else None
        if shard is not None:
            return PlacedValue(aval=shape_only(var.aval), spec=spec, shard=shard)
        rest = [self._without_ranks(entry) for entry in spec]
        own = self._placed(var.aval, SUM)
        return PlacedValue(aval=own.aval, spec=PartitionSpec(self.axes, *rest), placement=OWN)

    def gradient(self, operand: int) -> PlacedValue:
        """How a gradient is held: as the state of the optimizer is sharded."""
        if beside := self._beside(operand):
            return self._with(beside).gradient(operand)
        var = self.ranks.step.loss.invars[operand]
        spec = self._spec(ValueRole.STATE if self.zero else ValueRole.GRADIENT, var)
        return PlacedValue(aval=shape_only(var.aval), spec=spec, shard=self._split(spec))

    def _placed(self, aval: Any, placement: Placement) -> PlacedValue:
        if placement == WHOLE:
            return PlacedValue(aval=shape_only(aval), spec=PartitionSpec())
        if placement >= 0:
            return PlacedValue(
                aval=shape_only(aval), spec=PartitionSpec(*[None] * placement, self.axes), placement=placement
            )
        whole = jax.ShapeDtypeStruct((self.ranks.ranks, *aval.shape), aval.dtype)
        return PlacedValue(aval=whole, spec=PartitionSpec(self.axes), placement=OWN)

    def _in_parts(self, var: core.Var, placement: Placement) -> PlacedValue:
        held = self._placed(var.aval, placement)
        return held if placement else replace(held, spec=self._spec(ValueRole.SAMPLES, var))

    def _spec(self, role: ValueRole, var: core.Var) -> PartitionSpec:
        return self.sharding.spec(role, var, self.mesh.size)

    def _split(self, spec: PartitionSpec) -> int | None:
        """Dimension that the data ranks split."""
        return next((at for at, entry in enumerate(spec) if self._of_ranks(entry)), None)

    def _of_ranks(self, entry: Any) -> bool:
        return bool(set(self.axes) & set(_names(entry)))

    def _without_ranks(self, entry: Any) -> Any:
        return tuple(name for name in _names(entry) if name not in self.axes) or None

    def _beside(self, operand: int) -> tuple[tuple[str, int], ...]:
        """Axes of ranks whose gradients of an operand are summed with those of data ranks."""
        held = getattr(self.sharding, "axes", {}).get(self.ranks.step.loss.invars[operand], {})
        return self.beside_experts if Ranks.EXPERT in held.values() else self.beside

    def _with(self, beside: tuple[tuple[str, int], ...]) -> RankLayout:
        """The layout of sums of gradients, in which these ranks and data ranks are alike."""
        ranks = replace(self.ranks, axes=(*self.ranks.axes, *beside))
        return replace(self, ranks=ranks, beside=(), beside_experts=())

    # ---- programs

    def program(
        self, closed: core.ClosedJaxpr, reads: Sequence[PlacedValue], writes: Sequence[PlacedValue], sums: int = 0
    ) -> core.ClosedJaxpr:
        """Each rank runs it for its own samples."""
        function, added = core.jaxpr_as_fun(closed), writes[len(writes) - sums :] if sums else []
        own = {place: held.beside for place, held in enumerate(writes) if held.beside}
        if own:
            function = with_own_sums(closed, own, dict((*self.beside, *self.beside_experts)))

        def run(*given: Any) -> list[Any]:
            made = self._leave(function(*self._enter(given[: len(reads)], reads, flat=self.flat)), writes)
            totals = zip(made[len(made) - sums :], given[len(reads) :], strict=True)
            return [*made[: len(made) - sums], *(own + before for own, before in totals)]

        return self._on_mesh(run, [*reads, *added], writes)

    @property
    def sum_is_gradient(self) -> bool:
        """Each rank has its own."""
        return False

    def totals(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """Sums of sums of each rank, then one reduction of all of them."""
        if self.beside or self.beside_experts:
            return self._totals_by_ranks(numbers, counts, parts)
        step = self.ranks.step
        operands = [step.wrt[number] for number in numbers]
        sums, writes = [self.sum(operand) for operand in operands], [self.gradient(operand) for operand in operands]
        reads = [held for held, count in zip(sums, counts, strict=True) for _ in range(count)]
        alone = self._by_device([*sums, *writes])
        shapes = [jax.ShapeDtypeStruct(self._part(held, alone=alone), held.aval.dtype) for held in sums]

        def run(*given: Any) -> list[Any]:
            own = [value[0] if held.placement == OWN else value for value, held in zip(given, reads, strict=True)]
            return self._reduced(means(own, shapes, counts, parts), sums, writes, flat=alone)

        return self._on_mesh(run, reads, writes, alone=alone)

    def _totals_by_ranks(self, numbers: Sequence[int], counts: Sequence[int], parts: int) -> core.ClosedJaxpr:
        """The same, each sum over the ranks that share it."""
        shared = [self._beside(self.ranks.step.wrt[number]) for number in numbers]
        ends = list(accumulate(counts))
        programs = []
        for beside in dict.fromkeys(shared):
            own = [at for at, one in enumerate(shared) if one == beside]
            reads = [place for at in own for place in range(ends[at] - counts[at], ends[at])]
            made = self._with(beside).totals([numbers[at] for at in own], [counts[at] for at in own], parts)
            programs.append((reads, own, made))
        return _side_by_side(programs)

    def _by_device(self, values: Sequence[PlacedValue]) -> bool:
        """Whether no other axis of the mesh splits a dimension that ranks split, so that devices can work alone."""
        return all(
            set(_names(entry)) <= set(self.axes) or not self._of_ranks(entry)
            for held in values
            for entry in held.spec or ()
        )

    def _part(self, held: PlacedValue, *, alone: bool) -> tuple[int, ...]:
        """Shape of what a rank, or each of its devices, adds to."""
        split = held.spec if alone else self._along(held)
        sizes = dict(zip(self.mesh.axis_names, self.mesh.axis_sizes, strict=True))
        parts = [prod(sizes[name] for name in _names(entry)) for entry in split or ()]
        shape = [size // part for size, part in zip_longest(held.aval.shape, parts, fillvalue=1)]
        return tuple(shape[1:] if held.placement == OWN else shape)

    def _reduced(
        self, values: Sequence[Any], sums: Sequence[PlacedValue], writes: Sequence[PlacedValue], *, flat: bool
    ) -> list[Any]:
        """Gradients of each rank brought to where the update wants them."""
        found = dict(enumerate(values))
        left = [at for at, held in enumerate(sums) if held.placement == OWN]
        parts = [at for at in left if writes[at].shard is not None]
        odd = [at for at in left if writes[at].shard is None]
        if not (self.zero and flat):
            moved = scattered(
                [found[at] for at in parts],
                [writes[at].shard or 0 for at in parts],
                self.axes,
                self.ranks.ranks,
                flat=flat,
            )
            whole = summed([found[at] for at in odd], self.axes)
        else:
            # What no dimension splits goes along as a row of numbers, and is gathered.
            rows = [bucket_row(found[at], self.ranks.ranks) for at in odd]
            dimensions = [writes[at].shard or 0 for at in (*parts, *odd)]
            moved = scattered([*(found[at] for at in parts), *rows], dimensions, self.axes, self.ranks.ranks, flat=True)
            own = gathered(moved[len(parts) :], [0] * len(odd), self.axes, self.ranks.ranks, flat=True)
            whole = [row[: found[at].size].reshape(found[at].shape) for row, at in zip(own, odd, strict=True)]
        found.update(zip((*parts, *odd), [*moved[: len(parts)], *whole], strict=True))
        return [found[at] for at in range(len(values))]

    def together(self, place: int, count: int) -> core.ClosedJaxpr:
        """Sums of each rank are summed over the ranks; anything else is put together as the mesh holds it."""
        held, aval = self.result(place), self.ranks.step.loss.outvars[place].aval
        join = self.ranks.step.joins[place]
        if held.placement != OWN:
            return jax.make_jaxpr(lambda *given: [join(given)])(*[held.aval] * count)
        total = self._placed(jax.ShapeDtypeStruct(join.shape(aval, count), aval.dtype), WHOLE)
        return self._on_mesh(
            lambda *given: summed([join([one[0] for one in given])], self.axes), [held] * count, [total]
        )

    def updated_part(self, operand: int) -> PlacedValue | None:
        """The part whose gradient and state a rank has."""
        held = self.gradient(operand)
        return held if self.zero in (1, 2) and held.shard is not None else None

    def whole_parameters(self, parts: Sequence[PlacedValue]) -> core.ClosedJaxpr:
        """One all-gather per bucket."""
        if self.beside or self.beside_experts:
            programs = []
            shared = [self._sharing(held) for held in parts]
            for beside in dict.fromkeys(shared):
                own = [at for at, one in enumerate(shared) if one == beside]
                programs.append((own, own, self._with(beside).whole_parameters([parts[at] for at in own])))
            return _side_by_side(programs)
        whole = [self._placed(held.aval, WHOLE) for held in parts]
        alone = self._by_device(parts)
        if alone:
            whole = [
                replace(held, spec=PartitionSpec(*map(self._without_ranks, part.spec or ())))
                for held, part in zip(whole, parts, strict=True)
            ]
        return self._on_mesh(lambda *given: self._enter(given, parts, flat=alone), parts, whole, alone=alone)

    def _sharing(self, part: PlacedValue) -> tuple[tuple[str, int], ...]:
        """Axes of ranks besides data ranks that hold parts of a parameter."""
        names = _names((part.spec or ())[part.shard or 0])
        return tuple(one for one in dict((*self.beside, *self.beside_experts)).items() if one[0] in names)

    def _enter(self, given: Sequence[Any], reads: Sequence[PlacedValue], *, flat: bool) -> list[Any]:
        """What a rank is given as its program takes it."""
        found = [value[0] if held.placement == OWN else value for value, held in zip(given, reads, strict=True)]
        parts = [at for at, held in enumerate(reads) if held.shard is not None]
        whole = gathered(
            [found[at] for at in parts], [reads[at].shard or 0 for at in parts], self.axes, self.ranks.ranks, flat=flat
        )
        for at, value in zip(parts, whole, strict=True):
            found[at] = value
        return found

    def _leave(self, made: Sequence[Any], writes: Sequence[PlacedValue]) -> list[Any]:
        """What its program makes as the mesh holds it."""
        alone = [held.placement == OWN and not held.beside for held in writes]
        found = [value[None] if one else value for value, one in zip(made, alone, strict=True)]
        parts = [at for at, held in enumerate(writes) if held.shard is not None and not held.beside]
        own = scattered(
            [found[at] for at in parts],
            [writes[at].shard or 0 for at in parts],
            self.axes,
            self.ranks.ranks,
            flat=self.flat,
        )
        for at, value in zip(parts, own, strict=True):
            found[at] = value
        for at, held in enumerate(writes):
            if held.shard is not None and held.beside:
                found[at] = self._scattered_together(found[at], held)
        return found

    def _scattered_together(self, summands: Any, held: PlacedValue) -> Any:
        """The sum over data ranks and those that have summands along the first axis; each gets its part."""
        names = held.beside
        every, split = (*self.axes, *names), [_names(entry) for entry in held.spec or ()]
        rest, own = (
            [tuple(name for name in entry if name not in without) or None for entry in split]
            for without in (every, self.axes)
        )

        def scatter(own: Any) -> Any:
            sums = partial(jax.lax.psum_scatter, axis_name=every, scatter_dimension=held.shard or 0, tiled=True)
            return over_ranks(sums, own[0])

        mapped = jax.shard_map(
            scatter,
            mesh=self.mesh.update_axis_types(dict.fromkeys(self.axes, AxisType.Manual)),
            in_specs=PartitionSpec(names, *rest),
            out_specs=PartitionSpec(*own),
            axis_names=set(self.mesh.axis_names) - set(self.axes),
            check_vma=False,
        )
        return mapped(summands)

    def _on_mesh(
        self, run: Any, reads: Sequence[PlacedValue], writes: Sequence[PlacedValue], *, alone: bool = False
    ) -> core.ClosedJaxpr:
        """What each rank runs, or each device by itself, as one program."""
        if not self.axes:
            return jax.make_jaxpr(jax.jit(run))(*(held.aval for held in reads))
        along = (lambda held: held.spec) if alone else self._along
        mapped = jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=tuple(map(along, reads)),
            out_specs=[*map(along, writes)],
            axis_names=set(self.mesh.axis_names if alone else self.axes),
            check_vma=False,
        )
        return jax.make_jaxpr(jax.jit(mapped))(*(held.aval for held in reads))

    def _along(self, held: PlacedValue) -> PartitionSpec:
        """How the data ranks split a value, whatever other axes do."""
        at = 0 if held.placement == OWN else held.shard if held.shard is not None else held.placement
        return PartitionSpec(*[None] * at, self.axes) if at >= 0 else PartitionSpec()


def _side_by_side(programs: Sequence[tuple[Sequence[int], Sequence[int], core.ClosedJaxpr]]) -> core.ClosedJaxpr:
    """Programs as one: each with the places of its operands and of its results among those of all."""
    if len(programs) == 1:
        return programs[0][2]
    given = {at: aval for reads, _, made in programs for at, aval in zip(reads, made.in_avals, strict=True)}

    def run(*values: Any) -> list[Any]:
        found: dict[int, Any] = {}
        for reads, writes, made in programs:
            found.update(zip(writes, core.jaxpr_as_fun(made)(*(values[at] for at in reads)), strict=True))
        return [found[at] for at in sorted(found)]

    return jax.make_jaxpr(jax.jit(run))(*(shape_only(given[at]) for at in sorted(given)))


def _names(entry: Any) -> tuple[str, ...]:
    """Axes of a mesh that split a dimension."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
