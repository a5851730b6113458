"""Micro-batches of unequal length: their samples, the replica that takes each, their order, and their time.

Source: Jiang et al., "DynaPipe: Optimizing Multi-task Training through Dynamic Pipelines", EuroSys 2024; Karmarkar and
Karp, "The Differencing Method of Set Partitioning", 1982.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Float, Int

MOST_PEAKS = 64
"""Longest micro-batches that the packing tries; more distinct ones are thinned to this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Consecutive samples as micro-batches."""

    bounds: tuple[int, ...]
    """First sample of each micro-batch, and the number of samples."""
    seconds: tuple[float, ...]
    """Of each micro-batch."""
    objective_s: float
    """(p - 1) * longest / v + sum / replicas."""


def sample_order(lengths: Int[np.ndarray, "samples parts"]) -> tuple[int, ...]:
    """Samples in an order in which neighbours are of like length, so that those packed together need little padding.

    One length per sample: rising. Several, such as encoder and decoder: a short way through them, the sum of
    |difference| over all parts; a sample goes next to its nearest, then stretches are turned round while that shortens
    the way (2-opt). Samples of equal lengths stay together, and the way is never longer than that of the sorted ones.

    Args:
        lengths: tokens of each sample.
    """
    places, which = np.unique(lengths, axis=0, return_inverse=True)
    apart = np.abs(places[:, None, :] - places[None, :, :]).sum(axis=-1)
    way = np.arange(len(places))
    if lengths.shape[1] > 1 and len(places) > 2:
        way = min((_shortened_way(apart, start) for start in (way, _nearest_way(apart))), key=lambda w: _way(apart, w))
    rank = np.empty(len(places), int)
    rank[way] = np.arange(len(places))
    return tuple(np.argsort(rank[which.reshape(-1)], kind="stable").tolist())


def _way(apart: Int[np.ndarray, "places places"], way: Int[np.ndarray, " places"]) -> int:
    return int(apart[way[:-1], way[1:]].sum())


def _nearest_way(apart: Int[np.ndarray, "places places"]) -> Int[np.ndarray, " places"]:
    """From the first place always on to the nearest one left."""
    left = np.ones(len(apart), bool)
    way = [0]
    for _ in range(len(apart) - 1):
        left[way[-1]] = False
        way.append(int(np.argmin(np.where(left, apart[way[-1]], apart.max() + 1))))
    return np.array(way)


def _shortened_way(
    apart: Int[np.ndarray, "places places"], way: Int[np.ndarray, " places"]
) -> Int[np.ndarray, " places"]:
    """The way with stretches turned round as long as that shortens it, the best one at a time."""
    way = way.copy()
    # An edge to an end beyond the way costs nothing, as the way is open.
    padded = np.pad(apart, (0, 1))
    while True:
        before = np.append(len(apart), way[:-1])
        after = np.append(way[1:], len(apart))
        old = padded[before, way][:, None] + padded[way, after][None, :]
        gain = np.triu(old - padded[before[:, None], way[None, :]] - padded[way[:, None], after[None, :]], 1)
        i, k = divmod(int(np.argmax(gain)), len(way))
        if gain[i, k] <= 0:
            return way
        way[i : k + 1] = way[i : k + 1][::-1]


def pack(samples: int, seconds_of: Callable[[int, int], float], p: int, v: int = 1, replicas: int = 1) -> Packing:
    """Cut an ordered row of samples into micro-batches so that fill and work of the pipeline together are short.

    Minimises (p - 1) * longest / v + sum / replicas: for every longest time tried, the shortest sum by
    best(n) = min over i of best(i) + seconds(i, n).

    Args:
        samples: their number, ordered as `sample_order` does.
        seconds_of: time on one worker of a micro-batch of samples i to n - 1; infinite where it does not fit.
        p: workers.
        v: chunks per worker.
        replicas: of the pipeline.

    Raises:
        InputError: no sample, or one that does not fit alone.
    """
    cost = np.full((samples + 1, samples + 1), np.inf)
    for i in range(samples):
        for n in range(i + 1, samples + 1):
            cost[i, n] = seconds_of(i, n)
    alone = cost[np.arange(samples), np.arange(1, samples + 1)]
    if not samples or not np.isfinite(alone).all():
        what = "no samples" if not samples else f"sample {int(np.argmax(~np.isfinite(alone)))} does not fit alone"
        why = "every sample runs in a micro-batch"
        raise InputError(Problem(what=what, why=why, fix="leave it out or allow more memory", field="samples"))
    peaks = np.unique(cost[np.isfinite(cost)])
    peaks = peaks[peaks >= alone.max()]
    if len(peaks) > MOST_PEAKS:
        peaks = peaks[np.unique(np.linspace(0, len(peaks) - 1, MOST_PEAKS).astype(int))]
    found: Packing | None = None
    for peak in peaks.tolist():
        allowed = np.where(cost <= peak, cost, np.inf)
        best, cut = np.full(samples + 1, np.inf), np.zeros(samples + 1, int)
        best[0] = 0.0
        for n in range(1, samples + 1):
            sums = best[:n] + allowed[:n, n]
            cut[n] = int(np.argmin(sums))
            best[n] = sums[cut[n]]
        bounds = [samples]
        while bounds[-1]:
            bounds.append(int(cut[bounds[-1]]))
        bounds.reverse()
        seconds = tuple(float(cost[i, n]) for i, n in pairwise(bounds))
        objective_s = (p - 1) * max(seconds) / v + sum(seconds) / replicas
        if found is None or objective_s < found.objective_s:
            found = Packing(bounds=tuple(bounds), seconds=seconds, objective_s=objective_s)
    assert found is not None
    return found


def balance(seconds: Sequence[float], replicas: int) -> tuple[tuple[int, ...], ...]:
    """Micro-batches of each replica with nearly equal sums, by the differencing method.

    The two partial divisions that differ most are joined, the heaviest part of one with the lightest of the other,
    until one is left.

    Args:
        seconds: of each micro-batch.
        replicas: of the pipeline.
    """
    parts: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for k, own in enumerate(seconds):
        heapq.heappush(parts, (-own, k, [(0.0, []) for _ in range(replicas - 1)] + [(own, [k])]))
    tie = len(seconds)
    while len(parts) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(parts), heapq.heappop(parts)
        joined = [(a + b, x + y) for (a, x), (b, y) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: part[0])
        heapq.heappush(parts, (joined[0][0] - joined[-1][0], tie, joined))
        tie += 1
    if not parts:
        return ((),) * replicas
    return tuple(tuple(sorted(members)) for _, members in reversed(parts[0][2]))


def uneven_makespan_s(
    table: ScheduleTable,
    forward_s: Float[np.ndarray, "stages micro_batches"],
    backward_s: Float[np.ndarray, "stages micro_batches"],
) -> float:
    """Time of a table of forwards and whole backwards whose micro-batches take unequal times; transfers are free.

    Args:
        table: one chain, without fused tasks.
        forward_s: by virtual stage and micro-batch.
        backward_s: likewise.
    """
    own = np.where(
        table.kind == Kind.F, forward_s[table.stage, table.micro_batch], backward_s[table.stage, table.micro_batch]
    ).tolist()
    ends = [0.0] * (table.tasks + 1)
    heads = set(table.first.tolist())
    needs = table.needs.tolist()
    for task in np.argsort(table.level, kind="stable").tolist():
        before = -1 if task in heads else task - 1
        ends[task] = max(ends[before], ends[needs[task][0]], ends[needs[task][1]]) + own[task]
    return max(ends)


def ordered(
    seconds: Sequence[float], makespan_s: Callable[[tuple[int, ...]], float], groups: int = 3
) -> tuple[int, ...]:
    """Micro-batches in the order of groups of like times that takes least time.

    The groups are parted at the largest gaps between the times; all orders of the groups are tried.

    Args:
        seconds: of each micro-batch.
        makespan_s: of an order, as `uneven_makespan_s` finds it.
        groups: their number at most.
    """
    rising = sorted(range(len(seconds)), key=lambda k: (seconds[k], k))
    gaps = sorted(range(1, len(rising)), key=lambda at: seconds[rising[at - 1]] - seconds[rising[at]])
    cuts = [0, *sorted(gaps[: groups - 1]), len(rising)]
    parts = [rising[low:high] for low, high in pairwise(cuts)]
    options = [tuple(k for part in order for k in part) for order in permutations(parts)]
    return min(options, key=makespan_s)
