"""Plans that take groups for one whose nodes are equal but for what they cost: rented in two ways, or spot nodes.

Each stays a group by itself, so that an answer may leave the dear ones out; but stages and pipelines lie across their
border only where both count as one.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.equal_groups import equal_groups_joined
from meshwright.planning.mixed.devices_used import devices_used
from meshwright.planning.mixed.source import PricedPlan, StageSource
from meshwright.specs.cluster import ClusterSpec

KEPT = 12
"""Quickest of them that stand beside other plans."""


def plans_of_groups_as_one(cluster: ClusterSpec, over: Callable[[ClusterSpec], StageSource]) -> list[PricedPlan]:
    """The quickest plans that use all devices of such groups, whose price is then their mean; none without any.

    Args:
        cluster: the cluster of several groups.
        over: the same question on another cluster.
    """
    seen, _ = equal_groups_joined(cluster, whatever_they_cost=True)
    if len(seen.groups) == len(cluster.groups):
        return []
    source = over(seen)
    whole = [IslandPart(number, group.devices) for number, group in enumerate(seen.groups)]
    found = source.together(whole, thorough=True)
    if seen.homogeneous:
        found += source.alone(*whole)
    stated = {group.name for group in cluster.groups}
    ones = {group.name: group.devices for group in seen.groups if group.name not in stated}
    used = ((one, devices_used(seen, one.estimate)) for one in found)
    complete = [one for one, by_name in used if all(by_name[name] == n for name, n in ones.items())]
    return sorted(complete, key=lambda one: one.step_time_s)[:KEPT]
