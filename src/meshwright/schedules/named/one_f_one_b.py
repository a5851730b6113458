"""1F1B: one forward, one backward in turn, after a warm-up that fills the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.base import Schedule
from meshwright.schedules.bounds import PathBound, window_lengths
from meshwright.schedules.parameters import choice
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.shapes import Float, Int


def alternating_table(
    placement: Placement,
    micro_batches: int,
    warmup: Int[np.ndarray, " workers"],
    forward: tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]],
    backward: tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]],
) -> ScheduleTable:
    """Every worker runs `warmup` forwards, then one forward and one backward in turn, then the backwards that are left.

    Args:
        placement: a loop of virtual stages.
        micro_batches: the number of micro-batches of the step.
        warmup: forwards before the first pair, at most all.
        forward: chunk and micro-batch of the forwards in order, the same on every worker.
        backward: chunk and micro-batch of the backwards in order.
    """
    p, count = placement.p, len(forward[0])
    index = np.arange(count)
    first = warmup[:, None]
    forward_at = np.where(index < first, index, 2 * index - first)
    backward_at = np.where(index < count - first, first + 2 * index + 1, count + index)
    kind = np.empty((p, 2 * count), np.int32)
    chunk, micro_batch = np.empty_like(kind), np.empty_like(kind)
    for what, at, (chunks, units) in ((Kind.F, forward_at, forward), (Kind.B, backward_at, backward)):
        np.put_along_axis(kind, at, int(what), axis=1)
        np.put_along_axis(chunk, at, chunks[None, :], axis=1)
        np.put_along_axis(micro_batch, at, units[None, :], axis=1)
    worker = np.repeat(np.arange(p, dtype=np.int32), 2 * count)
    return ScheduleTable(
        placement=placement,
        micro_batches=(micro_batches,),
        worker=worker,
        kind=kind.reshape(-1),
        stage=chunk.reshape(-1) * p + worker,
        micro_batch=micro_batch.reshape(-1),
    )


class OneFOneBOrder(Schedule):
    """What the schedules with the order of 1F1B share.

    Worker r warms up with p - 1 - r forwards, then alternates one forward and one backward. Time (m + p - 1)*(f + b)
    with equal stages, as GPipe, but worker r keeps activations of p - r micro-batches only.
    """

    only_chunks = 1
    repeats = True
    steady_alive = True

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + p - 1) * (forward_s + backward_s)."""
        return (m + p - 1) * (forward_s + backward_s)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        order = np.zeros(m, np.int32), np.arange(m, dtype=np.int32)
        warmup = np.minimum(p - 1 - np.arange(p), m)
        return alternating_table(self.placement(p), m, warmup, order, order)

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        return tuple(np.array([[min(m, p - worker)]]) for worker in range(p))

    def _bound_for(self, p: int, m: int, v: int) -> int:
        return min(m, p + 2)

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        """Three paths around each worker's own work, and zigzags through groups of neighbours.

        Own: fill to worker s, all its work, drain. Front: micro-batch 0 to the last worker and back to s first. Back:
        micro-batch m - 1 to the last worker and back at the end. Zigzag through workers a..e: the backward of
        micro-batch i runs up from e to a, where it is followed by the forward of i + p - a, which runs down to e, where
        the backward of i + L follows (L = e - a + 1): L micro-batches for one task pair of each of the L workers and
        2 (L - 1) transfers, so 1F1B pays up to two transfers per micro-batch. A remainder of less than L micro-batches
        is averaged over the arcs of the group.
        """
        found = zip(_around_own(p, m), _zigzags(p, m), strict=True)
        turn, once, each = (np.concatenate(parts) for parts in found)
        return PathBound(once=once[..., None], each=each[..., None], turn=turn)


_Counts = tuple[
    Int[np.ndarray, "paths"], Float[np.ndarray, "paths durations workers"], Float[np.ndarray, "paths durations workers"]
]
"""Where each path turns, and its counts once and per micro-batch; of up to p micro-batches all are counted once."""


