"""Groups of equal nodes over one fabric as one group: a cluster written in two halves plans as one.

Exact: every speed, price and limit is what it was. Devices are numbered group by group, so that those of a group that
stood behind another kind follow the first of its own. Groups that differ in anything stay apart; `islands` merges those
within a tolerance. Those that only cost differently are one group for plans that use all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.planning.changed_cluster import resized
from meshwright.specs.cluster import AND, ClusterSpec, LinkSpec, NodeGroup


def equal_groups_joined(
    cluster: ClusterSpec, *, whatever_they_cost: bool = False
) -> tuple[ClusterSpec, tuple[tuple[str, ...], ...]]:
    """The cluster with equal groups as one, which stands where the first of them does.

    Args:
        cluster: the cluster of several groups, with a link between any two.
        whatever_they_cost: groups that differ in price, power and preemptions, too, each as one group of their means.

    Returns:
        The cluster, and the names of the groups that became one; the cluster itself where there are none.
    """
    seen = _free_of_charge if whatever_they_cost else _as_stated
    runs: list[list[NodeGroup]] = []
    for group in cluster.groups:
        alike = (run for run in runs if all(_equal(cluster, seen(one), seen(group)) for one in run))
        same = next(alike, None)
        if same is None:
            runs.append([group])
        else:
            same.append(group)
    joined = tuple(tuple(group.name for group in run) for run in runs if len(run) > 1)
    if not joined:
        return cluster, ()
    groups = tuple(_as_one(run) for run in runs)
    name_of = {group.name: one.name for run, one in zip(runs, groups, strict=True) for group in run}
    links: dict[frozenset[str], LinkSpec] = {}
    for link in cluster.links:
        first, second = (name_of[name] for name in link.between)
        if first != second:
            links.setdefault(frozenset((first, second)), replace(link, between=(first, second)))
    return replace(cluster, groups=groups, links=tuple(links.values())), joined


def _as_one(run: list[NodeGroup]) -> NodeGroup:
    if len(run) == 1:
        return run[0]
    joined = replace(
        resized(run[0], sum(group.nodes for group in run)),
        name=AND.join(group.name for group in run),
        counted=tuple(run),
    )
    if len({_charged(group) for group in run}) == 1:
        return joined
    measured = any(group.power_w_per_device for group in run)
    return replace(
        joined,
        price_per_device_hour=_mean([group.price_per_hour for group in run], run),
        power_w_per_device=_mean([group.busy_power_w for group in run], run) if measured else None,
        preemptions_per_node_hour=_mean([group.preemptions_per_node_hour for group in run], run) or 0.0,
    )


def _mean(values: Sequence[float | None], run: Sequence[NodeGroup]) -> float | None:
    """Mean over the nodes of the groups; None where one value is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(value * group.nodes for value, group in zip(known, run, strict=True)) / sum(g.nodes for g in run)


def _charged(group: NodeGroup) -> tuple[float | None, float | None, float]:
    return group.price_per_device_hour, group.power_w_per_device, group.preemptions_per_node_hour


def _free_of_charge(group: NodeGroup) -> NodeGroup:
    return replace(group, price_per_device_hour=None, power_w_per_device=None, preemptions_per_node_hour=0.0)


def _as_stated(group: NodeGroup) -> NodeGroup:
    return group


def _equal(cluster: ClusterSpec, one: NodeGroup, other: NodeGroup) -> bool:
    """Whether nothing but its name and number of nodes tells a group from the other, and no link does."""
    nodes = one.nodes + other.nodes
    joined = resized(one, nodes)
    if replace(resized(other, nodes), name=one.name) != joined:
        return False
    between, outer = cluster.link(one.name, other.name), joined.domains[-1]
    alike = (
        between is not None
        and between.bandwidth_bytes_per_s == outer.bandwidth_bytes_per_s
        and between.latency_s == outer.latency_s
        and between.efficiency in (None, outer.efficiency)
        and not between.price_per_gb
    )
    others = [group.name for group in cluster.groups if group.name not in (one.name, other.name)]
    return alike and all(_speed(cluster, one.name, name) == _speed(cluster, other.name, name) for name in others)


def _speed(cluster: ClusterSpec, here: str, there: str) -> tuple[object, ...] | None:
    link = cluster.link(here, there)
    if link is None:
        return None
    return link.bandwidth_bytes_per_s, link.latency_s, link.efficiency, link.price_per_gb, link.transport
