"""Devices of each group of a cluster that a plan uses, groups that count as one among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from meshwright.estimate.result import StepPrice
from meshwright.specs.cluster import AND, ClusterSpec


def devices_used(cluster: ClusterSpec, estimate: StepPrice) -> Counter[str]:
    """Devices in use by group; of groups that count as one a plan uses equally large parts of all nodes.

    Args:
        cluster: the cluster with each group by itself.
        estimate: the estimate of a plan on it, or on some of its groups as one.
    """
    whole = {group.name for group in cluster.groups}
    used = Counter[str]()
    for stage in estimate.stages:
        used[stage.group] += stage.devices
    apart = Counter({name: devices for name, devices in used.items() if name in whole})
    for name, devices in used.items():
        if name not in whole:
            apart |= counted_devices(cluster, name.split(AND), devices)
    return apart


def counted_devices(cluster: ClusterSpec, names: Collection[str], devices: int) -> Counter[str]:
    """Devices of each of some groups that count as one of so many: all of them, or of each node what a number divides.

    Args:
        cluster: the cluster with each group by itself.
        names: the names of the groups.
        devices: the number of devices of all of them together.
    """
    groups = [group for group in cluster.groups if group.name in names]
    for unit in range(1, 1 + max(group.devices_per_node for group in groups)):
        found = Counter({group.name: group.nodes * even_part(group.devices_per_node, unit) for group in groups})
        if found.total() == devices:
            return found
    return Counter({group.name: group.devices for group in groups})


def even_part(devices: int, unit: int) -> int:
    """The most of a node's devices that are a multiple of a unit."""
    return devices // unit * unit
