"""What a pipeline trains by a time when its last micro-batches may be smaller than the others.

    T(n) = fill + floor(n / b) slowest + rest(n mod b)
    rest(r) = min over smaller micro-batches s of   slowest(s) if s >= r,  else  slowest(s) + rest(r - s)

An upper bound of the flow shop of unequal micro-batches, which Sailor's (m - 1) max + sum is where all are equal: on
every path through stages and micro-batches each stage but the slowest is the second of its micro-batch at most once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_SLACK = 1e-9
"""Relative rounding error of a sum of layer times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rests:
    """Seconds of a rest of the batch on one pipeline, for each number of sequences below its micro-batch."""

    micro_batch: int
    slowest_s: float
    fill_s: float
    seconds: tuple[float, ...]
    """Seconds of a rest of 0, 1, ... sequences."""
    first: tuple[int, ...]
    """Largest micro-batch of each rest."""
    smallest: int
    """Sequences of the smallest micro-batch."""
    ahead: float
    """Most sequences by which a rest is ahead of full micro-batches."""
    most_per_s: float
    """Sequences per second of the best mix of micro-batches."""

    def by(self, end_s: float) -> tuple[int, float]:
        """Sequences done by a time, and seconds after it until one more would be."""
        left_s = end_s - self.fill_s
        if left_s < 0:
            return 0, min(self.seconds[1:2] or (self.slowest_s,)) - left_s
        full = math.floor(left_s / self.slowest_s + _SLACK)
        left_s -= full * self.slowest_s
        rest = bisect_right(self.seconds, left_s + _SLACK * self.slowest_s) - 1
        following_s = self.seconds[rest + 1] if rest + 1 < len(self.seconds) else self.slowest_s
        return full * self.micro_batch + rest, max(following_s - left_s, 0.0)

    def time_s(self, sequences: int) -> float:
        """Seconds until so many sequences are done."""
        full, rest = divmod(sequences, self.micro_batch)
        return self.fill_s + full * self.slowest_s + self.seconds[rest] if sequences else 0.0

    def sizes(self, sequences: int) -> tuple[int, ...]:
        """Sequences of each micro-batch, largest first; the last may be part-full."""
        full, rest = divmod(sequences, self.micro_batch)
        sizes = [self.micro_batch] * full
        while rest:
            sizes.append(self.first[rest])
            rest = max(0, rest - self.first[rest])
        return tuple(sizes)


def rests(micro_batch: int, slowest_s: float, fill_s: float, smaller: Sequence[tuple[int, float]]) -> Rests:
    """The table of a pipeline.

    Args:
        micro_batch: sequences.
        slowest_s: seconds of the slowest stage.
        fill_s: seconds of the other stages.
        smaller: micro-batches that can end the batch, and seconds of their slowest stage.
    """
    sizes = sorted([*smaller, (micro_batch, slowest_s)], reverse=True)
    seconds, first = [0.0], [0]
    for rest in range(1, micro_batch):
        options = [(each_s + seconds[max(0, rest - size)], size) for size, each_s in sizes]
        best_s, size = min(options, key=lambda option: (option[0], -option[1]))
        seconds.append(best_s)
        first.append(size)
    return Rests(
        micro_batch=micro_batch,
        slowest_s=slowest_s,
        fill_s=fill_s,
        seconds=tuple(seconds),
        first=tuple(first),
        smallest=sizes[-1][0],
        most_per_s=max(size / each_s for size, each_s in sizes),
        ahead=max(rest - micro_batch * each_s / slowest_s for rest, each_s in enumerate(seconds)),
    )
