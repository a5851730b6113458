"""Links between stages: the outermost domain of a group, or what joins two groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from meshwright.specs.cluster import ClusterSpec


def link_between(cluster: ClusterSpec, here: int, there: int) -> tuple[float, float]:
    """Bytes per second and device that transfers reach, and latency in seconds.

    Args:
        cluster: the cluster with a link between any two groups.
        here: number of a group.
        there: number of another group; the same for the outermost domain of one group.
    """
    outer = cluster.groups[here].domains[-1]
    if here == there:
        return outer.bandwidth_bytes_per_s * outer.efficiency, outer.latency_s
    names = {cluster.groups[here].name, cluster.groups[there].name}
    link = next(link for link in cluster.links if set(link.between) == names)
    efficiency = min(outer.efficiency, cluster.groups[there].domains[-1].efficiency)
    return link.bandwidth_bytes_per_s * efficiency, link.latency_s


def widest_link(cluster: ClusterSpec, groups: Sequence[int]) -> float:
    """Bytes per second and device that the widest link reaches out of an innermost domain; 0 where none leaves one.

    Args:
        cluster: the cluster with a link between any two groups.
        groups: the groups that are looked at.
    """
    outer = (domain for group in groups for domain in cluster.groups[group].domains[1:])
    inside = (domain.bandwidth_bytes_per_s * domain.efficiency for domain in outer)
    between = (link_between(cluster, *pair)[0] for pair in itertools.combinations(groups, 2))
    return max(itertools.chain(inside, between), default=0.0)


def hop_s(part_bytes: float, link: tuple[float, float]) -> float:
    """Seconds of one transfer.

    Args:
        part_bytes: the part bytes that one device of the smaller side sends.
        link: the link as `link_between`.
    """
    bandwidth, latency_s = link
    return latency_s + part_bytes / bandwidth
