"""Interleaved 1F1B: several chunks per worker, micro-batches in groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.bounds import PathBound
from meshwright.schedules.in_flight import largest_vectors
from meshwright.schedules.named.one_f_one_b import alternating_table
from meshwright.schedules.parameters import whole
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Float, Int


@dataclass(frozen=True, kw_only=True)
class Interleaved(Schedule):
    """Megatron's interleaving: each worker holds v chunks; groups of g micro-batches pass chunk after chunk.

    Worker r warms up with 2*(p - 1 - r) + (v - 1)*g forwards. Time m*(f + b) + (p - 1)*(f + b)/v with equal stages and
    g = p, f and b per full worker share. Fewer micro-batches than workers, as one group, wait (p - m)*(f + b)/v at each
    turn to the next chunk.
    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    SC 2021.
    """

    group: int | None = whole(None, "Micro-batches per group, p or more, or all. [default: p]")
    """The last group may be shorter, but not shorter than p; fewer micro-batches than workers run as one group."""

    name = "interleaved"
    searched_by_default = True
    steady_alive = True
    title = "interleaved 1F1B (Megatron): several chunks per worker"
    source = "Narayanan et al., Megatron-LM, SC 2021"
    traffic = "v times the boundaries of one chunk per worker, with a wrap from the last worker to the first"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + (p - 1 + (v - 1)*max(p - m, 0)) / v) * (forward_s + backward_s), for groups of p, or of m < p."""
        return (m + (p - 1 + (v - 1) * max(p - m, 0)) / v) * (forward_s + backward_s)

    @property
    def bound_by_formula(self) -> bool:
        """Bound and activations are closed forms."""
        return True

    def period(self, p: int, v: int) -> int | None:
        """Each group repeats the one before."""
        return self.group or p

    def last_passes(self, p: int, m: int, v: int) -> float:
        """(1 + (v - 1) g) / v: behind the last backward of one chunk, g micro-batches pass each of the others."""
        return (1 + (v - 1) * min(self.group or p, m)) / v

    def unpaired(self, p: int, m: int, v: int) -> int | None:
        """(p - 1) + (v - 1) g + 1: the way to the last worker, its warm-up, and one forward more for the first pair."""
        return min(p + (v - 1) * (self.group or p), m * v)

    def settled(self, p: int, m: int) -> Interleaved:
        """Groups of the fewest micro-batches, p or more, that leave no short one over.

        Args:
            p: workers.
            m: micro-batches per step; fewer than p are one group.
        """
        if self.group is not None or m <= p or not m % p > 0:
            return self
        return replace(self, group=next(g for g in range(p + 1, m + 1) if not 0 < m % g < p))

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        g = self.group or p
        found = []
        if p < 2:
            why = "chunks shorten the bubble between workers, so there must be two"
            found.append(Problem(what=f"{self.name}: p = {p}", why=why, fix="p = 2, or schedule 1f1b", field="p"))
        if v < 2:
            why = "interleaving needs two chunks or more"
            found.append(Problem(what=f"{self.name}: v = {v}", why=why, fix="v = 2, or schedule 1f1b", field="v"))
        if g < p and g != m:
            why = "a group of fewer micro-batches than workers leaves the pipeline empty between its chunks"
            what = f"{self.name}: group = {g} with p = {p}"
            found.append(Problem(what=what, why=why, fix=f"group = {min(p, m)}", field="group"))
        elif 0 < m % g < p:
            near = sorted({n for n in (m - m % g, m - m % g + p, m - m % g + g) if n >= p}, key=lambda n: abs(n - m))
            fix = f"m = {' or '.join(str(n) for n in sorted(near[:2]))}"
            if m > p:
                fix += f", or group = {next(n for n in range(g + 1, m + 1) if not 0 < m % n < p)}"
            else:
                fix += f", or group = {m}, all of them"
            what = f"{self.name}: m = {m} micro-batches in groups of {g}"
            rest = "1 micro-batch" if m % g == 1 else f"{m % g} micro-batches"
            why = f"the last group has {rest}; it must have p = {p} at least, or be empty"
            found.append(Problem(what=what, why=why, fix=fix, field="m"))
        return found

    def _order(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]]:
        """Chunk and micro-batch of the forwards: group after group, in it chunk after chunk, in it each micro-batch."""
        g = self.group or p
        full = m - m % g
        groups = np.arange(full, dtype=np.int32).reshape(-1, 1, g)
        units = np.broadcast_to(groups, (len(groups), v, g)).reshape(-1)
        chunks = np.tile(np.repeat(np.arange(v, dtype=np.int32), g), len(groups))
        if full == m:
            return chunks, units
        rest = np.arange(full, m, dtype=np.int32)
        return (
            np.concatenate([chunks, np.repeat(np.arange(v, dtype=np.int32), len(rest))]),
            np.concatenate([units, np.tile(rest, v)]),
        )

    def _before(self, p: int, m: int, v: int) -> Int[np.ndarray, "forwards_and_1 chunks"]:
        """Forwards of each chunk before each forward, and all of them."""
        chunks, _ = self._order(p, m, v)
        before = np.zeros((m * v + 1, v), np.int64)
        np.cumsum(chunks[:, None] == np.arange(v), axis=0, out=before[1:])
        return before

    def _warmup(self, p: int, m: int, v: int) -> Int[np.ndarray, " workers"]:
        return np.minimum(2 * (p - 1 - np.arange(p)) + (v - 1) * (self.group or p), m * v)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        chunks, units = self._order(p, m, v)
        backward = v - 1 - chunks, units
        return alternating_table(self.placement(p, v), m, self._warmup(p, m, v), (chunks, units), backward)

    def _bound_for(self, p: int, m: int, v: int) -> int:
        g = self.group or p
        return m if m % g else min(m, 2 * g)

    def _in_flight_for(self, p: int, m: int, v: int) -> int:
        g = self.group or p
        return min(m, 3 * g + m % g)

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        """Chunks of the first w + 1 + k forwards less those of the first k backwards, for w warm-up forwards and any k.

        Backwards visit the chunks of the forwards in reverse, so both follow one count; whole groups repeat it.
        """
        forward = self._before(p, m, v)
        backward = forward[:, ::-1]
        g = self.group or p
        period = m * v if m % g else g * v
        found = []
        for warmup in self._warmup(p, m, v).tolist():
            moments = max(1, min(m * v - warmup, period))
            first = min(warmup + 1, m * v)
            found.append(largest_vectors(forward[first : first + moments] - backward[:moments]))
        return tuple(found)

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        """All work of one worker, reached in one of three ways and left in one of three.

        Reached: micro-batch 0 arrives at its first chunk; or runs through all chunks to the worker's last one; or to
        the end of the chain and back, so that the worker goes on with its first backward. Left likewise, backwards in
        time.
        The longer ways replace own tasks of the warm-up or drain by as many of other workers, with their transfers.
        """
        g = self.group or p
        if g < p:
            # Searches never ask for it, and load this module alone.
            from meshwright.schedules.critical_paths import generic_path_bound

            return generic_path_bound(self.table(p, m, v))
        linear = not m % g and m >= 2 * g
        before = self._before(p, m, v)
        warmup = self._warmup(p, m, v)
        skipped = before[np.minimum(warmup + 1, m * v)]
        undone = (before[-1] - before[np.maximum(m * v - warmup - 1, 0)])[:, ::-1]
        stages, worker = np.arange(p * v), np.arange(p)[:, None]
        own = (stages % p == worker).astype(float)
        last = (v - 1) * p + worker
        behind, inner = (stages > last).astype(float), (stages < p * v - 1).astype(float)

        def ways(left_out: Int[np.ndarray, "workers chunks"], group: int) -> Float[np.ndarray, "workers ways kinds s"]:
            """Tasks on the way there, on the way back, and transfers: own, through the chain, to its end and back."""
            own_way, chain = (stages < worker).astype(float), (stages < last).astype(float)
            nothing = np.zeros_like(own)
            return np.stack(
                [
                    np.stack([own_way, nothing, own_way], axis=1),
                    np.stack([chain - group * own * (stages < (v - 1) * p), nothing, chain], axis=1),
                    np.stack([1 - own * left_out[:, stages // p], behind, inner + (stages >= last) * inner], axis=1),
                ],
                axis=1,
            )

        fills, drains = ways(skipped, min(g, m)), ways(undone, m % g or g)[:, :, [1, 0, 2]]
        counts = np.zeros((p, 3, 3, 2, 3, p * v))
        counts[:, :, :, 0] = fills[:, :, None] + drains[:, None]
        counts[:, :, :, int(linear), :2] += own[:, None, None, None] * (1 if linear else m)
        turns = np.broadcast_to(np.where(np.arange(3) == 0, worker, p - 1)[:, None], (p, 3, 3))
        able = np.ones((p, 3, 3), dtype=bool)
        able[:, 2, 2] = warmup + 1 < m * v
        once, each = np.moveaxis(counts[able].reshape(-1, 2, 3, v, p).swapaxes(-1, -2), 1, 0)
        return PathBound(once=np.ascontiguousarray(once), each=np.ascontiguousarray(each), turn=turns[able])


def smallest_group(p: int, m: int) -> int:
    """Micro-batches of a group: the fewest, p or more, with which the last group is whole or has p; p without any.

    Args:
        p: workers.
        m: micro-batches per step.
    """
    return next((group for group in range(p, m + 1) if not 0 < m % group < p), p)
