"""Seconds of what moves between devices of a logical mesh: the ring forms of `kernels`, on the links of each axis.

A placement says for each axis of the mesh which dimension of a value it splits, or -1 for none; arrays of placements
have the shape (choices, axes). Of two axes on one dimension the first is the outer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from meshwright.kernels.algorithms import Seconds, ring_gather_s
from meshwright.shapes import Bool, Column, Float, Int

WHOLE = -1
"""An axis that splits nothing."""
MOST_REMEMBERED = 64
"""Placements of a value up to which the seconds between them are remembered."""

Placements = Int[np.ndarray, "choices axes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """Devices along one axis of a logical mesh, and the links between them."""

    size: int
    latency_s: float
    """Alpha: of one collective."""
    bytes_per_s: float
    """1 / beta: out of one device, in one direction."""

    def gather_s(self, size_bytes: Column) -> Seconds:
        """What a ring over the axis takes beyond its latency: (n - 1) / n x bytes / bandwidth."""
        return ring_gather_s(size_bytes, self.size, latency_s=0.0, bandwidth_bytes_per_s=self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMesh:
    """Devices in one to three axes."""

    axes: tuple[MeshAxis, ...]
    flop_per_s: float
    """Speed of one device reached in matrix products, flop/s."""
    launch_s: float = 0.0
    """What a product takes beyond its work."""
    source: str = "stated"
    """Where the numbers of its devices and links come from."""

    @property
    def sizes(self) -> Int[np.ndarray, " axes"]:
        """Devices along each axis."""
        return np.array([axis.size for axis in self.axes])

    def all_reduce_s(self, axis: int, size_bytes: float) -> float:
        """Ring all-reduce: alpha + 2 (n - 1) / n x bytes / bandwidth.

        Args:
            axis: the number of axis of the mesh.
            size_bytes: the size in bytes on each device, before and after.
        """
        return self.axes[axis].latency_s + float(2.0 * self.axes[axis].gather_s(size_bytes))

    def all_gather_s(self, axis: int, size_bytes: float) -> float:
        """Ring all-gather or reduce-scatter: alpha + (n - 1) / n x bytes / bandwidth.

        Args:
            axis: the number of axis of the mesh.
            size_bytes: the size in bytes of the whole: after an all-gather, before a reduce-scatter.
        """
        return self.axes[axis].latency_s + float(self.axes[axis].gather_s(size_bytes))

    def all_to_all_s(self, axis: int, size_bytes: float) -> float:
        """All-to-all: alpha + (n - 1) / n x bytes / bandwidth.

        Args:
            axis: the number of axis of the mesh.
            size_bytes: the size in bytes on each device, before and after.
        """
        return self.axes[axis].latency_s + float(self.axes[axis].gather_s(size_bytes))

    def shards(self, placements: Placements) -> Float[np.ndarray, " choices"]:
        """Parts into which each placement splits a value.

        Args:
            placements: the placements of the value.
        """
        return np.where(placements != WHOLE, self.sizes, 1).prod(axis=-1).astype(float)

    def move_s(
        self,
        size_bytes: float,
        source: Int[np.ndarray, "*rows axes"],
        target: Int[np.ndarray, "*others axes"],
        partial: Bool[np.ndarray, "*more axes"] | bool = False,
    ) -> Float[np.ndarray, "*choices"]:
        """Seconds to bring a value from one placement to another; rows are broadcast against each other.

        An axis that splits the same dimension before and after costs nothing, one that begins to split a slice, which
        is free; one that ends an all-gather; one that changes dimensions an all-to-all. An axis along which the value
        is a sum still to be taken costs an all-reduce, or a reduce-scatter where it splits the value afterwards.
        Slices come first, then axis after axis, each at the size the value then has.

        Args:
            size_bytes: the size in bytes of the whole value.
            source: placements before.
            target: placements after.
            partial: axes along which the value is a partial sum.
        """
        given = tuple(np.asarray(one) for one in (source, target, partial))
        if np.broadcast_shapes(*(one.shape for one in given))[0] > MOST_REMEMBERED:
            return self._move_s(size_bytes, *given)
        return _remembered_move_s(self, size_bytes, *((one.shape, one.dtype.str, one.tobytes()) for one in given))

    def _move_s(
        self,
        size_bytes: float,
        source: Int[np.ndarray, "*rows axes"],
        target: Int[np.ndarray, "*others axes"],
        partial: Bool[np.ndarray, "*more axes"],
    ) -> Float[np.ndarray, "*choices"]:
        sizes = self.sizes
        before, after, sums = np.broadcast_arrays(source, target, partial)
        split_before = np.where((before != WHOLE) | ((after != WHOLE) & ~sums), sizes, 1)
        split_after = np.where(after != WHOLE, sizes, 1)
        total = np.zeros(before.shape[:-1])
        for axis, own in enumerate(self.axes):
            others = split_after[..., :axis].prod(-1) * split_before[..., axis + 1 :].prod(-1)
            whole_s = own.gather_s(size_bytes / others)
            old, new, summed = before[..., axis], after[..., axis], sums[..., axis]
            gathered = ~summed & (old != WHOLE) & (new == WHOLE)
            exchanged = ~summed & (old != WHOLE) & (new != WHOLE) & (old != new)
            reduced = summed & (new == WHOLE)
            scattered = summed & (new != WHOLE)
            total = total + (gathered | exchanged | reduced | scattered) * own.latency_s
            total = total + (gathered | scattered) * whole_s + exchanged * whole_s / own.size + reduced * 2.0 * whole_s
        return total + self._reordered_s(size_bytes, before, after)

    def _reordered_s(
        self, size_bytes: float, before: Int[np.ndarray, "*choices axes"], after: Int[np.ndarray, "*choices axes"]
    ) -> Float[np.ndarray, "*choices"]:
        """Seconds of the permutes where an axis begins or ends to split a dimension outside of one that goes on to.

        Blocks of the inner axis were parts of blocks of the outer one, or become it, so that each device holds another
        part than it is to have: one part of the smaller kind is sent on.
        """
        slowest = min(self.axes, key=lambda axis: axis.bytes_per_s, default=None)
        total = np.zeros(before.shape[:-1])
        for outer, inner in combinations(range(len(self.axes)), 2):
            dim = before[..., inner]
            stays = (dim != WHOLE) & (dim == after[..., inner])
            ends, begins = before[..., outer] == dim, after[..., outer] == dim
            moved = stays & (ends != begins)
            parts = self.shards(np.where(ends[..., None], before, after))
            if slowest is not None:
                total = total + moved * (slowest.latency_s + size_bytes / parts / slowest.bytes_per_s)
        return total


Form = tuple[tuple[int, ...], str, bytes]
"""Shape, type and entries of an array."""


@lru_cache(maxsize=1024)
def _remembered_move_s(mesh: LogicalMesh, size_bytes: float, *given: Form) -> Float[np.ndarray, "*choices"]:
    """Seconds of a move, as `LogicalMesh.move_s`, kept: layers of a model ask the same."""
    arrays = (np.frombuffer(entries, dtype).reshape(shape) for shape, dtype, entries in given)
    found = mesh._move_s(size_bytes, *arrays)
    found.setflags(write=False)
    return found
