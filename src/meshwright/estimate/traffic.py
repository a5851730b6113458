"""Bytes of one step that cross the links between groups of nodes, and what they cost.

    activations   sequences x length x hidden x bytes of an element, once forward and, in training, once backward,
                  wherever two neighbouring layers stand on different groups
    gradients     2 (n - 1) / n x bytes of a layer on each of the n links around the n groups that hold it: sums are
                  made inside each group first; between two groups the one link is crossed both ways
    joint states  (D - 1) / D x bytes of the model for every gather or scatter of D ranks in one ring
    tied table    as gradients, of the first and the last stage, by each of their data ranks

Bytes count at both ends of a link once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from meshwright.estimate.data.partners import holders, weights_of
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.result import LinkTraffic
from meshwright.estimate.site import Site
from meshwright.estimate.stages import strategies_of
from meshwright.shapes import Float, Int
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.workload import Workload
from meshwright.units import GIGA

Pair = tuple[int, int]
"""Two groups by their number, the lower one first."""


def link_traffic(
    plan: ExecutionPlan,
    stages: Sequence[Sequence[Site]],
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
) -> tuple[LinkTraffic, ...]:
    """What one step sends over each link between groups that it crosses.

    Args:
        plan: the plan.
        stages: sites of each pipeline's workers.
        model: the model of the plan.
        cluster: its links have the prices.
        workload: sequences and formats.

    Returns:
        Bytes over each link, in the order of the cluster's groups; empty where the plan stands on one group.
    """
    if len({site.number for own in stages for site in own}) < 2:
        return ()
    groups = [
        np.array([site.number for site in own])[holders(pipeline, model.num_layers)]
        for pipeline, own in zip(plan.pipelines, stages, strict=True)
    ]
    activations: dict[Pair, float] = defaultdict(float)
    gradients: dict[Pair, float] = defaultdict(float)
    passed = workload.seq_len * model.boundary_width(workload.seq_len)
    once_bytes = passed * workload.precision.bytes_of("activations")
    for pipeline, held in zip(plan.pipelines, groups, strict=True):
        sequences = plan.data_degree(pipeline) * pipeline.micro_batch * pipeline.num_micro_batches
        for here, there in pairwise(held.tolist()):
            if here != there:
                activations[_pair(here, there)] += sequences * once_bytes * (2 if workload.training else 1)
    if workload.training and (ranks := plan.joint_ranks):
        parameters = float(weights_of(ModelLayout.of(model, workload.seq_len)).sum())
        once = parameters * _joint_bytes(plan, workload)
        for edge, share in ring_edges(sorted({int(held[0]) for held in groups}), ranks):
            gradients[edge] += share / 2 * once
    elif workload.training:
        reduced = _reduced_bytes(plan, workload)
        for edge, parameters in summed_between(groups, weights_of(ModelLayout.of(model, workload.seq_len))).items():
            gradients[edge] += parameters * reduced
        if model.sums_tied_table:
            for pipeline, own, held in zip(plan.pipelines, stages, groups, strict=True):
                ranks = _data_ranks(plan, pipeline, own)
                for edge, share in ring_edges(sorted({int(held[0]), int(held[-1])})):
                    gradients[edge] += share * ranks * model.vocab * model.hidden * reduced
    return tuple(_priced(cluster, pair, activations[pair], gradients[pair]) for pair in sorted(activations | gradients))


def summed_between(
    groups: Sequence[Int[np.ndarray, " held"]], weights: Float[np.ndarray, " held"]
) -> dict[Pair, float]:
    """Parameters whose gradients cross each link between groups, as often as they do.

    Args:
        groups: the groups that hold the embedding, each layer and the head, of each pipeline.
        weights: trained parameters of these.
    """
    found: dict[Pair, float] = defaultdict(float)
    rings, which = np.unique(np.sort(np.stack(groups), axis=0), axis=1, return_inverse=True)
    for ring, weight in zip(rings.T.tolist(), np.bincount(which.reshape(-1), weights).tolist(), strict=True):
        for edge, share in ring_edges(sorted(set(ring))):
            found[edge] += share * weight
    return found


def _joint_bytes(plan: ExecutionPlan, workload: Workload) -> float:
    """Bytes of a parameter in all gathers and scatters of a step, where pipelines hold states together."""
    pipeline = plan.pipelines[0]
    data = plan.strategies[plan.strategy_index(pipeline, pipeline.workers[0])].data
    each = pipeline.num_micro_batches
    scatters = each if data.zero > 1 else 1
    gathers = 2 * each if data.zero == 3 and data.reshard else 1
    return scatters * workload.precision.bytes_of("reduce") + gathers * workload.precision.gathered_bytes


def _reduced_bytes(plan: ExecutionPlan, workload: Workload) -> float:
    """Bytes of a gradient between groups: the widest of the formats that layers send theirs in."""
    used = {index for pipeline in plan.pipelines for index in strategies_of(pipeline)}
    stated = [plan.strategies[index].data.reduce_dtype for index in sorted(used)]
    usual = workload.precision.bytes_of("reduce")
    return max((usual if dtype is None else DTYPE_BYTES[dtype] for dtype in stated), default=usual)


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)


def ring_edges(groups: Sequence[int], members: int | None = None) -> Iterator[tuple[Pair, float]]:
    """The links of a ring around groups, and how often the ring's payload crosses each: 2 (D - 1) / D.

    Args:
        groups: the groups in order, each once.
        members: D, of the ring; as many as groups where sums are made inside each group first.
    """
    count = len(groups) if members is None else members
    for here, there in pairwise((*groups, groups[0])):
        if here != there:
            yield _pair(here, there), 2 * (count - 1) / count


def _data_ranks(plan: ExecutionPlan, pipeline: Pipeline, stages: Sequence[Site]) -> int:
    """Ranks of the narrower end that each hold the whole table, tensor ranks together."""
    ends = (pipeline.workers[0], stages[0]), (pipeline.workers[-1], stages[-1])
    return min(site.devices // plan.strategies[plan.strategy_index(pipeline, worker)].tp for worker, site in ends)


def _priced(cluster: ClusterSpec, pair: Pair, activation_bytes: float, gradient_bytes: float) -> LinkTraffic:
    one, other = (cluster.groups[number].name for number in pair)
    link = cluster.link(one, other)
    price_per_gb = link.price_per_gb if link else 0.0
    return LinkTraffic(
        between=(one, other),
        activation_bytes=activation_bytes,
        gradient_bytes=gradient_bytes,
        price_per_step=price_per_gb * (activation_bytes + gradient_bytes) / GIGA,
    )
