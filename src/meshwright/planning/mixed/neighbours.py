"""Plans next to a pipeline set: a layer more or less of a stage, micro-batches that one pipeline does for another.

Closed forms choose the layers of stages and the shares of the batch; what they leave out is a layer or a micro-batch's
worth where there are few of both. They fill every chunk of an interleaved pipeline to one pace, although what a stage
computes in all its chunks decides: a stage may hold 3 + 2 layers where its neighbours hold 7 + 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.mixed.source import PricedPlan
from meshwright.shapes import Float
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan

NEAR, NEAR_CHUNKED = 3, 8
"""Plans of a small cluster whose neighbours are priced, of all and of interleaved pipelines: layers moved in one chunk
of several gain more, so that the best of these neighbours may be of one that is not among the quickest three."""
NEAR_ENOUGH = 1.05
"""Times the best step that those of interleaved pipelines take at most: neighbours of drawn plans saved up to 4%."""
MOST_PRICED = 48
"""Neighbours priced of one pipeline set."""
GAIN = 1e-4
"""Share of a step that a neighbour must save."""
MOST_MOVED = 14
"""Layers moved to even out a pipeline."""
NORM = 16
"""Order of the norm over the stages' seconds, in place of their maximum, which the first of several slowest stages does
not lower."""
UNEVEN_CHUNKS = 0.03
"""What the slowest chunk of each pass counts beside the slowest stage (2026-11: 14 drawn questions, 0.03 to 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Plans next to those that were found, priced in full."""

    cluster: ClusterSpec
    pricer: PlanPricer
    priced: Callable[[ExecutionPlan], PricedPlan | None]
    """Prices a plan in full; None where it does not fit."""
    sets: dict[ExecutionPlan, PipelineSet[SplitPipeline]]
    """What plans were made of; those found here are added."""
    mix: Float[np.ndarray, "kinds"]
    """Share of each layer kind in the model."""
    ahead: int
    """Layers of towers, which no first stage gives away."""

    def nearest(self, found: Sequence[PricedPlan]) -> list[PricedPlan]:
        """The best near each of the first few plans by any moves of a layer or of micro-batches.

        And near the first few of interleaved pipelines: layers moved in one chunk of several gain more.
        """
        distinct = {one.plan: one for one in sorted(found, key=lambda one: one.step_time_s) if one.plan in self.sets}
        quickest = [*distinct.values()]
        chunked = [one for one in quickest if all(own.chunks > 1 for own in self.sets[one.plan].pipelines)]
        close = (one for one in chunked[:NEAR_CHUNKED] if one.step_time_s <= NEAR_ENOUGH * quickest[0].step_time_s)
        near = [
            self.priced(
                self._plan(
                    best_near(
                        self.sets[one.plan],
                        one.step_time_s,
                        lambda made: self.pricer.step_time_s(self._plan(made)),
                        lambda made: self.priced(self._plan(made)) is not None,
                        ahead=self.ahead,
                    )
                )
            )
            for one in {one.plan: one for one in (*quickest[:NEAR], *close)}.values()
        ]
        return [one for one in near if one is not None]

    def evener(self, found: Sequence[PricedPlan]) -> list[PricedPlan]:
        """Plans of evener interleaved pipelines, each quicker than the plan it comes from and those before it."""
        quicker: list[PricedPlan] = []
        for one in found:
            best_s = one.step_time_s
            for made in evened(self.sets[one.plan], self.mix, ahead=self.ahead):
                plan = self._plan(made)
                if self.pricer.step_time_s(plan) < best_s and (other := self.priced(plan)) is not None:
                    best_s, self.sets[plan] = other.step_time_s, made
                    quicker.append(other)
        return quicker

    def _plan(self, made: PipelineSet[SplitPipeline]) -> ExecutionPlan:
        return native_plan(made, self.cluster)


def best_near(
    one_set: PipelineSet[SplitPipeline],
    step_s: float,
    price_s: Callable[[PipelineSet[SplitPipeline]], float],
    fits: Callable[[PipelineSet[SplitPipeline]], bool],
    *,
    ahead: int = 0,
) -> PipelineSet[SplitPipeline]:
    """The set that is reached from one by neighbours, each quicker than the one before, and has none itself.

    Args:
        one_set: the pipeline set, with whole micro-batches.
        step_s: the step seconds of it, seconds.
        price_s: seconds of a step of another, whether it fits or not.
        fits: whether the memory holds it; asked of quicker ones alone.
        ahead: layers of towers, which no first stage gives away.
    """
    priced, moved = 0, True
    while moved:
        moved = False
        for other in _neighbours(one_set, ahead):
            if priced == MOST_PRICED:
                return one_set
            priced += 1
            other_s = price_s(other)
            if other_s < step_s * (1 - GAIN) and fits(other):
                step_s, one_set, moved = other_s, other, True
                break
    return one_set


def _neighbours(one_set: PipelineSet[SplitPipeline], ahead: int) -> Iterator[PipelineSet[SplitPipeline]]:
    pipelines, shares = one_set.pipelines, one_set.shares
    for taker, giver in permutations(range(len(pipelines)), 2):
        global_micro_batches = pipelines[taker].global_micro_batch, pipelines[giver].global_micro_batch
        sequences = math.lcm(*global_micro_batches)
        counts = list(shares)
        counts[taker] += sequences // global_micro_batches[0]
        counts[giver] -= sequences // global_micro_batches[1]
        if counts[giver] >= pipelines[giver].least_micro_batches:
            yield replace(one_set, shares=tuple(counts))
    for number, pipeline in enumerate(pipelines):
        for place in range(len(pipeline.layers) - 1):
            for more in (1, -1):
                layers = list(pipeline.layers)
                layers[place] += more
                layers[place + 1] -= more
                if layers[place + 1] >= 1 and layers[place] >= (1 + ahead if place == 0 else 1):
                    changed = replace(pipeline, layers=tuple(layers))
                    yield replace(one_set, pipelines=(*pipelines[:number], changed, *pipelines[number + 1 :]))


def evened(
    one_set: PipelineSet[SplitPipeline], mix: Float[np.ndarray, "kinds"], *, ahead: int = 0
) -> Iterator[PipelineSet[SplitPipeline]]:
    """The set with layers of its interleaved pipelines moved one by one, each time to the evenest stages.

        least  || t_s ||_16 + 0.03 sum over chunks k of || t_ks ||_16 ,  t_s = sum of t_ks of stage s

    Args:
        one_set: the pipeline set, with whole micro-batches.
        mix: share of each layer kind in the model.
        ahead: layers of towers, which no first stage gives away.
    """
    paths = [_evened_layers(one, mix, ahead) if one.chunks > 1 else [one.layers] for one in one_set.pipelines]
    for number in range(1, max(map(len, paths))):
        moved = (
            replace(one, layers=path[min(number, len(path) - 1)])
            for one, path in zip(one_set.pipelines, paths, strict=True)
        )
        yield replace(one_set, pipelines=tuple(moved))


def _evened_layers(one: SplitPipeline, mix: Float[np.ndarray, "kinds"], ahead: int) -> list[tuple[int, ...]]:
    """Layers of every chunk, first as they are, then after each layer moved."""
    count, chunks = len(one.stages), one.chunks
    once_s = np.array([stage.options.once_s[stage.row] for stage in one.stages])
    layer_s, kinds = once_s[:, : len(mix)] @ mix, len(mix)
    edge_s = np.zeros((chunks, count))
    edge_s[0, 0], edge_s[-1, -1] = once_s[0, kinds], once_s[-1, kinds + 1]
    fewest = np.ones(chunks * count, dtype=np.int64)
    fewest[0] += ahead
    layers = np.array(one.layers)
    path, uneven = [one.layers], math.inf
    for _ in range(MOST_MOVED):
        chunk_s = layers.reshape(chunks, count) * layer_s + edge_s
        now, after = _unevenness(chunk_s, layer_s)
        after[layers <= fewest, :] = math.inf
        np.fill_diagonal(after, math.inf)
        giver, taker = np.unravel_index(int(after.argmin()), after.shape)
        if not after[giver, taker] < min(now, uneven) * (1 - GAIN):
            break
        uneven = float(after[giver, taker])
        layers[giver] -= 1
        layers[taker] += 1
        path.append(tuple(layers.tolist()))
    return path


def _unevenness(
    chunk_s: Float[np.ndarray, "chunks stages"], layer_s: Float[np.ndarray, "stages"]
) -> tuple[float, Float[np.ndarray, "givers takers"]]:
    """Unevenness of the chunks as they are, and after a layer of each went to each other one."""
    chunks, count = chunk_s.shape
    scale = chunk_s.sum(axis=0).max()
    held, each = chunk_s / scale, layer_s / scale
    stage, chunk = np.arange(chunks * count) % count, np.arange(chunks * count) // count

    def change(values: Float[np.ndarray, "any"], by: Float[np.ndarray, "any"]) -> Float[np.ndarray, "any"]:
        return np.asarray(np.maximum(values + by, 0.0) ** NORM - values**NORM)

    def norm(powers: Float[np.ndarray, "any"]) -> Float[np.ndarray, "any"]:
        return np.asarray(np.maximum(powers, 0.0) ** (1 / NORM))

    total = held.sum(axis=0)
    less, more = change(total, -each)[stage], change(total, each)[stage]
    apart = stage[:, None] != stage[None, :]
    of_stages = norm((total**NORM).sum() + apart * (less[:, None] + more[None, :]))
    flat = held.ravel()
    less, more = change(flat, -each[stage]), change(flat, each[stage])
    own = chunk == np.arange(chunks)[:, None]
    powers = (held**NORM).sum(axis=1)[:, None, None] + own[:, :, None] * less[:, None] + own[:, None, :] * more
    of_chunks = norm(powers).sum(axis=0)
    now = float(norm((total**NORM).sum()) + UNEVEN_CHUNKS * norm((held**NORM).sum(axis=1)).sum())
    return now, of_stages + UNEVEN_CHUNKS * of_chunks