def _around_own(p: int, m: int) -> _Counts:
    """The three paths around each worker's own work: own, front and back."""
    chain, worker = np.arange(p), np.arange(p)[:, None]
    own, above, general = chain == worker, chain < worker, m > p
    whole = 0 if general else m
    # From the first backward to the last forward; warm-up and drain take the others.
    pairs = whole - (p - 1 - worker) if general else np.maximum(whole - (p - 1 - worker), 1)
    once, each = np.zeros((2, p, 3, 3, p))
    once[:, 0, :2] = above[:, None]
    once[:, 0, 2] = 2 * above
    once[:, 1:, :2] = ~own[:, None, None]
    once[:, 1:, 2, :-1] = 2
    for path, (forwards, backwards) in enumerate(((whole, whole), (pairs, whole), (whole, pairs))):
        once[:, path, 0] += own * forwards
        once[:, path, 1] += own * backwards
    each[:, :, :2] = (own * general)[:, None, None]
    turn = np.stack([chain, chain, np.full(p, p - 1)], axis=1)
    return turn.reshape(-1), once.reshape(-1, 3, p), each.reshape(-1, 3, p)


def _zigzags(p: int, m: int) -> _Counts:
    """The zigzags through groups of neighbours that have enough micro-batches for one."""
    groups = ((length, last) for length in window_lengths(p) for last in range(length - 1, p))
    enough = [(length, last) for length, last in groups if m - 1 - p + last >= (length if length > 1 else 0)]
    length, last = np.array(enough, dtype=np.int64).reshape(-1, 2).T[..., None]
    chain, general = np.arange(p), m > p
    inside, behind = (chain > last - length) & (chain <= last), chain >= last
    turns = inside & ~behind
    runs = last - 1 - p if general else m - 1 - p + last
    once, each = np.zeros((2, len(enough), 3, p))
    once[:, :2] = (1 + behind + inside * (runs / length))[:, None]
    once[:, 2, :-1] = (2 + 2 * behind)[:, :-1]
    once[:, 2] += turns * (2 * (runs - 1) / length)
    each[:, :2] = (inside * (general / length))[:, None]
    each[:, 2] = turns * (2 * general / length)
    return np.full(len(enough), p - 1), once, each


@dataclass(frozen=True, kw_only=True)
class OneFOneB(OneFOneBOrder):
    """Worker r warms up with p - 1 - r forwards, then alternates one forward and one backward.

    Time (m + p - 1)*(f + b) with equal stages, as GPipe, but worker r keeps activations of p - r micro-batches only.
    That is DAPPLE's policy PA. With its policy PB worker r keeps min(2*(p - r) - 1, m), so that a forward is on its way
    while a gradient is: for slow links. With free transfers it takes the same time.
    Source: Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models", PPoPP 2021;
    Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (PipeDream-Flush).
    """

    warmup: str = choice(("pa", "pb"), "Warm-up: worker r keeps p - r micro-batches (pa) or 2*(p - r) - 1 (pb).")
    """DAPPLE's policies."""

    name = "1f1b"
    unequal = "alternating"
    searched_by_default = True
    aliases = ("dapple",)
    title = "1F1B: one forward, one backward in turn"
    source = "Fan et al., DAPPLE, PPoPP 2021; Narayanan et al., PipeDream-Flush, ICML 2021"

    @property
    def bound_by_formula(self) -> bool:
        """Whether the formula bounds it: with policy PA; PB is bounded along its table."""
        return self.warmup == "pa"

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        if self.warmup == "pa":
            return super()._table(p, m, v)
        order = np.zeros(m, np.int32), np.arange(m, dtype=np.int32)
        warmup = np.minimum(2 * (p - 1 - np.arange(p)), m)
        return alternating_table(self.placement(p), m, warmup, order, order)

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        if self.warmup == "pa":
            return super()._in_flight(p, m, v)
        return tuple(np.array([[min(m, 2 * (p - worker) - 1)]]) for worker in range(p))

    def _settled(self, p: int, v: int) -> int:
        return p if self.warmup == "pa" else 2 * p

    def _bound_for(self, p: int, m: int, v: int) -> int:
        return super()._bound_for(p, m, v) if self.warmup == "pa" else m

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        return super()._path_bound(p, m, v) if self.warmup == "pa" else Schedule._path_bound(self, p, m, v)
