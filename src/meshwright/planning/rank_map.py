"""Which ranks form a group, which nodes hold a stage, and which groups leave the fast links of their domain."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from meshwright.records import fields_of
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import LayerStrategy
from meshwright.units import GIGA, significant

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob

CROSSING = ("tp", "cp", "ep", "etp")
"""Groups whose traffic wants to stay in the innermost domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """All groups of one kind of parallelism; ranks o, o + stride, ... form one of them."""

    name: str
    size: int
    stride: int
    groups: int
    inside: int
    """Ranks of a group that share one innermost domain."""
    domain: str
    """The smallest domain that holds a whole group."""

    @property
    def leaves(self) -> bool:
        """Whether a group is larger than one innermost domain holds."""
        return self.inside < self.size

    def to_dict(self) -> dict[str, object]:
        """As data."""
        said = {"ranks_inside_domain": self.inside, "leaves_domain": self.leaves}
        return fields_of(self, "inside") | said


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """Where the ranks of a plan sit."""

    groups: tuple[RankGroup, ...]
    stages: tuple[str, ...]
    """Ranks and nodes of each pipeline stage."""
    warnings: tuple[str, ...]
    """Tensor, context and expert groups that leave their innermost domain."""

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return fields_of(self) | {"rank_order": "tp-cp-ep-dp-pp"}


def rank_map(job: PlannedJob) -> RankMap:
    """The rank map of a job's first pipeline.

    Ranks are numbered tensor first, then context, data and pipeline; experts fold over the ranks of a stage, expert
    tensor ranks first.

    Args:
        job: the plan and its cluster.

    Returns:
        Groups by kind, stages with their nodes, warnings.
    """
    if not isinstance(job, Job) or not job.cluster.homogeneous or len(job.plan.pipelines) > 1:
        return RankMap(groups=(), stages=tuple(_stages_by_group(job)), warnings=())
    return _of_one_pipeline(job.plan, job.cluster.groups[0], experts=job.model.is_moe)


@lru_cache(maxsize=64)
def _of_one_pipeline(plan: ExecutionPlan, where: NodeGroup, *, experts: bool) -> RankMap:
    """The rank map of a plan on equal nodes; an answer asks for its warnings first, and then for all of it."""
    pipeline = plan.pipelines[0]
    strategy = plan.strategies[plan.strategy_index(pipeline, pipeline.workers[0])]
    kinds = [*stage_groups(strategy, experts=experts), ("pp", len(pipeline.workers), strategy.devices)]
    groups = tuple(_group(name, size, stride, plan.devices, where) for name, size, stride in kinds if size > 1)
    warnings = tuple(_warning(g, where) for g in groups if g.leaves and g.name.split()[0] in CROSSING)
    return RankMap(groups=groups, stages=_stages(plan, where.devices_per_node), warnings=warnings)


def stage_groups(strategy: LayerStrategy, *, experts: bool) -> list[tuple[str, int, int]]:
    """Name, size and stride of every kind of group among the ranks of a stage, tensor ranks first.

    Args:
        strategy: the strategy of the stage.
        experts: whether the model has them.
    """
    kinds: list[tuple[str, int, int]] = [("tp", strategy.tp, 1)]
    stride = strategy.tp
    for level in strategy.context:
        name = "cp" if len(strategy.context) == 1 else f"cp {level.name} "
        kinds.append((name, level.degree, stride))
        stride *= level.degree
    kinds.append(("dp", strategy.dp, stride))
    kinds.append(("etp", strategy.expert.etp if experts else 1, 1))
    kinds.append(("ep", strategy.expert.ep, strategy.expert.etp))
    return kinds


def _group(name: str, size: int, stride: int, devices: int, where: NodeGroup) -> RankGroup:
    """Groups take consecutive blocks of size x stride ranks, so what a domain of D ranks holds of one is
    max(1, gcd(size x stride, D) / stride)."""

    def inside(domain_size: int) -> int:
        return min(size, max(1, math.gcd(size * stride, domain_size) // stride))

    whole = next((d for d in where.domains if inside(d.size) == size), where.domains[-1])
    return RankGroup(
        name=name,
        size=size,
        stride=stride,
        groups=devices // size,
        inside=inside(where.domains[0].size),
        domain=whole.name,
    )


def _warning(group: RankGroup, where: NodeGroup) -> str:
    inner = where.domains[0]
    outer = next((domain for domain in where.domains if domain.name == group.domain), where.domains[-1])
    speeds = f"{_rate(outer.bandwidth_bytes_per_s)} instead of {_rate(inner.bandwidth_bytes_per_s)} GB/s per device"
    name, domain = f"{group.name}{group.size}", f"{inner.name} domain of {inner.size}"
    if group.inside == 1:
        return f"each rank of {name} is in another {domain}: they are reached over {outer.name} ({speeds})"
    return (
        f"{name} leaves its {domain}: {group.inside} of {group.size} ranks share one, the others are reached over "
        f"{outer.name} ({speeds})"
    )


def _rate(bytes_per_s: float) -> str:
    return significant(bytes_per_s / GIGA)


def _stages(plan: ExecutionPlan, per_node: int) -> tuple[str, ...]:
    lines = []
    for number, worker in enumerate(plan.pipelines[0].workers):
        first, last = worker.devices[0][0], worker.devices[-1][1]
        nodes = (
            f"node {first // per_node}"
            if first // per_node == last // per_node
            else (f"nodes {first // per_node}-{last // per_node}")
        )
        ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
        ranges = [pair for chunk in worker.chunks for pair in chunk.layers]
        count = sum(b - a + 1 for a, b in ranges)
        layers = (
            f"layers {ranges[0][0]}-{ranges[0][1]}" if len(ranges) == 1 else f"{count} layers in {len(ranges)} chunks"
        )
        lines.append(f"stage {number}: {ranks}, {nodes}; {layers}")
    return tuple(lines)


def _stages_by_group(job: PlannedJob) -> Iterator[str]:
    """Devices, nodes and layers of every stage of every pipeline, counted inside its group."""
    starts = list(accumulate((group.devices for group in job.cluster.groups), initial=0))
    for number, pipeline in enumerate(job.plan.pipelines):
        for stage, worker in enumerate(pipeline.workers):
            first, last = worker.devices[0][0], worker.devices[-1][1]
            place = bisect_right(starts, first) - 1
            group = job.cluster.groups[place]
            low, high = ((device - starts[place]) // group.devices_per_node for device in (first, last))
            nodes = f"node {low}" if low == high else f"nodes {low}-{high}"
            ranges = [pair for chunk in worker.chunks for pair in chunk.layers]
            layers = ", ".join(f"{a}-{b}" for a, b in ranges)
            yield f"pipeline {number} stage {stage}: ranks {first}-{last}, {group.name} {nodes}; layers {layers}"
