"""Islands: devices alike in compute, memory and connectivity within a tolerance.

    apart(a, b) = max over properties of larger / smaller - 1,  and  best link of a or b / link between them - 1

Groups of a cluster are merged while all of their pairs are within the tolerance (complete linkage), so that a larger
tolerance never gives more islands. An island of several groups counts as its weakest device, memory and link: what a
planner of equal devices is told must hold on each of them. The tolerances at which islands merge are the coarser
granularities; each group cut at its largest inner domain is the finer one.

Own design, after the idea of islands in Tao et al., "Tangram", arXiv 2606.16907, whose rule of merging is not public.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations

import numpy as np

from meshwright.errors import InputError
from meshwright.formats.cluster import UNKNOWN_NODE, fabric_of
from meshwright.kernels.alike import Linkage, linkage, ratio_apart
from meshwright.shapes import Float
from meshwright.specs.cluster import AND, ClusterSpec, DomainSpec, LinkSpec, NodeGroup
from meshwright.specs.device import DeviceSpec

MOST_TOLERANCE = 100.0
_COMPUTE_DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeDevices:
    """One island, or several equal ones."""

    groups: tuple[str, ...]
    """Names in the cluster."""
    devices: tuple[tuple[int, int], ...]
    """First and last number of each group's devices in the cluster."""
    counts_as: NodeGroup
    """The nodes a planner of equal devices sees, the weakest number of each property."""
    apart: float
    """How different its two least alike groups are."""
    copies: int = 1
    """Equal islands, one after the other."""

    @property
    def num_devices(self) -> int:
        """Devices of all copies."""
        return sum(last - first + 1 for first, last in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """A way to see the cluster."""

    tolerance: float | None
    """Tolerance from which on the cluster is seen so; None where it is finer than groups."""
    islands: tuple[AlikeDevices, ...]

    @property
    def num_islands(self) -> int:
        """Islands, copies counted."""
        return sum(island.copies for island in self.islands)


def islands(cluster: ClusterSpec, tolerance: float) -> tuple[AlikeDevices, ...]:
    """The islands of a cluster, in order of their first devices.

    Args:
        cluster: groups of equal nodes.
        tolerance: largest (larger / smaller - 1) of two devices of an island; at 0 only equal groups are one.

    Raises:
        InputError: the tolerance is no number from 0.
    """
    check_tolerance(tolerance)
    return _cut(cluster, _tree(cluster), tolerance)


def check_tolerance(tolerance: float) -> None:
    """Refuse what is no tolerance.

    Raises:
        InputError: it is no number from 0 to 100.
    """
    if not 0 <= tolerance <= MOST_TOLERANCE:
        why = f"must be a number from 0 to {MOST_TOLERANCE:g}: 0.1 lets speeds and memory differ by 10%"
        raise InputError(what=f"tolerance is {tolerance!r}", why=why, field="tolerance", code="MW204")


def granularities(cluster: ClusterSpec) -> tuple[Granularity, ...]:
    """Every way to see a cluster, finest first: inner domains, then islands at each tolerance that merges some."""
    tree = _tree(cluster)
    apart = sorted({0.0, *tree.height[np.isfinite(tree.height)].tolist()})
    merged = [Granularity(tolerance=at, islands=_cut(cluster, tree, at)) for at in apart]
    inner = _inner_domains(cluster)
    finer = [] if inner is None else [Granularity(tolerance=None, islands=inner)]
    return (*finer, *merged)


def as_cluster(cluster: ClusterSpec, seen: tuple[AlikeDevices, ...]) -> ClusterSpec:
    """The cluster of islands: one group each, joined by the slowest of their links at the highest price.

    Args:
        cluster: the cluster that the islands are of.
        seen: its islands, without copies.
    """
    joined_picks = {frozenset(link.between): link for link in cluster.links}
    links = []
    for a, b in combinations(seen, 2):
        between = [joined_picks[frozenset((x, y))] for x in a.groups for y in b.groups]
        slowest = min(between, key=lambda link: link.bandwidth_bytes_per_s)
        names = (a.counts_as.name, b.counts_as.name)
        links.append(
            replace(
                slowest,
                between=names,
                latency_s=max(link.latency_s for link in between),
                price_per_gb=max(link.price_per_gb for link in between),
                transport=slowest.transport if all(link.transport for link in between) else None,
            )
        )
    return replace(cluster, groups=tuple(island.counts_as for island in seen), links=tuple(links))


def _tree(cluster: ClusterSpec) -> Linkage:
    """The hierarchy of a cluster's groups; ties go by name, so that their order does not count."""
    order = sorted(range(len(cluster.groups)), key=lambda i: cluster.groups[i].name)
    found = linkage(_apart([cluster.groups[i] for i in order], cluster.links))
    back = np.array(order, dtype=np.int64)
    return replace(found, first=back[found.first], second=back[found.second])


def _apart(groups: list[NodeGroup], links: tuple[LinkSpec, ...]) -> Float[np.ndarray, "groups groups"]:
    """How far apart groups are; infinite across zones, priced links, and nodes of different shape."""
    fabric = np.array([_fabric(group) for group in groups])
    properties = [
        np.array([_compute(group.device) for group in groups]),
        np.array([group.device.memory_bytes for group in groups]),
        np.array([group.device.memory_bandwidth_bytes_per_s for group in groups]),
        np.array([_reached(group.domains[0]) for group in groups]),
        fabric,
    ]
    apart = ratio_apart(properties)
    place = {group.name: i for i, group in enumerate(groups)}
    for link in links:
        a, b = (place[name] for name in link.between)
        # A link no slower than what leaves either group sets nothing apart.
        slower = float(max(fabric[a], fabric[b])) / link.bandwidth_bytes_per_s - 1
        apart[a, b] = apart[b, a] = math.inf if link.price_per_gb else max(apart[a, b], slower)
    for a, b in combinations(range(len(groups)), 2):
        if _shape(groups[a]) != _shape(groups[b]):
            apart[a, b] = apart[b, a] = math.inf
    return apart


def _compute(device: DeviceSpec) -> float:
    """Large products per second at 16 bits, or at the widest the device computes in."""
    peak = next((peak for dtype in _COMPUTE_DTYPES if (peak := device.peak(dtype))), device.peak_flop_per_s[0][1])
    return peak * device.efficiency.gemm_fraction


def _reached(domain: DomainSpec) -> float:
    return domain.bandwidth_bytes_per_s * domain.efficiency


def _fabric(group: NodeGroup) -> float:
    """Bytes per second and device that reach another node."""
    outer, node = group.domains[-1], group.device.node or UNKNOWN_NODE
    shown = outer.name == node.fabric_name
    return _reached(outer) if shown else fabric_of(group)[0] * node.fabric_efficiency


def _shape(group: NodeGroup) -> tuple[object, ...]:
    """What must be equal: planners lay tensor groups over nodes and domains."""
    return group.devices_per_node, group.zone, min(group.domains[0].size, group.devices_per_node)


def _ranges(cluster: ClusterSpec) -> list[tuple[int, int]]:
    """First and last device of each group."""
    ends = list(accumulate(group.devices for group in cluster.groups))
    return [(end - group.devices, end - 1) for end, group in zip(ends, cluster.groups, strict=True)]


def _cut(cluster: ClusterSpec, tree: Linkage, tolerance: float) -> tuple[AlikeDevices, ...]:
    members: dict[int, list[int]] = {}
    for group, label in enumerate(tree.labels(tolerance).tolist()):
        members.setdefault(label, []).append(group)
    ranges = _ranges(cluster)
    apart = _apart(list(cluster.groups), cluster.links)
    return tuple(
        AlikeDevices(
            groups=tuple(cluster.groups[i].name for i in one),
            devices=tuple(ranges[i] for i in one),
            counts_as=weakest_of([cluster.groups[i] for i in one], cluster.links),
            apart=float(apart[np.ix_(one, one)].max()),
        )
        for one in members.values()
    )


def weakest_of(groups: Sequence[NodeGroup], links: Iterable[LinkSpec]) -> NodeGroup:
    """Groups as one: each property the least of them, links between them included.

    Nodes of different sizes count as more nodes of a size that divides them all.

    Args:
        groups: the groups of a cluster.
        links: the links between them, among others.
    """
    if len(groups) == 1:
        return groups[0]
    slowest = min(groups, key=lambda group: _compute(group.device))
    device = replace(
        slowest.device,
        memory_bytes=min(group.device.memory_bytes for group in groups),
        memory_bandwidth_bytes_per_s=min(group.device.memory_bandwidth_bytes_per_s for group in groups),
    )
    each = math.gcd(*(group.devices_per_node for group in groups))
    whole = sum(group.devices for group in groups)
    names = {group.name for group in groups}
    between = [link for link in links if set(link.between) <= names]
    inner = min((group.domains[0] for group in groups), key=_reached)
    inner = replace(inner, size=math.gcd(*(n for group in groups for n in (group.domains[0].size, group.devices))))
    outer = _between(groups, between, slowest, whole)
    within = tuple(domain for domain in _node_domains(slowest) if inner.size < domain.size <= each)
    prices = [group.price_per_hour for group in groups]
    return NodeGroup(
        name=AND.join(group.name for group in groups),
        device=device,
        nodes=whole // each,
        devices_per_node=each,
        domains=(*([inner] if inner.size > 1 else []), *within, outer),
        zone=groups[0].zone,
        price_per_device_hour=None
        if any(price is None for price in prices)
        else sum(g.devices * (g.price_per_hour or 0.0) for g in groups) / whole,
        preemptions_per_node_hour=sum(g.nodes * g.preemptions_per_node_hour for g in groups) * each / whole,
        host=min((group.host for group in groups), key=lambda host: host.memory_bytes or math.inf),
        unequal_nodes=_unequal_nodes(groups),
        counted=tuple(one for group in groups for one in group.counted or (group,)),
    )


def _between(groups: Sequence[NodeGroup], links: Sequence[LinkSpec], slowest: NodeGroup, devices: int) -> DomainSpec:
    """What joins the nodes of groups that count as one: the slowest of their fabrics and of the links between them.

    What leaves a group of one node leaves it over links alone, its fabric among nodes of its own being none; devices
    of one host meet in it.
    """
    node = slowest.device.node or UNKNOWN_NODE
    several = [group for group in groups if group.nodes > 1 or not links]
    fabrics = [fabric_of(group) for group in several]
    efficiencies = [link.efficiency for link in links if link.efficiency is not None]
    in_host = not several and len(efficiencies) == len(links) and all(link.basis == "assumed" for link in links)
    return DomainSpec(
        name=node.host_name if in_host else node.fabric_name,
        size=devices,
        bandwidth_bytes_per_s=min([speed for speed, _ in fabrics] + [link.bandwidth_bytes_per_s for link in links]),
        efficiency=min(efficiencies) if in_host else min(group.domains[-1].efficiency for group in groups),
        latency_s=max([latency for _, latency in fabrics] + [link.latency_s for link in links]),
        basis="assumed" if any(link.basis == "assumed" for link in links) else groups[0].domains[-1].basis,
    )


def _unequal_nodes(groups: Sequence[NodeGroup]) -> tuple[tuple[int, int], ...]:
    """Nodes of each group and devices of such a node; nothing where all nodes are equal."""
    sizes = [one for group in groups for one in group.unequal_nodes or ((group.nodes, group.devices_per_node),)]
    return tuple(sizes) if len({devices for _, devices in sizes}) > 1 else ()


def _node_domains(group: NodeGroup) -> list[DomainSpec]:
    return [domain for domain in group.domains if domain.size <= group.devices_per_node]


def _inner_domains(cluster: ClusterSpec) -> tuple[AlikeDevices, ...] | None:
    """Each group cut into its largest domains below the whole; None where no group has any."""
    cut = [_domains_of(group, devices) for group, devices in zip(cluster.groups, _ranges(cluster), strict=True)]
    return tuple(cut) if any(island.copies > 1 for island in cut) else None


def _domains_of(group: NodeGroup, devices: tuple[int, int]) -> AlikeDevices:
    whole = AlikeDevices(groups=(group.name,), devices=(devices,), counts_as=group, apart=0.0)
    inner = [domain for domain in group.domains if group.devices_per_node <= domain.size < group.devices]
    if not inner or group.devices % inner[-1].size or inner[-1].size % group.devices_per_node:
        return whole
    size = inner[-1].size
    part = replace(
        group,
        nodes=size // group.devices_per_node,
        domains=tuple(domain for domain in group.domains if domain.size <= size),
    )
    return replace(whole, counts_as=part, copies=group.devices // size)
