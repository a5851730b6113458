"""The devices of a stage as a grid: which axes the ranks of each kind run along, and how values are sharded.

Dense layers and experts share the devices of a stage in two ways, innermost ranks first (Liu et al. 2025, "MoE Parallel
Folding", section 3):

    dense     tensor x context x data                  = devices
    experts   expert tensor x expert x expert data     = devices

The grid has an axis for every step between two borders of either, so that a rank of each kind is a row of whole axes.
XLA adds the collectives that follow from the shardings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from meshwright.compiler.shardings import DataSharding, ValueRole
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem
from meshwright.shapes import Int
from meshwright.strategies import CONTEXTS
from meshwright.strategies.blocks import SIDES, ActivationBlocks, Names, TensorBlocks
from meshwright.strategies.layouts import LAYOUTS

Axes = tuple[str, ...]
"""Names of axes of a grid, the outermost first."""


class Ranks(Enum):
    """Which ranks split an axis of a weight."""

    TENSOR = "tensor"
    EXPERT = "expert"
    EXPERT_TENSOR = "expert tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrid:
    """Axes of a stage's mesh by what its ranks share."""

    sizes: tuple[tuple[str, int], ...]
    """Axes and devices along them, the outermost first."""
    data: Axes
    """Along which samples are split."""
    context: tuple[tuple[str, Axes], ...]
    """Along which tokens of a sample are split: kind, a name of `strategies.CONTEXTS`, and axes; the innermost level
    first."""
    tensor: Axes
    expert: Axes
    expert_tensor: Axes
    shards: Axes
    """Axes along which ZeRO splits weights and states of dense layers."""
    expert_shards: Axes
    """Axes along which ZeRO splits weights and states of experts."""
    blocks: TensorBlocks | None = None
    """How tensor ranks hold matrices and activations, where products are written block by block."""

    @classmethod
    def of(
        cls,
        *,
        data: int = 1,
        context: Sequence[tuple[str, int]] = (),
        tensor: int = 1,
        expert: int = 1,
        expert_tensor: int = 1,
        shard_group: int = 0,
        domain: int = 1,
        blocks: TensorBlocks | None = None,
    ) -> DeviceGrid:
        """The axes that degrees make.

        Args:
            data: data ranks.
            context: kind and degree of each level, the innermost first.
            tensor: tensor ranks.
            expert: ranks that share out the experts of a layer.
            expert_tensor: ranks that split each expert.
            shard_group: data x context ranks that ZeRO splits over (HSDP); 0 for all.
            domain: expert ranks that exchange among themselves first; 1 for one exchange of all.
            blocks: the blocks of the tensor ranks, whose axes are those of the grid.

        Raises:
            InputError: the two ways to share the devices have borders with no whole number of ranks between them.
        """
        levels = [degree for _, degree in context]
        inner = tensor * prod(levels)
        whole = inner * data
        group = tensor * shard_group if shard_group else whole
        sides = [size for _, size in reversed(blocks.axes)] if blocks else []
        dense, experts = _borders([tensor, *levels, data]), _borders([expert_tensor, expert])
        borders = sorted({*dense, *experts, *_borders(sides), group, expert_tensor * domain})
        if borders[-1] != whole or any(outer % within for within, outer in pairwise(borders)):
            raise InputError(
                Problem(
                    what=f"tp {tensor} x cp {inner // tensor} x dp {data} with etp {expert_tensor} x ep {expert}"
                    + (f" and shard groups of {shard_group}" if shard_group else ""),
                    why="ranks are counted from the innermost, and each group holds whole groups of those inside it",
                    fix="degrees that are powers of two",
                    field="plan",
                )
            )
        steps = [(within, outer // within) for within, outer in pairwise(borders)][::-1]
        names = _names([(_kind(start, tensor, inner), size) for start, size in steps])

        def between(low: int, high: int) -> Axes:
            return tuple(name for name, (start, _) in zip(names, steps, strict=True) if low <= start < high)

        return cls(
            sizes=tuple(zip(names, (size for _, size in steps), strict=True)) or (("data", 1),),
            data=between(inner, whole),
            context=tuple(
                (kind, between(low, low * degree)) for (kind, degree), low in zip(context, dense[1:], strict=False)
            ),
            tensor=between(1, tensor),
            expert=between(expert_tensor, expert_tensor * expert),
            expert_tensor=between(1, expert_tensor),
            shards=between(tensor, group),
            expert_shards=between(expert_tensor * expert, group),
            blocks=blocks,
        )

    @property
    def devices(self) -> int:
        """Number of devices of a stage."""
        return prod(size for _, size in self.sizes)

    @property
    def tokens(self) -> Axes:
        """Along which the tokens of a sample are split, over all levels."""
        return tuple(axis for _, axes in reversed(self.context) for axis in axes)

    def places(self, length: int) -> Int[np.ndarray, "ranks pieces tokens"] | None:
        """Place in a sample of each token, as the ranks of the level that deals tokens out hold them; None without one.

        Args:
            length: the number of tokens of a sample.
        """
        for kind, axes in self.context:
            if layout := CONTEXTS[kind].layout:
                return LAYOUTS[layout].places(length, self.size(axes))
        return None

    def block_axes(self, names: Names) -> Axes:
        """Axes of the grid of axes of a tensor group.

        Args:
            names: the names as `blocks` has them.
        """
        assert self.blocks is not None
        left = list(self.tensor)
        found: dict[str, Axes] = {}
        for name, size in self.blocks.axes:
            own: list[str] = []
            # Ranks of experts may have a border inside of an axis of the group.
            while self.size(tuple(own)) < size:
                own.append(left.pop(0))
            found[name] = tuple(own)
        return tuple(axis for name in names for axis in found[name])

    def activations(self, held: ActivationBlocks) -> PartitionSpec:
        """How ranks of a grid with blocks split [samples, length, width].

        Args:
            held: what the ranks of a tensor group hold.
        """
        sides = [self.block_axes(held.over(side)) for side in SIDES]
        return _spec([(*self.data, *sides[0]), (*self.tokens, *sides[1]), sides[2]])

    def size(self, axes: Axes) -> int:
        """Ranks along some axes.

        Args:
            axes: the axes of the grid.
        """
        found = dict(self.sizes)
        return prod(found[axis] for axis in axes)

    @property
    def mesh(self) -> AbstractMesh:
        """The grid without devices, for what is written into a program."""
        return AbstractMesh(tuple(size for _, size in self.sizes), tuple(name for name, _ in self.sizes))

    def along(self, ranks: Ranks | Axes) -> Axes:
        """Axes along which ranks of a kind run.

        Args:
            ranks: the family of ranks, or the axes themselves.
        """
        if not isinstance(ranks, Ranks):
            return ranks
        return {Ranks.TENSOR: self.tensor, Ranks.EXPERT: self.expert, Ranks.EXPERT_TENSOR: self.expert_tensor}[ranks]

    def dividing(self, shape: Sequence[int], axes: Mapping[int, Axes]) -> list[Axes]:
        """Axes along which each axis of a value is split, where they divide it.

        Args:
            shape: the shape of the value.
            axes: the axes that should split it, by its axis.
        """
        return [found if length % self.size(found := axes.get(at, ())) == 0 else () for at, length in enumerate(shape)]

    def spec(self, ranks: Mapping[int, Ranks | Axes], shape: Sequence[int]) -> PartitionSpec:
        """How ranks split a weight.

        Args:
            ranks: the ranks by axis of the weight.
            shape: the shape of the weight.
        """
        return _spec(self.dividing(shape, {axis: self.along(kind) for axis, kind in ranks.items()}))

    def held(self, value: jax.Array, *axes: Axes) -> jax.Array:
        """A value inside a program, constrained to its sharding.

        Args:
            value: any.
            axes: the axes of the grid along which each axis of the value is split; those that do not divide it are left
                out.
        """
        spec = _spec(self.dividing(value.shape, dict(enumerate(axes))))
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSplit:
    """What is split along which axes of a grid."""

    grid: DeviceGrid
    ranks_of: Callable[[str], Mapping[int, Ranks | Axes]]
    """Axes of an input of the step that are split, by its path such as `0.weights.layers.3.mlp.up`. An axis that the
    ranks do not divide stays whole."""
    length: int = 0
    """Tokens of a sample: the second axis of what passes from stage to stage."""

    @property
    def written(self) -> frozenset[AbstractMesh]:
        """The mesh of a grid whose ranks send each other what a step writes: blocks, tokens, keys and values."""
        grid = self.grid
        return frozenset([grid.mesh] if grid.blocks is not None or grid.expert or grid.context else [])


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class GridSharding:
    """Weights, their gradients and states split over ranks; what ZeRO splits over shards on top of it."""

    data: DataSharding
    split: GridSplit
    axes: Mapping[core.Var, Mapping[int, Ranks | Axes]]
    """Split axes of weights and states of the step, and of the operands of its loss."""

    @classmethod
    def of(cls, step: TracedStep, split: GridSplit, data: DataSharding) -> GridSharding:
        """Find the values that are split.

        Args:
            step: the step that it belongs to.
            split: the split by path.
            data: what ZeRO splits.
        """
        places = jax.tree.unflatten(step.in_tree, range(len(step.jaxpr.invars)))
        axes: dict[core.Var, Mapping[int, Ranks | Axes]] = {}
        for path, place in jax.tree_util.tree_leaves_with_path(places):
            if place not in step.batch:
                found = split.ranks_of(jax.tree_util.keystr(path, simple=True, separator="."))
                axes[step.jaxpr.invars[place]] = found
        for operand, atom in enumerate(step.mark.invars):
            if isinstance(atom, core.Var) and atom in axes:
                axes[step.loss.invars[operand]] = axes[atom]
        return cls(data=data, split=split, axes=axes)

    def of_trace(self, step: TracedStep) -> GridSharding:
        """The sharding of the same values in another trace of the step.

        Args:
            step: the other trace.
        """
        return GridSharding.of(step, self.split, self.data)

    def spec(self, role: ValueRole, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded.

        Args:
            role: the role of the value.
            var: the variable of the step or of its loss.
            devices: the number of devices of the mesh, over all axes.
        """
        grid, shape = self.split.grid, list(var.aval.shape)
        if role is ValueRole.SAMPLES:
            counted = len(shape) > 1 and shape[1] == self.split.length
            if counted and len(shape) == 3 and grid.blocks is not None:
                return grid.activations(grid.blocks.stream)
            return _spec(grid.dividing(shape, {0: grid.data, 1: grid.tokens if counted else ()}))
        if role is ValueRole.OTHER:
            return PartitionSpec()
        ranks = self.axes.get(var, {})
        split = grid.dividing(shape, {axis: grid.along(kind) for axis, kind in ranks.items()})
        shards = grid.expert_shards if Ranks.EXPERT in ranks.values() else grid.shards
        # ZeRO splits another axis than the ranks.
        free = [1 if axes else length for axes, length in zip(split, shape, strict=True)]
        rest = replace(self.data, axis=shards).split(role, free, grid.size(shards))
        return _spec([axes or (rest[at] if at < len(rest) else ()) or () for at, axes in enumerate(split)])


def _borders(degrees: Sequence[int]) -> list[int]:
    """Products of the first so many degrees."""
    found = [1]
    for degree in degrees:
        found.append(found[-1] * degree)
    return found


def _kind(start: int, tensor: int, inner: int) -> str:
    """What dense layers call the ranks that begin at a border."""
    return "tensor" if start < tensor else "context" if start < inner else "data"


def _names(kinds: Sequence[tuple[str, int]]) -> list[str]:
    """A name for each axis: its kind, numbered where there are several."""
    count: dict[str, Iterator[int]] = {}
    names = []
    for kind, _ in kinds:
        number = next(count.setdefault(kind, iter(range(len(kinds)))))
        names.append(f"{kind}{number or ''}")
    return names


def _spec(parts: Sequence[Any]) -> PartitionSpec:
    """Axes of each axis of a value as JAX spells them."""
    spelt = [part if isinstance(part, str) else part[0] if len(part) == 1 else tuple(part) or None for part in parts]
    while spelt and spelt[-1] is None:
        spelt.pop()
    return PartitionSpec(*spelt)
