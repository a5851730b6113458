"""Devices of each group of a cluster that a plan uses, groups that count as one among them."""

from __future__ import annotations

from collections import Counter

from meshwright.estimate.result import StepPrice
from meshwright.specs.cluster import AND, ClusterSpec


def devices_used(cluster: ClusterSpec, estimate: StepPrice) -> Counter[str]:
    """Devices in use by group; of groups that count as one a plan uses all.

    Args:
        cluster: with each group by itself.
        estimate: of a plan on it, or on some of its groups as one.
    """
    devices = {group.name: group.devices for group in cluster.groups}
    used = Counter[str]()
    for stage in estimate.stages:
        if stage.group in devices:
            used[stage.group] += stage.devices
        else:
            used |= Counter({name: devices[name] for name in stage.group.split(AND)})
    return used
