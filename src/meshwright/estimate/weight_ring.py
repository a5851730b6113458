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

from typing import Any

import numpy as np

from meshwright.shapes import Array, Bool, Float
from meshwright.strategies.data import ShardingColumns

CHUNKS_OF_WEIGHTS, CHUNKS_OF_GRADIENTS = 3, 1
"""On a rank beside its own: the weights of the forward and of the backward and the ones that come next, less the rank's
own group, which is on its way too; gradients that arrive."""


def turns(ranks: Any, micro_batches: Any) -> Any:
    """Turns of a forward and a backward in a step: P m + P - 1, as many as groups are passed on in each pass.

    Args:
        ranks: P.
        micro_batches: m, of a rank.
    """
    return ranks * micro_batches + ranks - 1


def waits_s(
    forward_s: Float[np.ndarray, "plans items"],
    backward_s: Float[np.ndarray, "plans items"],
    count: Float[np.ndarray, " items"],
    edges: Bool[np.ndarray, " items"],
    ranks: Float[np.ndarray, " plans"],
    micro_batches: int,
) -> Float[np.ndarray, " plans"]:
    """Seconds of a step beyond a rank's own work: turns of the slowest group, less what is done in them.

    Args:
        forward_s: of each item, with what exchanges expose.
        backward_s: likewise.
        count: of each item on a rank, which has all of them.
        edges: items that are no layers.
        ranks: of the ring.
        micro_batches: of a rank.
    """
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


def travelling_bytes(sharding: ShardingColumns, weight_bytes: Array | float, gradient_bytes: Array | float) -> Array:
    """Bytes of a parameter in the groups that are on a rank beside its own; 0 where weights do not travel.

    A group has the P-th part of a rank's parameters and at most one layer more.

    Args:
        sharding: the choice.
        weight_bytes: of a weight.
        gradient_bytes: of a gradient on its way.
    """
    each = CHUNKS_OF_WEIGHTS * np.asarray(weight_bytes) + CHUNKS_OF_GRADIENTS * np.asarray(gradient_bytes)
    return np.asarray(each * np.asarray(sharding.ring, dtype=float))
