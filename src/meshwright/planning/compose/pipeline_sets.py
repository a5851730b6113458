"""Pipelines side by side: micro-batches shared so that all end together, and the step they make.

    T such that  sum over pipelines of  global micro-batch (1 + (T - fill - sync) / period)  =  batch

and then whole micro-batches near those shares, exactly as many sequences as the batch has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, Protocol, TypeVar

import numpy as np

from meshwright.shapes import Int

ROUNDED = 1e-9
"""Share by which an exact share may lie below a whole number and be one."""
REACH = 4
"""Whole micro-batches tried around the exact share of a pipeline."""


class Paced(Protocol):
    """A pipeline as far as others beside it care."""

    @property
    def islands(self) -> frozenset[int]:
        """Groups of the cluster that its stages stand on."""
        ...

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        ...

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """Devices of each stage."""
        ...

    @property
    def stage_islands(self) -> tuple[int, ...]:
        """Group of each stage."""
        ...

    @property
    def stage_of_layer(self) -> Int[np.ndarray, "layers"]:
        """Which stage holds each layer."""
        ...

    @property
    def global_micro_batch(self) -> int:
        """Sequences of a micro-batch over all data ranks."""
        ...

    @property
    def fill_s(self) -> float:
        """Seconds of one micro-batch, forward and backward through all stages."""
        ...

    @property
    def period_s(self) -> float:
        """Seconds between micro-batches."""
        ...

    @property
    def sync_s(self) -> float:
        """Seconds after the last backward."""
        ...

    @property
    def least_micro_batches(self) -> int:
        """Fewest micro-batches of a step."""
        ...

    def step_s(self, micro_batches: float) -> float:
        """Seconds of so many micro-batches and of what follows them."""
        ...

    def holds(self, micro_batches: int) -> bool:
        """Whether its stages have room for what so many micro-batches keep in flight."""
        ...


Piece = TypeVar("Piece")
AnyPaced = TypeVar("AnyPaced", bound=Paced)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineSet(Generic[AnyPaced]):
    """Pipelines in data parallel."""

    pipelines: tuple[AnyPaced, ...]
    shares: tuple[float, ...]
    """Micro-batches of each; whole numbers once `with_whole_micro_batches` made them so."""
    step_s: float

    @property
    def islands(self) -> frozenset[int]:
        """Islands of all pipelines."""
        return frozenset().union(*(pipeline.islands for pipeline in self.pipelines))


def blended(pipelines: Sequence[AnyPaced], global_batch: int, sync_s: float) -> PipelineSet[AnyPaced]:
    """A pipeline set with exact shares, fractions of micro-batches allowed.

    Args:
        pipelines: the pipelines on different devices.
        global_batch: sequences per step.
        sync_s: what summing gradients between them takes.
    """
    left, free, shares = float(global_batch), list(range(len(pipelines))), [0.0] * len(pipelines)
    rates = [one.global_micro_batch / one.period_s for one in pipelines]
    before = [one.fill_s + one.sync_s - one.period_s for one in pipelines]
    least = [one.least_micro_batches for one in pipelines]
    while free:
        end_s = (left + sum(rates[i] * before[i] for i in free)) / sum(rates[i] for i in free)
        for i in free:
            shares[i] = (end_s - before[i]) / pipelines[i].period_s
        # One too slow for its fewest micro-batches does those, and the others the rest.
        slow = [i for i in free if shares[i] < least[i] * (1 - ROUNDED)]
        if not slow:
            break
        for i in slow:
            shares[i] = float(least[i])
            left -= shares[i] * pipelines[i].global_micro_batch
        free = [i for i in free if i not in slow]
    if left < 0 or not free:
        return PipelineSet(pipelines=tuple(pipelines), shares=tuple(shares), step_s=math.inf)
    ends_s = [pipeline.step_s(share) for pipeline, share in zip(pipelines, shares, strict=True)]
    return PipelineSet(pipelines=tuple(pipelines), shares=tuple(shares), step_s=max(ends_s) + sync_s)


def with_whole_micro_batches(one_set: PipelineSet[AnyPaced], global_batch: int) -> PipelineSet[AnyPaced] | None:
    """The set with whole micro-batches, as many sequences as the batch; None where their sizes or memory do not."""
    exact_s = max(m.step_s(share) for m, share in zip(one_set.pipelines, one_set.shares, strict=True))
    sync_s = one_set.step_s - exact_s
    pipelines, shares = one_set.pipelines, one_set.shares
    *order, last = sorted(range(len(pipelines)), key=lambda i: -pipelines[i].global_micro_batch)
    # Micro-batches near the share of each, their sequences and when they end: looked up below, for many sets.
    near = [
        [
            (count, count * pipelines[i].global_micro_batch, pipelines[i].step_s(count))
            for count in range(math.floor(shares[i]) - REACH + 1, math.ceil(shares[i]) + REACH)
            if count >= pipelines[i].least_micro_batches and pipelines[i].holds(count)
        ]
        for i in order
    ]
    last_holds = cache(pipelines[last].holds)
    best_s, best = math.inf, list[float]()
    for chosen in itertools.product(*near):
        step_s = max((end_s for _, _, end_s in chosen), default=0.0)
        if step_s >= best_s:
            continue
        left = global_batch - sum(sequences for _, sequences, _ in chosen)
        count, rest = divmod(left, pipelines[last].global_micro_batch)
        if rest or count < pipelines[last].least_micro_batches:
            continue
        step_s = max(step_s, pipelines[last].step_s(count))
        if step_s < best_s and last_holds(count):
            counts = dict(zip((*order, last), (*(one for one, _, _ in chosen), count), strict=True))
            best_s, best = step_s, [counts[i] for i in range(len(pipelines))]
    if not best:
        return None
    return PipelineSet(pipelines=pipelines, shares=tuple(best), step_s=best_s + sync_s)


def gradient_sum_s(
    pipelines: Sequence[AnyPaced],
    gradient_bytes: float,
    bandwidth: Callable[[int, int], float],
    *,
    anywhere: bool = False,
) -> float:
    """Gradients summed between pipelines, layer by layer, by the narrowest stage that holds it over the slowest link.

        2 (D - 1) / D x max over stages of  sum over its layers of  bytes / L / (narrowest x slowest)

    Args:
        pipelines: the pipelines on different devices.
        gradient_bytes: the gradient bytes of the whole model.
        bandwidth: bytes per second and device between two islands.
        anywhere: whether the sum goes over the slowest link between islands of two pipelines, whoever holds the layer.
    """
    if len(pipelines) < 2:
        return 0.0
    count = len(pipelines)
    groups = sorted(frozenset().union(*(one.islands for one in pipelines)))
    links = np.array([[bandwidth(a, b) for b in groups] for a in groups])
    held = [one.stage_of_layer for one in pipelines]
    devices = [np.array(one.stage_devices)[place] for one, place in zip(pipelines, held, strict=True)]
    where = [np.searchsorted(groups, one.stage_islands)[place] for one, place in zip(pipelines, held, strict=True)]
    slowest = np.min([links[one, other] for one, other in itertools.combinations(where, 2)], axis=0)
    if anywhere:
        own = [np.searchsorted(groups, sorted(one.islands)) for one in pipelines]
        slowest = min(float(links[np.ix_(one, other)].min()) for one, other in itertools.combinations(own, 2))
    layer_s = 1.0 / (np.min(devices, axis=0) * slowest)
    most = max(float(np.bincount(place, layer_s).max()) for place in held) / len(layer_s)
    return 2 * (count - 1) / count * gradient_bytes * most


def partitions(parts: tuple[Piece, ...]) -> Iterator[list[tuple[Piece, ...]]]:
    """Every way to put some of the parts into groups, at least one of them."""

    def grow(index: int, blocks: list[tuple[Piece, ...]]) -> Iterator[list[tuple[Piece, ...]]]:
        if index == len(parts):
            if blocks:
                yield blocks
            return
        yield from grow(index + 1, blocks)
        for place, block in enumerate(blocks):
            yield from grow(index + 1, [*blocks[:place], (*block, parts[index]), *blocks[place + 1 :]])
        yield from grow(index + 1, [*blocks, (parts[index],)])

    return grow(0, [])
