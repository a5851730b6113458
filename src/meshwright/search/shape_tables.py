"""Shapes as columns: those of one pipeline, those of one pp as tables of equal size, and their fullest workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.estimate.layers.states import EXTRA_SECONDS, TENSORS_HELD
from meshwright.estimate.memory import PerParameter, always_bytes
from meshwright.estimate.pipeline import StageCounts, computed_counts
from meshwright.estimate.run import Live, Vectors
from meshwright.schedules import Schedule
from meshwright.shapes import Bool, Float, Int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Fullest:
    """These workers of each of some shapes, the last one repeated where a shape has fewer than another."""

    held: Float[np.ndarray, "shapes fullest items"]
    """Items of these workers."""
    alive: Float[np.ndarray, "shapes fullest items"]
    """Items of these workers times the micro-batches in flight."""
    versions: Float[np.ndarray, "shapes fullest"]
    """Versions of the weights they keep."""
    first: Float[np.ndarray, "shapes items"]
    """Items of worker 0, at which the paths end."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OneMicroBatch:
    """Worker 0 with what no order of a schedule's tasks can keep less of."""

    first: Float[np.ndarray, "shapes items"]
    """Items of worker 0."""
    alive: Float[np.ndarray, "shapes one items"]
    """Items of one micro-batch: before its last stage turns back, all chunks of its chain keep what it left there."""


def one_micro_batch(schedule: Schedule, counts: StageCounts) -> OneMicroBatch:
    """Worker 0 while one micro-batch, or one section of one, is on its way.

    Args:
        schedule: the schedule of the pipeline.
        counts: items of each chunk, of all shapes.
    """
    work = computed_counts(schedule, counts)[:, 0]
    # Chunks of another chain are those of other micro-batches.
    alive = work.sum(axis=1, keepdims=True) if schedule.chains == 1 else work[:, :1]
    return OneMicroBatch(first=_held(counts)[:, 0], alive=alive)


def fullest_workers(
    schedule: Schedule,
    now: Live,
    counts: StageCounts,
    versions: Float[np.ndarray, " workers"],
) -> Fullest:
    """The workers that may need the most memory: no other one has as many of each item.

    Args:
        schedule: the schedule of the pipeline.
        now: what is alive.
        counts: items of each chunk, of all shapes.
        versions: the versions of the weights that each worker keeps.
    """
    own = _held(counts)
    work = computed_counts(schedule, counts)
    worker = np.repeat(np.arange(own.shape[1]), [len(living) for living in now.kept])
    held = own[:, worker]
    alive = _in_flight(now.kept, work)
    if counts.bare is not None:
        alive = alive + _in_flight(now.made, counts.bare)
    if now.guests.any():
        alive = alive + (now.guests[:, None] * work[:, ::-1].sum(axis=2))[:, worker]
    kept = []
    for own_held, own_alive in zip(held, alive, strict=True):
        several = [] if (versions == 1.0).all() else [versions[worker, None]]
        rows = np.concatenate([own_held, own_alive, *several], axis=1)
        rows = rows[:, rows.any(axis=0)]
        kept.append(_undominated(rows.tobytes(), *rows.shape))
    longest = max(len(numbers) for numbers in kept)
    index = np.array([(*numbers, *numbers[-1:] * (longest - len(numbers))) for numbers in kept])
    shape = np.arange(len(kept))[:, None]
    return Fullest(
        held=held[shape, index], alive=alive[shape, index], versions=versions[worker[index]], first=own[:, 0]
    )


@lru_cache(maxsize=4096)
def _undominated(values: bytes, count: int, columns: int) -> tuple[int, ...]:
    """Rows that no other one covers, by number; one of equal rows. Pipelines that recompute otherwise have the same.

    Args:
        values: the values of all rows, in 64 bits.
        count: the count of rows.
        columns: the number of columns of each.
    """
    rows = np.frombuffer(values).reshape(count, columns)
    # In descending order, column after column, of equal rows the earlier first: nothing covers the first that is left.
    left = np.lexsort((-rows).T[::-1])
    kept = []
    while len(left):
        kept.append(int(left[0]))
        left = left[(rows[left] > rows[left[0]]).any(axis=1)]
    return tuple(sorted(kept))


