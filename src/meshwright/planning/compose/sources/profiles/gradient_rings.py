"""Seconds of the gradient all-reduce of pipelines that cut the layers at different places.

    layers are cut wherever any pipeline cuts them; a run of layers is reduced in one ring over all its holders, kinds
    side by side, at the smallest tensor degree among them; a stage reduces the runs it holds in turn

Where all pipelines are equal this is the ring of each stage that Sailor's simulator prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_set import StageShape


class Held(NamedTuple):
    """Who holds which layers in so many equal pipelines."""

    pipelines: int
    cuts: tuple[int, ...]
    stages: tuple[StageShape, ...]


def slowest_sync_s(costs: ProfileCosts, parts: Sequence[Held]) -> float:
    """The stage that reduces longest.

    Args:
        costs: the model on the cluster.
        parts: the parts of a pipeline set.
    """
    cuts = sorted({cut for part in parts for cut in part.cuts})
    # Seconds of all runs before each cut: a stage takes those between its cuts.
    before_s, total_s = {0: 0.0}, 0.0
    holding = [0] * len(parts)
    for first, end in pairwise(cuts):
        total_s += _run_s(costs, parts, holding, first, end)
        before_s[end] = total_s
        for index, part in enumerate(parts):
            if part.cuts[holding[index] + 1] == end:
                holding[index] += 1
    return max(before_s[end] - before_s[start] for part in parts for start, end in pairwise(part.cuts))


def _run_s(costs: ProfileCosts, parts: Sequence[Held], holding: list[int], first: int, end: int) -> float:
    ranks: dict[str, int] = {}
    tp = 0
    for part, index in zip(parts, holding, strict=True):
        device, own_tp, replicas, _ = part.stages[index]
        ranks[device] = ranks.get(device, 0) + part.pipelines * replicas
        tp = min(tp, own_tp) if tp else own_tp
    return costs.run_ring_s(first, end, tp, tuple(ranks.items()))
