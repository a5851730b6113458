"""Plans of equal ranks on unlike devices: each works at the pace and within the memory of the weakest of its kind.

This is what data-parallel launchers start: one strategy and one micro-batch for all ranks, whatever they stand on.
Kinds that differ little lose little by it; those that differ much are out of reach by a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.islands import weakest_of
from meshwright.planning.fewer_nodes import first_nodes
from meshwright.planning.mixed.devices_used import even_part
from meshwright.planning.mixed.source import Launcher, PricedPlan
from meshwright.planning.one_kind import accepted
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.cluster import AND, ClusterSpec, NodeGroup
from meshwright.specs.collective_libraries import collective_library
from meshwright.specs.job import Job


def counted_as_one(cluster: ClusterSpec, parts: Sequence[IslandPart]) -> ClusterSpec | None:
    """Some groups of a cluster as one group of their weakest device; None where a framework forms no one group of them.

    It forms none over several zones, links that are paid for, or several collective libraries.

    Args:
        cluster: the cluster of several groups.
        parts: groups of it, whole or as many devices of every node.
    """
    groups = [_of_each_node(cluster, part) for part in parts]
    names = {group.name for group in groups}
    links = [link for link in cluster.links if set(link.between) <= names]
    apart = {(group.zone, collective_library(group.device.vendor)) for group in groups}
    if len(apart) > 1 or any(link.price_per_gb for link in links):
        return None
    name = AND.join(f"{group.devices} {group.name}" for group in groups)
    return cluster.part(name, (weakest_of(groups, links),))


def evener(cluster: ClusterSpec, parts: Sequence[IslandPart]) -> list[tuple[IslandPart, ...]]:
    """The same groups with fewer devices of a node, where their nodes have few in common; those of most devices first.

    Nodes of 8 and of 5 are thirteen nodes of one device, between which all is slow; of 4 each, one of 13 stays idle.

    Args:
        cluster: the cluster of several groups.
        parts: whole groups of it.
    """
    each = [cluster.groups[part.group].devices_per_node for part in parts]
    units = [unit for unit in range(math.gcd(*each) + 1, min(each) + 1) if unit & (unit - 1) == 0]
    found = {
        tuple(
            IslandPart(part.group, cluster.groups[part.group].nodes * even_part(devices, unit))
            for part, devices in zip(parts, each, strict=True)
        )
        for unit in units
    }
    return sorted(found - {tuple(parts)}, key=lambda one: (-sum(part.devices for part in one), one))


def _of_each_node(cluster: ClusterSpec, part: IslandPart) -> NodeGroup:
    """A group with so many devices, the same number of every node."""
    group = cluster.groups[part.group]
    if part.devices == group.devices:
        return group
    whole = cluster.part(group.name, (group,))
    fewer = first_nodes(whole, nodes=group.nodes, per_node=part.devices // group.nodes)
    return replace(fewer.groups[0], name=group.name)


def best_of_equal_ranks(inputs: JobInputs, parts: Sequence[IslandPart], launcher: Launcher) -> PricedPlan | None:
    """The best plan that gives each rank of several groups the same work; None where none fits.

    Args:
        inputs: model, cluster and workload.
        parts: groups of the cluster, two or more, whole or as many devices of every node.
        launcher: the framework that starts it.

    Raises:
        UnsupportedError: plans fit, and the target refuses those found.
    """
    where = counted_as_one(inputs.cluster, parts)
    if where is None:
        return None
    result = accepted(inputs.model, where, inputs.workload, launcher.space, 1, launcher.refuses)
    if not result.plans or result.relaxed:
        return None
    best = result.plans[0]
    name = best.row.format() if best.row else None
    job = Job(model=inputs.model, cluster=where, workload=inputs.workload, plan=best.plan, name=name)
    return PricedPlan(job=job, estimate=best.estimate, row=best.row)