def _in_flight(
    living: Vectors, items: Float[np.ndarray, "shapes workers chunks items"]
) -> Float[np.ndarray, "shapes moments items"]:
    """Items of the chunk activations that live at the moments of all workers."""
    return np.concatenate([own.astype(float) @ items[:, worker] for worker, own in enumerate(living)], axis=1)


def _held(counts: StageCounts) -> Float[np.ndarray, "shapes workers items"]:
    """What each worker holds, its stages for others included."""
    own = counts.work.sum(axis=2)
    return own if counts.shadow is None else own + counts.shadow


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


class FirstWorker:
    """Worker 0 of rows x pipeline shapes: products of the items' costs with the items it holds."""

    def __init__(self, costs: ItemCosts, shapes: ShapeTables, hardware: Hardware) -> None:
        """Compute nothing yet.

        Args:
            costs: the costs of the rows.
            shapes: the shapes whose first workers hold items, and keep those of micro-batches in flight.
            hardware: the hardware whose software takes memory of its own.
        """
        self._costs, self._shapes, self._hardware = costs, shapes, hardware

    @cached_property
    def dense(self) -> Float[np.ndarray, "rows shapes"]:
        """Parameters outside experts."""
        return self._costs.dense_parameters @ self._shapes.first.T

    @cached_property
    def experts(self) -> Float[np.ndarray, "rows shapes"]:
        """Parameters of experts."""
        return self._costs.expert_parameters @ self._shapes.first.T

    @cached_property
    def kept_bytes(self) -> Float[np.ndarray, "rows shapes"]:
        """Bytes that its micro-batches in flight keep."""
        return self._costs.kept_bytes @ self._shapes.alive[:, 0].T

    @cached_property
    def update_s(self) -> list[Float[np.ndarray, "rows shapes"]]:
        """Seconds of its update beyond those of as many parameters of the usual kind."""
        return [getattr(self._costs, name) @ self._shapes.first.T for name in EXTRA_SECONDS]

    @cached_property
    def tensors(self) -> list[Float[np.ndarray, "rows shapes"]]:
        """Parameter tensors it updates, dense ones and those of experts."""
        return [getattr(self._costs, name) @ self._shapes.first.T for name in TENSORS_HELD]

    @cached_property
    def _has_experts(self) -> bool:
        return bool(self._costs.expert_parameters.any())

    def held_bytes(
        self, each: PerParameter, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]
    ) -> Float[np.ndarray, "choices pairs"]:
        """Lower bound of what it holds of some pairs: its states, as these choices keep them, and its micro-batches.

        Args:
            each: bytes of a parameter, one row per choice.
            rows: the rows of the pairs.
            shapes: the shapes of the pairs.
        """
        dense, experts = each.dense_weights + each.dense_others, each.expert_weights + each.expert_others
        held = dense[:, rows] * self.dense[rows, shapes] + self.kept_bytes[rows, shapes]
        if self._has_experts:
            held = held + experts[:, rows] * self.experts[rows, shapes]
        return self._allocated(held)

    def least_bytes(self, each: PerParameter) -> Float[np.ndarray, "rows shapes"]:
        """The same of every pair, in one choice.

        Args:
            each: the bytes of one choice.
        """
        dense, experts = each.dense_weights + each.dense_others, each.expert_weights + each.expert_others
        return self._allocated(dense[0][:, None] * self.dense + experts[0][:, None] * self.experts + self.kept_bytes)

    def _allocated(self, held: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return held * (1.0 + self._hardware.software.fragmentation) + always_bytes(self._hardware)
