"""Lower bounds of a schedule's time: lengths of paths through its dependency graph.

Whatever the durations, a step takes at least as long as any chain of tasks in which each waits for the one before. The
length of such a path is linear in the durations, with integer counts (or averages of several paths, also a bound), and
grows by a fixed part with every micro-batch. So one small table of counts bounds any number of candidates at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Bool, Float, Int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PathBound:
    """Paths as counts: bound = max over paths of sum((once + m * each) * seconds).

    Axis 1 of the counts is forward, backward, transfer (critical paths add weight gradient and recomputation); then
    worker and chunk. The transfer of a worker and chunk is the latency between that virtual stage and the next one. To
    bound rows that share few classes of workers, use `by_class`.
    """

    once: Float[np.ndarray, "paths durations workers chunks"]
    """Counts that do not depend on the number of micro-batches."""
    each: Float[np.ndarray, "paths durations workers chunks"]
    """Counts per micro-batch."""
    turn: Int[np.ndarray, " paths"]
    """Worker from which the path ends with the last backwards of chunk 0 down to worker 0."""

    def __post_init__(self) -> None:
        for array in (self.once, self.each, self.turn):
            array.setflags(write=False)

    def end_s(
        self,
        m: int,
        forward_s: Float[np.ndarray, "*#rows workers chunks"],
        backward_s: Float[np.ndarray, "*#rows workers chunks"],
        transfer_s: Float[np.ndarray, "*#rows workers chunks"],
        weight_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
        recompute_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
    ) -> Float[np.ndarray, "*all_rows workers"]:
        """Lower bound of when each worker ends: paths cut where they pass its last backward; worker 0 bounds the step.

        Args:
            m: micro-batches.
            forward_s: seconds by worker and chunk.
            backward_s: seconds of input and weight gradient together, by worker and chunk.
            transfer_s: latency behind each virtual stage, 0 where the next one is on the same worker.
            weight_s: weight gradients, part of `backward_s`; only critical paths of split backwards count them.
            recompute_s: recomputation; only critical paths count it.
        """
        paths, _, p, v = self.once.shape
        lead = np.shape(forward_s)[:-2]
        seconds = np.stack([forward_s, backward_s, transfer_s], axis=-3).reshape(-1, 3 * p * v)
        length_s = seconds @ (self.once + m * self.each).reshape(paths, -1).T
        below_s = np.zeros((len(seconds), p))
        below_s[:, 1:] = np.cumsum((backward_s + transfer_s)[..., :-1, 0].reshape(len(seconds), p - 1), axis=1)
        descending = np.argsort(-self.turn, kind="stable")
        longest_s = np.maximum.accumulate(length_s[:, descending], axis=1)
        passing = np.searchsorted(-self.turn[descending], -np.arange(p), side="right") - 1
        return (longest_s[:, passing] - below_s).reshape(*lead, p)

    def by_class(
        self, classes: Int[np.ndarray, "workers chunks"]
    ) -> tuple[Float[np.ndarray, "paths durations classes"], Float[np.ndarray, "paths durations classes"]]:
        """The counts summed over workers and chunks of equal durations, without the paths that another one covers.

        Args:
            classes: class of each worker and chunk, from 0.

        Returns:
            once and each, for bound = max over paths of sum((once + m * each) * seconds by class).
        """
        member = (classes.reshape(-1)[:, None] == np.arange(classes.max() + 1)).astype(float)
        paths, durations = self.once.shape[:2]
        summed = np.stack([self.once, self.each], axis=1).reshape(paths * 2 * durations, -1) @ member
        distinct = np.unique(np.round(summed.reshape(paths, -1), 12), axis=0)
        kept = distinct[covering(distinct).sum(axis=1) == 1].reshape(-1, 2, durations, member.shape[1])
        return kept[:, 0], kept[:, 1]


def covering(
    vectors: Float[np.ndarray, "vectors entries"] | Int[np.ndarray, "vectors entries"],
) -> Bool[np.ndarray, "vectors vectors"]:
    """Whether each column's vector is at least as large in every entry as each row's, itself included.

    Args:
        vectors: any.
    """
    covers = np.ones((len(vectors), len(vectors)), dtype=bool)
    # Entry by entry: a product of all pairs and entries costs several times as long.
    for entry in vectors.T:
        covers &= entry[None, :] >= entry[:, None]
    return covers


class Paths:
    """Collects paths and makes a `PathBound` of them."""

    def __init__(self, p: int, v: int) -> None:
        self.shape = (2, 3, v, p)
        self.counts: list[np.ndarray] = []
        self.turns: list[int] = []

    def add(self, turn: int) -> tuple[np.ndarray, ...]:
        """A new path without tasks: its counts once (forward, backward, transfer) and each, in the order of the chain.

        Every array has one entry per virtual stage of a loop placement: k*p + r is chunk k of worker r.
        """
        counts = np.zeros(self.shape)
        self.counts.append(counts)
        self.turns.append(turn)
        return tuple(counts.reshape(6, -1))

    def bound(self) -> PathBound:
        """All paths, each once."""
        counts = np.stack(self.counts).swapaxes(-1, -2)
        flat = np.concatenate([counts.reshape(len(counts), -1), np.asarray(self.turns)[:, None]], axis=1)
        first: dict[bytes, int] = {}
        for number, path in enumerate(flat):
            first.setdefault(path.tobytes(), number)
        kept = np.array(list(first.values()))
        return PathBound(
            once=np.ascontiguousarray(counts[kept, 0]),
            each=np.ascontiguousarray(counts[kept, 1]),
            turn=np.asarray(self.turns)[kept],
        )


def window_lengths(p: int) -> Sequence[int]:
    """Lengths of the groups of neighbours that zigzag paths are drawn through: powers of two, and all p workers."""
    return sorted({min(1 << k, p) for k in range(p.bit_length() + 1)})
