"""Paths through a pipeline as counts of durations: none is longer than the step, so the longest is a lower bound.

All of them end at worker 0, whose gradients and optimizer follow. Counts are by duration (forward, backward, transfer,
weight gradient, task R), worker and chunk; a task I counts as a backward less a weight gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.estimate.pipeline import StageCounts
from meshwright.schedules import Kind, Schedule, Times
from meshwright.schedules.bounds import PathBound
from meshwright.shapes import Float

FORWARD, BACKWARD, TRANSFER, WEIGHT, AGAIN = range(5)
DURATIONS = np.array((1.0, 2.0, 0.0, 1.0, 1.0))
"""Durations of a typical worker's tasks in units of its forward, transfers aside."""
REFERENCE_TRANSFERS = np.array((0.0, 0.02, 0.1))
"""Transfers, in parts of a worker's forward, for which the longest paths are kept as bounds."""

Lengths = Float[np.ndarray, "paths durations workers chunks"]
Cells = Float[np.ndarray, "workers chunks"]


def order_free_lengths(schedule: Schedule, p: int, m: int, v: int) -> Lengths:
    """Paths that every order of a schedule's tasks has, one per worker.

    A worker waits until the first micro-batch has come down to it, runs all its forwards and backwards, and the last
    gradient runs back to worker 0. Where the backward is split, weight gradients need not be over by then, except those
    of worker 0. Without a flush a step is at least the work of any worker.

    Args:
        schedule: the schedule of the pipeline.
        p: workers.
        m: micro-batches.
        v: chunks per worker.
    """
    placement = schedule.placement(p, v)
    chunks, chains = placement.v, placement.chains
    # With two chains each worker runs at least (m - 1) / 2 micro-batches of each.
    runs = (m * schedule.sections() - (chains - 1)) / chains
    split = Kind.W in schedule.kinds
    lengths = np.zeros((p if chains == 1 else 1, 5, p, chunks))
    # Workers may hold different numbers of chunks.
    held = np.zeros((p, chunks))
    held[placement.worker, placement.chunk] = runs
    for worker, path in enumerate(lengths):
        path[FORWARD, worker] = path[BACKWARD, worker] = held[worker]
        if schedule.shadows or (Kind.R in schedule.kinds and worker < p - 1):
            path[AGAIN, worker] = held[worker]
        if worker == 0 or chains > 1 or not schedule.drains(p, m):
            continue
        stage = int(np.flatnonzero(placement.worker == worker)[0])
        above = placement.worker[:stage], placement.chunk[:stage]
        path[FORWARD][above] += 1
        path[BACKWARD][above] += 1
        path[TRANSFER][above] += 2 * (placement.worker[:stage] != placement.worker[1 : stage + 1])
        if split:
            path[WEIGHT, worker] = -held[worker]
            path[WEIGHT][above] -= 1
            path[WEIGHT, 0, 0] += 1
    return lengths


def critical_lengths(schedule: Schedule, p: int, m: int, v: int, weights: Cells) -> Lengths:
    """The path that is critical to worker 0 when durations are as the model's FLOP.

    Args:
        schedule: the schedule of the pipeline.
        p: workers.
        m: micro-batches.
        v: chunks per worker.
        weights: FLOP of each chunk.
    """
    from meshwright.schedules.critical_paths import critical_path  # for schedules that are named

    times = Times(
        forward_s=weights,
        backward_s=2 * weights,
        transfer_s=np.full_like(weights, REFERENCE_TRANSFERS[1] * weights.sum() / p),
        weight_s=weights,
        recompute_s=weights,
    )
    return critical_path(schedule.table(p, m, v), times, 0)[None].astype(float)


def longest_of(lengths: Lengths, *weights: Cells) -> list[int]:
    """The numbers of the paths that are longest for a few typical durations.

    Args:
        lengths: any.
        weights: what each chunk may take, such as its FLOP or its layers.
    """
    typical = typical_durations(lengths.shape[1], *weights)
    return sorted({*(lengths.reshape(len(lengths), -1) @ typical).argmax(axis=0).tolist()})


