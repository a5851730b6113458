"""Bytes of one step of a pipeline set that cross the links between groups of nodes, and what they cost.

activations   output of the cut layer x sequences, forward and backward, where a pipeline leaves a kind of device
gradients     2 (D - 1) / D x 4 bytes x parameters on each link of a ring of D ranks, kinds side by side
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from meshwright.estimate.result import LinkTraffic
from meshwright.estimate.traffic import ring_edges
from meshwright.planning.compose.sources.profiles.costs import ELEMENT_BYTES, ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_set import ShapeSet
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import GIGA


def composition_traffic(
    costs: ProfileCosts,
    one_set: ShapeSet,
    shares: Sequence[Sequence[tuple[int, ...]]],
    cluster: ClusterSpec,
) -> tuple[LinkTraffic, ...]:
    """What one step sends over each link between groups that it crosses.

    Args:
        costs: the model on the cluster's devices, kinds named as the groups.
        one_set: pipelines.
        shares: sequences of each micro-batch of each pipeline of each part.
        cluster: its links have the prices.
    """
    order = {name: number for number, name in enumerate(costs.kinds)}
    activations: dict[tuple[int, int], float] = defaultdict(float)
    gradients: dict[tuple[int, int], float] = defaultdict(float)
    for part, pipelines in zip(one_set.parts, shares, strict=True):
        sequences = sum(sum(sizes) for sizes in pipelines)
        for cut, (here, there) in zip(part.shape.cuts[1:], pairwise(part.shape.stages), strict=False):
            ends = sorted((order[here.device], order[there.device]))
            if ends[0] != ends[1]:
                activations[ends[0], ends[1]] += 2 * costs.boundary_bytes(cut) * sequences
    for first, end in pairwise(sorted({cut for part in one_set.parts for cut in part.shape.cuts})):
        ranks: dict[int, int] = defaultdict(int)
        for part, pipelines in zip(one_set.parts, shares, strict=True):
            stage = part.shape.stages[bisect_right(part.shape.cuts, first) - 1]
            ranks[order[stage.device]] += stage.replicas * sum(1 for sizes in pipelines if sizes)
        held = sorted(kind for kind, count in ranks.items() if count)
        payload = ELEMENT_BYTES * float(costs.parameters[end] - costs.parameters[first])
        for edge, share in ring_edges(held, sum(ranks.values())):
            gradients[edge] += share * payload
    names = list(costs.kinds)
    found = []
    for pair in sorted(activations | gradients):
        link = cluster.link(names[pair[0]], names[pair[1]])
        total_bytes = activations[pair] + gradients[pair]
        found.append(
            LinkTraffic(
                between=(names[pair[0]], names[pair[1]]),
                activation_bytes=activations[pair],
                gradient_bytes=gradients[pair],
                price_per_step=(link.price_per_gb if link else 0.0) * total_bytes / GIGA,
            )
        )
    return tuple(found)
