"""Pipeline shapes as matrices: what each item weighs in the bounds of one (schedule, chunks, recompute).

Multiply item costs by these and a whole block of plans is bounded; the simulator decides among the few that are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.estimate.items import FULL, NONE, SELECTIVE, Item, items_of
from meshwright.estimate.layout import ModelLayout
from meshwright.schedules import DEFAULT_SCHEDULES, SCHEDULES, Schedule
from meshwright.search.space import Space
from meshwright.shapes import Float
from meshwright.specs.model import ModelSpec

MODES = (NONE, SELECTIVE, FULL)
RECOMPUTE_ORDER = ("none", "sel", "block", "full")
REFERENCE_TRANSFERS = (0.0, 0.02, 0.1)
"""Transfers, in parts of a worker's forward, for which the longest paths are kept as bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One pipeline shape: which item stands where, and its bounds."""

    schedule: Schedule
    p: int
    m: int
    v: int
    recompute: str
    recompute_layers: int
    counts: Float[np.ndarray, "workers chunks items"]
    path_forward: Float[np.ndarray, "paths items"]
    """Forward seconds of each item on each path; the bound is the longest path."""
    path_backward: Float[np.ndarray, "paths items"]
    path_transfer: Float[np.ndarray, "paths"]
    held: Float[np.ndarray, "fullest items"]
    """Items of the workers whose memory may be the largest."""
    alive: Float[np.ndarray, "fullest items"]
    """Their items times what is in flight at the peak."""
    first: Float[np.ndarray, "items"]
    """Items of worker 0, which ends last."""


