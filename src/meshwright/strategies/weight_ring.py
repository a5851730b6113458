"""WeiPipe: weights travel round the ranks, one group of layers a turn, and every rank has its own micro-batches.

In a turn a rank runs the forward of a group of layers on one micro-batch and the backward of another group on the one
before, and passes both groups of weights and one group of gradients to its neighbour. Each rank is a turn behind the
one before it, so that the groups of layers stand one behind the other on the ring:

    turns      P m + P - 1         of P ranks with m > 1 micro-batches each, P groups of layers; P of them forward
                                   alone and P backward alone
    per turn   2 W / P of weights and G / P of gradients over each link, whatever the tokens

All ranks wait for the slowest group. Of L layers of t seconds and edges (embedding, head) of e seconds, P - 1 ranks
have c layers and the last the rest and the edges, with the c next to the mean that makes the slowest group quickest.
Source: Lin et al., "WeiPipe: Weight Pipeline Parallelism for Communication-Effective Long-Context Large Model
Training", PPoPP 2025 (WeiPipe-Interleave); turns and groups are derived here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.errors import Problem
from meshwright.shapes import Array, Bool, Float
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies.base import Degrees, WeightPassing

CHUNKS_OF_WEIGHTS, CHUNKS_OF_GRADIENTS = 3, 1
"""Groups of layers on a rank beside its own: the weights of the forward and of the backward and the ones that come
next, less the rank's own group, which is on its way too; gradients that arrive."""


def turns(ranks: Any, micro_batches: Any) -> Any:
    """Turns of a forward and a backward in a step: P m + P - 1, as many as groups are passed on in each pass.

    Args:
        ranks: P.
        micro_batches: m, of a rank.
    """
    return ranks * micro_batches + ranks - 1


class WeightRing(WeightPassing):
    """Groups of layers stand one behind the other on the ring of ranks and go on by one rank a turn."""

    name = "ring"

    def problems(self, strategy: LayerStrategy, *, layers: int, workers: int, experts: bool) -> Iterator[Problem]:
        """The ring is the pipeline, and nothing inside a layer may need another rank."""
        data, field = strategy.data, "data.passing"
        ranks = data.shard * strategy.cp
        if ranks < 2:
            why, fix = "a ring has two ranks or more", "use z0, or dp2 and more"
            yield Problem(what="weipipe on one data rank", why=why, fix=fix, field=field)
        elif layers < ranks:
            why, near = (
                "at any time each rank has a layer or more",
                max(n for n in range(1, layers + 1) if ranks % n == 0),
            )
            fix = f"use dp{near}.tp{ranks // near * strategy.tp}, or fsdp" if near > 1 else "use fsdp"
            yield Problem(what=f"weipipe of {ranks} ranks with {layers} layers", why=why, fix=fix, field=field)
        if data.zero < 3 or not data.reshard or data.family != "zero":
            why, fix = (
                "each rank keeps the layers that it updates and no others",
                "use zero 3 of family zero with reshard",
            )
            yield Problem(
                what=f"passing ring with zero {data.zero}, family {data.family}", why=why, fix=fix, field=field
            )
        if data.replicate > 1 or data.across:
            why, fix = "one ring holds one copy of the weights", "replicate = 1, across = 0"
            yield Problem(what="several rings, or one over several pipelines", why=why, fix=fix, field=field)
        beside = (
            ("pp", workers, "the ring is the pipeline: every rank runs all layers, a turn behind the rank before it"),
            ("cp", strategy.cp, "ranks of one sequence would need the same layer at the same time"),
            ("ep", strategy.expert.ep, "ranks that exchange tokens would need the same layer at the same time"),
        )
        for name, degree, why in beside:
            if degree > 1:
                yield Problem(what=f"weipipe with {name}{degree}", why=why, fix=f"{name}1, or fsdp", field=field)
        tp, etp = strategy.tp, strategy.expert.etp
        if experts and etp != tp and strategy.expert.ep == 1:
            why = "an expert is split over the tensor ranks of its layer, which travels with all its weights"
            fix = f"etp{tp}" if tp > 1 else "etp1, or fsdp"
            yield Problem(what=f"weipipe with etp{etp} and tp{tp}", why=why, fix=fix, field=field)
        if data.secondary_shard:
            why, fix = "weights come round again for backward", "leave hpz out"
            yield Problem(what=f"weipipe with hpz{data.secondary_shard}", why=why, fix=fix, field=field)
        if strategy.offload.weights or strategy.offload.gradients:
            why, fix = "weights and gradients are always on their way between devices", "off-o, or leave it out"
            yield Problem(what="weipipe with weights or gradients on the host", why=why, fix=fix, field=field)

    def suits(self, degrees: Degrees, *, layers: int, experts: bool) -> Bool[np.ndarray, "rows"]:
        """Rows with a layer for every rank whose ranks need nothing of each other inside a layer."""
        alone = (degrees["cp"] == 1) & (degrees["pp"] == 1) & (degrees["ep"] == 1)
        return np.asarray((degrees["dp"] <= layers) & alone & ((degrees["etp"] == degrees["tp"]) | (not experts)))

    def waits_s(
        self,
        forward_s: Float[np.ndarray, "plans items"],
        backward_s: Float[np.ndarray, "plans items"],
        count: Float[np.ndarray, " items"],
        edges: Bool[np.ndarray, " items"],
        ranks: Float[np.ndarray, " plans"],
        micro_batches: int,
    ) -> Float[np.ndarray, " plans"]:
        """Turns of the slowest group, less what is done in them."""
        item_s, layers = forward_s + backward_s, (count * ~edges).sum()
        layers_s, edges_s = item_s @ (count * ~edges), item_s @ (count * edges)
        layer_s, mean = layers_s / layers, layers_s + edges_s
        least = np.floor(mean / (ranks * layer_s) + 1e-9)
        tried = [
            np.maximum(each * layer_s, edges_s + np.maximum(layers - (ranks - 1) * each, 0.0) * layer_s)
            for each in (least, least + 1)
        ]
        group_s = np.minimum(*tried)
        # With one micro-batch no rank is at a forward and a backward in one turn.
        share = 1.0 if micro_batches > 1 else np.maximum(forward_s @ count, backward_s @ count) / mean
        taken_s = group_s * (ranks + (ranks * micro_batches - 1) * share)
        return np.asarray(taken_s - micro_batches * mean)

    def travelling_bytes(self, weight_bytes: Array | float, gradient_bytes: Array | float) -> Array:
        """A group has the P-th part of a rank's parameters and at most one layer more."""
        return np.asarray(
            CHUNKS_OF_WEIGHTS * np.asarray(weight_bytes) + CHUNKS_OF_GRADIENTS * np.asarray(gradient_bytes)
        )
