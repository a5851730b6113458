"""Plans next to a pipeline set: a layer more or less of a stage, micro-batches that one pipeline does for another.

Closed forms choose the layers of stages and the shares of the batch; what they leave out is a layer or a micro-batch's
worth where there are few of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.split import SplitPipeline

MOST_PRICED = 48
"""Neighbours priced of one pipeline set."""
GAIN = 1e-4
"""Share of a step that a neighbour must save."""


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
        one_set: with whole micro-batches.
        step_s: of it, seconds.
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
        waves = pipelines[taker].wave, pipelines[giver].wave
        sequences = math.lcm(*waves)
        counts = list(shares)
        counts[taker] += sequences // waves[0]
        counts[giver] -= sequences // waves[1]
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