def typical_durations(kinds: int, *weights: Cells) -> Float[np.ndarray, "cells typical"]:
    """A few typical durations of all chunks, forwards first.

    Args:
        kinds: the number of kinds of durations, in the order of `Lengths`.
        weights: what each chunk may take.
    """
    typical = np.zeros((len(weights), len(REFERENCE_TRANSFERS), len(DURATIONS), *weights[0].shape))
    for number, one in enumerate(weights):
        typical[number] = DURATIONS[:, None, None] * one
        typical[number, :, TRANSFER] = (REFERENCE_TRANSFERS * (one.sum() / len(one)))[:, None, None]
    return typical[:, :, :kinds].reshape(len(weights) * len(REFERENCE_TRANSFERS), -1).T


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Template:
    """Paths that hold for any order of tasks, as seconds of items: once, and per micro-batch."""

    once: tuple[Float[np.ndarray, "paths items"], ...]
    each: tuple[Float[np.ndarray, "paths items"], ...]
    transfers: Float[np.ndarray, "paths"]

    def forward(self, m: int) -> Float[np.ndarray, "paths items"]:
        """Forward counts of m micro-batches."""
        return self.once[0] + m * self.each[0]

    def backward(self, m: int) -> Float[np.ndarray, "paths items"]:
        """Backward counts of m micro-batches."""
        return self.once[1] + m * self.each[1]

    def weight(self, m: int) -> Float[np.ndarray, "paths items"]:
        """Weight gradients of m micro-batches, part of the backward."""
        return self.once[2] + m * self.each[2]


@dataclass(frozen=True, eq=False, slots=True)
class BoundPaths:
    """Paths of a pipeline for all numbers of micro-batches that share a bound, and the longest of them as items."""

    bound: PathBound
    once: Float[np.ndarray, "paths typical"]
    """Lengths of the paths for typical durations."""
    each: Float[np.ndarray, "paths typical"]
    """Lengths per micro-batch."""
    in_items: dict[tuple[object, ...], list[tuple[np.ndarray, ...]]] = field(default_factory=dict)
    """Some paths under some ways to recompute: once, and per micro-batch."""

    @classmethod
    def of(cls, bound: PathBound, *weights: Cells) -> BoundPaths:
        """The paths of a bound, by what each chunk may weigh."""
        typical = typical_durations(bound.once.shape[1], *weights)
        return cls(bound, *(lengths.reshape(len(lengths), -1) @ typical for lengths in (bound.once, bound.each)))

    def longest(self, m: int) -> tuple[int, ...]:
        """The numbers of the longest paths."""
        return tuple(sorted({*(self.once + m * self.each).argmax(axis=0).tolist()}))

    def items(self, m: int, recomputes: tuple[tuple[str, int], ...], counts: StageCounts) -> tuple[np.ndarray, ...]:
        """The longest paths as forward, backward and weight-gradient seconds of items, and as transfers.

        Args:
            m: micro-batches.
            recomputes: ways to recompute.
            counts: the counts under these.
        """
        key = numbers, recomputes = self.longest(m), recomputes
        if key not in self.in_items:
            self.in_items[key] = [
                (*path_items(lengths[list(numbers)], counts), lengths[list(numbers), 2].sum(axis=(1, 2)))
                for lengths in (self.bound.once, self.bound.each)
            ]
        return tuple(once + m * each for once, each in zip(*self.in_items[key], strict=True))


def path_items(
    lengths: Float[np.ndarray, "paths durations workers chunks"], counts: StageCounts
) -> tuple[Float[np.ndarray, "*shapes paths items"], ...]:
    """Paths as forward, backward and weight-gradient seconds of items.

    Args:
        lengths: forward, backward, transfer, weight gradient and task R by worker and chunk.
        counts: the counts of the shape, or of several.
    """
    paths, durations = lengths.shape[:2]
    items = counts.work.shape[-1]
    forward, backward, weight, again = (
        lengths[:, k].reshape(paths, -1) if k < durations else np.zeros((paths, 1)) for k in (0, 1, 3, 4)
    )
    cells = (*counts.work.shape[:-3], -1, items)
    work = counts.work.reshape(cells)
    if counts.bare is None:
        path_forward, path_backward = forward @ work, backward @ work
        path_weight = weight @ work if weight.any() else np.zeros_like(path_forward)
        if counts.shadow is not None and again.any():
            path_forward = path_forward + lengths[:, 4].sum(axis=2) @ counts.shadow
        return path_forward, path_backward, path_weight
    bare = counts.bare.reshape(cells)
    if not again.any():
        return forward @ work, backward @ work, weight @ work
    return forward @ work, backward @ bare + again @ (work - bare), weight @ work
