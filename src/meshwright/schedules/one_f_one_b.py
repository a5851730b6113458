"""1F1B: one forward, one backward in turn, after a warm-up that fills the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.alternating import alternating_table
from meshwright.schedules.base import Schedule
from meshwright.schedules.bounds import PathBound, Paths, window_lengths
from meshwright.schedules.parameters import choice
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Int


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
        paths = Paths(p, v)
        chain = np.arange(p)
        general = m > p
        for s in range(p):
            behind = chain > s
            # Pairs on worker s from its first backward to its last forward; warm-up and drain take the others.
            pairs = (m - (p - 1 - s), 0) if not general else (-(p - 1 - s), 1)
            if not general:
                pairs = (max(pairs[0], 1), 0)
            whole = (0, 1) if general else (m, 0)
            for turn, forwards, backwards, far in (
                (s, whole, whole, False), (s, pairs, whole, True), (p - 1, whole, pairs, True)
            ):  # fmt: skip
                f, b, t, each_f, each_b, _ = paths.add(turn)
                reached = chain < s if not far else (chain < s) | behind
                f[reached] = b[reached] = 1
                (f[s], each_f[s]), (b[s], each_b[s]) = forwards, backwards
                t[: (p - 1 if far else s)] = 2
        for length in window_lengths(p):
            for e in range(length - 1, p):
                a = e - length + 1
                free = m - 1 - p + e
                if free < (length if length > 1 else 0):
                    continue
                f, b, t, each_f, each_b, each_t = paths.add(p - 1)
                once, each = (free, 0) if not general else (e - 1 - p, 1)
                f[:] = b[:] = 1 + (chain >= e)
                t[: p - 1] = 2 + 2 * (chain[:-1] >= e)
                f[a : e + 1] += once / length
                b[a : e + 1] += once / length
                each_f[a : e + 1] = each_b[a : e + 1] = each / length
                t[a:e] += 2 * (once - 1) / length
                each_t[a:e] = 2 * each / length
        return paths.bound()


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
        """With policy PA; PB is bounded along its table."""
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