@dataclass(frozen=True, slots=True)
class ShapeFactory:
    """Builds the shapes of a model for p workers and m micro-batches."""

    model: ModelSpec
    layout: ModelLayout
    space: Space
    items: tuple[Item, ...]

    @classmethod
    def of(cls, model: ModelSpec, seq_len: int, space: Space) -> ShapeFactory:
        """For the recompute modes of the search."""
        return cls(model, ModelLayout.of(model, seq_len), space, items_of(model, MODES))

    def pipelines(self, p: int, m: int) -> list[tuple[Schedule, int]]:
        """Schedules and chunk counts that p workers and m micro-batches allow."""
        found = []
        wanted = self.space.pinned("schedule")
        chunk_counts = self.space.pinned("vpp")
        for name in DEFAULT_SCHEDULES:
            schedule = SCHEDULES[name]
            if wanted is not None and name not in wanted and p > 1:
                continue
            for v in range(1, self.model.num_layers // p + 1):
                if chunk_counts is not None and v not in chunk_counts:
                    continue
                if (name == "interleaved") != (v > 1):
                    continue
                if p == 1 and (v > 1 or name != "1f1b"):
                    # One worker has no pipeline: every order of its work takes as long, 1f1b keeps the least alive.
                    continue
                if not schedule.problems(p, m, v):
                    found.append((schedule, v))
        return found

    def recomputes(self, p: int, v: int) -> list[tuple[str, int]]:
        """None, selective, full, and the quarter steps of the largest chunk."""
        largest = max(self.layout.split(p * v))
        blocks = sorted({math.ceil(largest * quarter / 4) for quarter in (1, 2, 3)} - {0, largest})
        options = [("none", 0), ("sel", 0), *(("block", k) for k in blocks), ("full", 0)]
        wanted = self.space.pinned("recompute")
        return options if wanted is None else [option for option in options if option[0] in wanted]

    def shapes(self, p: int, m: int) -> list[Shape]:
        """All shapes of p workers and m micro-batches."""
        return [shape for schedule, v in self.pipelines(p, m) for shape in self._shapes(schedule, p, m, v)]

    def count(self, p: int, m: int) -> int:
        """How many shapes there are."""
        return sum(len(self.recomputes(p, v)) for _, v in self.pipelines(p, m))

    def _shapes(self, schedule: Schedule, p: int, m: int, v: int) -> list[Shape]:
        lengths = self._paths(schedule, p, m, v)
        vectors = schedule.in_flight(p, m, v)
        shapes = []
        for recompute, layers in self.recomputes(p, v):
            counts = self.counts(p, v, recompute, layers)
            held, alive = self._largest(counts, vectors)
            flat = counts.reshape(p * v, -1)
            shapes.append(
                Shape(
                    schedule=schedule,
                    p=p,
                    m=m,
                    v=v,
                    recompute=recompute,
                    recompute_layers=layers,
                    counts=counts,
                    path_forward=lengths[:, 0].reshape(len(lengths), -1) @ flat,
                    path_backward=lengths[:, 1].reshape(len(lengths), -1) @ flat,
                    path_transfer=lengths[:, 2].reshape(len(lengths), -1).sum(axis=1),
                    held=held,
                    alive=alive,
                    first=counts[0].sum(axis=0),
                )
            )
        return shapes

    def counts(self, p: int, v: int, recompute: str, layers: int) -> Float[np.ndarray, "workers chunks items"]:
        """How often each item stands in each chunk.

        Args:
            p: workers.
            v: chunks per worker.
            recompute: none, sel, full or block.
            layers: K of block.
        """
        model, kinds = self.model, len(self.layout.kinds)
        ranges = np.array(self.layout.ranges(p, v))
        first, behind = ranges[..., 0], ranges[..., 1] + 1
        counts = np.zeros((p, v, len(self.items)))
        place = {"none": 0, "sel": 1, "full": 2, "block": 0}[recompute] * kinds
        if recompute == "block":
            border = np.minimum(first + layers, behind)
            counts[..., :kinds] = self.layout.counts(border, behind)
            counts[..., 2 * kinds : 3 * kinds] = self.layout.counts(first, border)
        else:
            counts[..., place : place + kinds] = self.layout.counts(first, behind)
        counts[0, 0, self._place(Item("embedding"))] = 1
        counts[p - 1, v - 1, self._place(Item("head"))] = 1
        if model.tied_embeddings and p == 1:
            counts[p - 1, v - 1, self._place(Item("tie"))] = 1
        if model.mtp_layers:
            whole = layers >= behind[p - 1, v - 1] - first[p - 1, v - 1]
            mode = {"none": NONE, "sel": SELECTIVE, "full": FULL, "block": FULL if whole else NONE}[recompute]
            counts[p - 1, v - 1, self._place(Item("mtp", model.last_layer(), mode))] = model.mtp_layers
            if p > 1 and not model.tied_embeddings:
                counts[p - 1, v - 1, self._place(Item("copy"))] = 1
        return counts

    def _place(self, item: Item) -> int:
        return self.items.index(item)

    def _paths(self, schedule: Schedule, p: int, m: int, v: int) -> Float[np.ndarray, "paths 3 workers chunks"]:
        """The longest paths for a few typical durations, at m micro-batches."""
        bound = schedule.path_bound(p, m, v)
        lengths = bound.once + m * bound.each
        forward = self._weights(p, v)
        picked = set()
        for share in REFERENCE_TRANSFERS:
            transfer = np.full_like(forward, share * forward.sum() / p)
            seconds = np.stack([forward, 2 * forward, transfer])
            picked.add(int((lengths * seconds).sum(axis=(1, 2, 3)).argmax()))
        chosen = lengths[sorted(picked)].copy()
        # Nothing travels inside a worker.
        if p == 1:
            chosen[:, 2] = 0.0
        return chosen

    def _weights(self, p: int, v: int) -> Float[np.ndarray, "workers chunks"]:
        """FLOP per token of each chunk."""
        ranges = np.array(self.layout.ranges(p, v))
        weights = self.layout.counts(ranges[..., 0], ranges[..., 1] + 1) @ self.layout.kind_flop
        weights[p - 1, v - 1] += self.layout.tail_flop
        return weights

    def _largest(
        self, counts: Float[np.ndarray, "workers chunks items"], vectors: tuple[np.ndarray, ...]
    ) -> tuple[Float[np.ndarray, "kept items"], Float[np.ndarray, "kept items"]]:
        """Held and alive items of the workers that may need the most memory: no other worker has as many of each."""
        worker = np.repeat(np.arange(len(vectors)), [len(living) for living in vectors])
        held = counts.sum(axis=1)[worker]
        alive = np.einsum("nv,nvi->ni", np.concatenate(vectors).astype(float), counts[worker])
        rows = np.concatenate([held, alive], axis=1)
        rows = rows[:, rows.any(axis=0)]
        covered = (rows[None, :, :] >= rows[:, None, :]).all(axis=-1)
        equal = covered & covered.T
        # Of equal rows the first stays.
        earlier = np.tri(len(rows), k=-1, dtype=bool)
        kept = ~((covered & ~equal) | (equal & earlier)).any(axis=1)
        return held[kept], alive[kept]
