"""Shapes as columns: those of one pipeline, made together, and those of one pp as tables of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.estimate.pipeline import StageCounts
from meshwright.schedules import Schedule
from meshwright.search.fullest import Fullest
from meshwright.shapes import Bool, Float, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One pipeline shape: which item stands where."""

    schedule: Schedule
    p: int
    m: int
    v: int
    recompute: str
    recompute_layers: int
    counts: StageCounts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineShapes:
    """The shapes of one pipeline, one for each way to recompute, and their bounds."""

    schedule: Schedule
    p: int
    m: int
    v: int
    recomputes: Sequence[tuple[str, int]]
    """Each shape's."""
    counts: StageCounts
    """Counts of all shapes, along a first axis."""
    path_forward: Float[np.ndarray, "shapes paths items"]
    """Forward seconds of each item on each path; the bound is the longest path."""
    path_backward: Float[np.ndarray, "shapes paths items"]
    path_weight: Float[np.ndarray, "shapes paths items"]
    """Weight gradients, part of the backward."""
    path_transfer: Float[np.ndarray, "paths"]
    fullest: Fullest
    pairing: Sequence[bool]
    """Whether forwards of each shape run together with backwards of other micro-batches."""
    per_update: int
    """Micro-batches between two updates of the weights."""
    updates: int
    """Updates per step."""
    apart: int
    """Chains whose two ends are on different workers."""

    def shape(self, number: int) -> Shape:
        """One of them."""
        recompute, layers = self.recomputes[number]
        counts = self.counts.of_shape(number)
        return Shape(
            schedule=self.schedule,
            p=self.p,
            m=self.m,
            v=self.v,
            recompute=recompute,
            recompute_layers=layers,
            counts=counts,
        )

    @property
    def bare(self) -> list[int]:
        """Number of the shape that recomputes nothing, for each shape; its own where there is none."""
        names = [recompute for recompute, _ in self.recomputes]
        return [names.index("none") if "none" in names else number for number in range(len(names))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeTables:
    """Shapes of one pp, padded to equal numbers of paths and worker classes, so that one product serves all."""

    pipelines: Sequence[PipelineShapes]
    pipeline: Int[np.ndarray, "shapes"]
    """Which of them a shape is of."""
    m: Int[np.ndarray, "shapes"]
    """Micro-batches."""
    first_of: Int[np.ndarray, "pipelines"]
    """Number of each pipeline's first shape."""
    path_forward: Float[np.ndarray, "shapes paths items"]
    path_backward: Float[np.ndarray, "shapes paths items"]
    path_weight: Float[np.ndarray, "shapes paths items"]
    splits: bool
    """Whether any backward is split."""
    path_transfer: Float[np.ndarray, "shapes paths"]
    held: Float[np.ndarray, "shapes fullest items"]
    alive: Float[np.ndarray, "shapes fullest items"]
    versions: Float[np.ndarray, "shapes fullest"]
    sets: Bool[np.ndarray, "sets items"]
    """Sets of items that stand on workers: few, however many shapes there are."""
    set_of: Int[np.ndarray, "shapes fullest"]
    """Number of the set of each."""
    first: Float[np.ndarray, "shapes items"]
    pairing: Bool[np.ndarray, "shapes"]
    """Whether forwards run together with backwards of other micro-batches, and no layer is made again as a whole."""
    bare: Int[np.ndarray, "shapes"]
    """Number of the shape of the same pipeline that recomputes nothing; its own where there is none."""
    chunks: Float[np.ndarray, "shapes"]
    """Chunks per worker; infinitely many where there is but one worker."""
    per_update: Float[np.ndarray, "shapes"]
    updates: Float[np.ndarray, "shapes"]
    last_passes: Float[np.ndarray, "shapes"]
    apart: Float[np.ndarray, "shapes"]

    @classmethod
    def of(cls, pipelines: Sequence[PipelineShapes]) -> ShapeTables:
        """The tables of these pipelines.

        Args:
            pipelines: the pipelines of one pp, at least one.
        """
        counts = [len(one.recomputes) for one in pipelines]
        first_of = np.cumsum([0, *counts[:-1]])
        fullest = [one.fullest for one in pipelines]
        path_weight = _joined([one.path_weight for one in pipelines])
        held = _joined([workers.held for workers in fullest])
        present = (held > 0).reshape(-1, held.shape[2])
        # As bytes, rows are told apart without a look at every item of each.
        packed = np.packbits(present, axis=1)
        whole = packed.view(f"V{packed.shape[1]}")[:, 0]
        _, example, set_of = np.unique(whole, return_index=True, return_inverse=True)

        def each(values: Sequence[float]) -> Float[np.ndarray, "shapes"]:
            return np.repeat(np.array(values, dtype=float), counts)

        return cls(
            pipelines=pipelines,
            pipeline=np.repeat(np.arange(len(pipelines)), counts),
            m=np.repeat([one.m for one in pipelines], counts),
            first_of=first_of,
            path_forward=_joined([one.path_forward for one in pipelines]),
            path_backward=_joined([one.path_backward for one in pipelines]),
            path_weight=path_weight,
            splits=bool(path_weight.any()),
            path_transfer=np.repeat(_joined([one.path_transfer[None] for one in pipelines]), counts, axis=0),
            held=held,
            sets=present[example],
            set_of=set_of.reshape(held.shape[:2]),
            alive=_joined([workers.alive for workers in fullest]),
            versions=_joined([workers.versions for workers in fullest]),
            first=np.concatenate([workers.first for workers in fullest]),
            pairing=np.concatenate([one.pairing for one in pipelines]),
            bare=np.concatenate([one.bare for one in pipelines]) + np.repeat(first_of, counts),
            chunks=each([one.v if one.p > 1 else np.inf for one in pipelines]),
            per_update=each([one.per_update for one in pipelines]),
            updates=each([one.updates for one in pipelines]),
            last_passes=each([one.schedule.last_passes(one.p, one.m, one.v) for one in pipelines]),
            apart=each([one.apart for one in pipelines]),
        )

    def __len__(self) -> int:
        return len(self.pipeline)

    def shape(self, number: int) -> Shape:
        """One of the shapes.

        Args:
            number: the number of it.
        """
        pipeline = int(self.pipeline[number])
        return self.pipelines[pipeline].shape(number - int(self.first_of[pipeline]))


def _joined(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Tables one after the other, the last entry of each along the second axis repeated up to the longest."""
    longest = max(table.shape[1] for table in tables)
    filled = np.empty((sum(len(table) for table in tables), longest, *tables[0].shape[2:]))
    start = 0
    for table in tables:
        end, length = start + len(table), table.shape[1]
        filled[start:end, :length] = table
        filled[start:end, length:] = table[:, -1:]
        start = end
    return filled
