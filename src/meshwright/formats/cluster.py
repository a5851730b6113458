"""The nested domains of a group of equal nodes, the links between groups, and what of both nobody stated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.specs.cluster import ClusterSpec, DomainSpec, HostSpec, LinkSpec, NodeGroup
from meshwright.specs.device import Basis, DeviceSpec, NodeDefaults
from meshwright.units import GIGA, significant

DeviceLookup = Callable[[str], DeviceSpec]
"""Finds a device by its name or alias; raises UnsupportedError for an unknown name."""

MAX_GROUPS = 64
_EXAMPLE = "for example 64xH100, 8x8xH100 (8 nodes of 8) or 32xA100-80,64xH100"

_HOST_EFFICIENCY = 0.75
_HOST_LATENCY_S = 5.7e-6
"""PCIe between devices of a node. Source: 24 of 32 GB/s all-reduce bus bandwidth, NVIDIA GTC24 S62129; hop latency of
NCCL src/graph/tuning.cc (ring, Simple protocol)."""

UNKNOWN_NODE = NodeDefaults(
    devices_per_node=8,
    scaleup_domain=1,
    scaleup_name="PCIe",
    scaleup_bytes_per_s=31.5 * GIGA,
    scaleup_efficiency=_HOST_EFFICIENCY,
    scaleup_latency_s=_HOST_LATENCY_S,
    scaleup_in_switch_efficiency=0.0,
    host_name="PCIe",
    host_bytes_per_s=31.5 * GIGA,
    fabric_name="fabric",
    fabric_bytes_per_s=25 * GIGA,
    fabric_efficiency=0.9,
    fabric_latency_s=14e-6,
)
"""The node of a device that does not say which nodes it comes in; all assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What the answer rests on: a number nobody gave, or what the question stated."""

    name: str
    value: str
    basis: Basis | Literal["stated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLinks:
    """Numbers of a group that replace those of the device's usual node, SI, per device and direction."""

    intra_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    """Bandwidth between devices of a node that share no scale-up domain."""
    inter_bytes_per_s: float | None = None
    inter_latency_s: float | None = None
    scaleup_domain: int | None = None
    basis: Basis = "datasheet"
    """Where the numbers come from. A measured speed is what collectives reach: no efficiency is applied to it."""


@dataclass(slots=True)
class Refusals:
    """Problems of one cluster; unknown devices apart, as they have an exit code of their own."""

    code: str
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Problem] = field(default_factory=list)

    def add(self, what: str, why: str, fix: str = _EXAMPLE, *, name: str = "gpus") -> None:
        """One more problem."""
        self.problems.append(Problem(what=what, why=why, fix=fix, field=name))

    def device(self, name: str, lookup: DeviceLookup) -> DeviceSpec | None:
        """The device, or None with the problem noted."""
        try:
            return lookup(name)
        except UnsupportedError as error:
            self.unknown.extend(problem for problem in error.problems if problem not in self.unknown)
        except InputError as error:
            self.problems.extend(error.problems)
        return None

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.problems or self.unknown)

    def done(self) -> NoReturn:
        """Raise all problems together.

        Raises:
            InputError: anything but unknown devices is wrong.
            UnsupportedError: only devices are unknown.
        """
        if self.problems:
            raise InputError([*self.problems, *self.unknown], code=self.code)
        raise UnsupportedError(self.unknown, code="MW402")


def host_links(groups: Sequence[NodeGroup]) -> Iterator[LinkSpec]:
    """Links between unlike devices of one host: the slower of both slots, at what drivers of both reach."""
    yield from links_in_host([(group.name, group.device) for group in groups])


def links_in_host(named: Sequence[tuple[str, DeviceSpec]]) -> Iterator[LinkSpec]:
    """Links through the host, as `host_links`, for devices by the names of their groups."""
    for (first, one), (second, other) in itertools.combinations(named, 2):
        nodes = [device.node or UNKNOWN_NODE for device in (one, other)]
        yield LinkSpec(
            between=(first, second),
            bandwidth_bytes_per_s=min(node.host_bytes_per_s for node in nodes),
            efficiency=min(node.host_efficiency for node in nodes),
            latency_s=_HOST_LATENCY_S,
            basis="assumed",
        )


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of a number that is not above a limit."""
    return next(divisor for divisor in range(min(number, at_most), 0, -1) if number % divisor == 0)


def group_names(wanted: Sequence[str | None]) -> list[str]:
    """Names of groups that differ: `H100`, `H100-2`, ... where several want the same."""
    taken = {name for name in wanted if name is not None}
    used: set[str] = set()
    names = []
    for number, name in enumerate(wanted, start=1):
        base = name or f"group{number}"
        candidates = itertools.chain([base], (f"{base}-{i}" for i in itertools.count(2)))
        chosen = next(c for c in candidates if c not in used and (c == base or c not in taken))
        used.add(chosen)
        names.append(chosen)
    return names


def node_group(
    *,
    name: str,
    device: DeviceSpec,
    nodes: int,
    devices_per_node: int,
    links: GroupLinks = GroupLinks(),
    zone: str | None = None,
    price_per_device_hour: float | None = None,
    power_w_per_device: float | None = None,
    preemptions_per_node_hour: float = 0.0,
    host: HostSpec | None = None,
) -> NodeGroup:
    """Equal nodes with their nested domains; what `links` leaves open comes from the device's usual node.

    Raises:
        InputError: numbers no group can have.
    """
    return NodeGroup(
        name=name,
        device=device,
        nodes=nodes,
        devices_per_node=devices_per_node,
        domains=group_domains(device.node or UNKNOWN_NODE, nodes, devices_per_node, links),
        zone=zone,
        price_per_device_hour=price_per_device_hour,
        power_w_per_device=power_w_per_device,
        preemptions_per_node_hour=preemptions_per_node_hour,
        host=host or HostSpec(),
    )


def group_domains(node: NodeDefaults, nodes: int, devices_per_node: int, links: GroupLinks) -> tuple[DomainSpec, ...]:
    """Nested domains, innermost first: scale-up link, host link where that is less than a node, fabric.

    A scale-up domain may be less than a node (pairs of bridged cards), a node (NVSwitch) or many nodes (NVL72, a TPU
    slice). One of many nodes is cut to equal parts where the group does not fill whole ones: 128 GB200 are taken as two
    domains of 64, as schedulers place them, not as 72 and 56.
    """
    total = nodes * devices_per_node
    span = scaleup_span(node, nodes, devices_per_node, links)
    domains = []
    if span > 1 or total == 1:
        intra = links.intra_bytes_per_s
        domains.append(
            DomainSpec(
                name=node.scaleup_name,
                size=span,
                bandwidth_bytes_per_s=intra or node.scaleup_bytes_per_s,
                efficiency=_efficiency(node.scaleup_efficiency, intra, links),
                latency_s=node.scaleup_latency_s,
                in_switch_efficiency=node.scaleup_in_switch_efficiency,
                topology=node.scaleup_topology,
                basis=_basis(node, "scaleup_bytes_per_s", intra, links),
                protocols=node.scaleup_protocols,
            )
        )
    if span < devices_per_node:
        host = links.host_bytes_per_s or (None if domains else links.intra_bytes_per_s)
        domains.append(
            DomainSpec(
                name=node.host_name,
                size=devices_per_node,
                bandwidth_bytes_per_s=host or node.host_bytes_per_s,
                efficiency=_efficiency(node.host_efficiency, host, links),
                latency_s=_HOST_LATENCY_S,
                basis=_basis(node, "host_bytes_per_s", host, links),
            )
        )
    if not domains or domains[-1].size < total:
        latency_s = links.inter_latency_s
        domains.append(
            DomainSpec(
                name=node.fabric_name,
                size=total,
                bandwidth_bytes_per_s=links.inter_bytes_per_s or node.fabric_share(devices_per_node),
                efficiency=_efficiency(node.fabric_efficiency, links.inter_bytes_per_s, links),
                latency_s=node.fabric_latency_s if latency_s is None else latency_s,
                basis=_basis(node, "fabric_bytes_per_s", links.inter_bytes_per_s, links),
            )
        )
    return tuple(domains)


def scaleup_span(node: NodeDefaults, nodes: int, devices_per_node: int, links: GroupLinks) -> int:
    """Devices of the group that share one scale-up domain."""
    total = nodes * devices_per_node
    if links.scaleup_domain is not None:
        return min(links.scaleup_domain, total)
    usual = node.scaleup_domain
    if usual < devices_per_node:
        # A stated speed between the devices of a node holds for the whole node.
        return devices_per_node if links.intra_bytes_per_s else largest_divisor(devices_per_node, usual)
    if usual <= node.devices_per_node:
        return devices_per_node
    nodes_inside = usual // devices_per_node
    even = largest_divisor(nodes, nodes_inside)
    return (even if even * 2 >= min(nodes, nodes_inside) else nodes_inside) * devices_per_node


def _efficiency(usual: float, stated: float | None, links: GroupLinks) -> float:
    return 1.0 if stated is not None and links.basis == "measured" else usual


def _basis(node: NodeDefaults, name: str, stated: float | None, links: GroupLinks) -> Basis:
    if stated is not None:
        return links.basis
    provenance = dict(node.provenance).get(name)
    return provenance.basis if provenance else "assumed"


def fabric_of(group: NodeGroup) -> tuple[float, float]:
    """Bytes per second and device, and seconds of a step, of what leaves the group."""
    node = group.device.node or UNKNOWN_NODE
    outer = group.domains[-1]
    if outer.name == node.fabric_name:
        return outer.bandwidth_bytes_per_s, outer.latency_s
    return node.fabric_share(group.devices_per_node), node.fabric_latency_s


def default_links(
    groups: Sequence[NodeGroup],
    fabrics: Mapping[str, tuple[float, float]] | None = None,
    given: Mapping[frozenset[str], LinkSpec] | None = None,
) -> list[LinkSpec]:
    """A link between each two groups: the one given, else the slower of both fabrics, assumed.

    Args:
        groups: all groups.
        fabrics: bytes/s and latency of what leaves a group, by its name, where the group does not show it.
        given: links by the names of their two groups.
    """
    known = {group.name: (fabrics or {}).get(group.name) or fabric_of(group) for group in groups}
    links = []
    for first, second in itertools.combinations(groups, 2):
        stated = (given or {}).get(frozenset((first.name, second.name)))
        pair = known[first.name], known[second.name]
        links.append(
            stated
            or LinkSpec(
                between=(first.name, second.name),
                bandwidth_bytes_per_s=min(bandwidth for bandwidth, _ in pair),
                latency_s=max(latency for _, latency in pair),
                basis="assumed",
            )
        )
    return links


def through_hosts(link: LinkSpec, ends: Sequence[NodeGroup]) -> LinkSpec:
    """The link where tensors are copied to the hosts, sent from there and copied to the devices, one after the other.

        seconds per byte = 1 / (fabric x efficiency) + sum over both ends of 1 / (slot of the device x efficiency)

    Args:
        link: the link between two groups, at the speed of the fabric.
        ends: both groups.
    """
    nodes = [group.device.node or UNKNOWN_NODE for group in ends]
    slots = [node.host_bytes_per_s * node.host_efficiency for node in nodes]
    reached = link.bandwidth_bytes_per_s * min(node.fabric_efficiency for node in nodes)
    return replace(
        link,
        bandwidth_bytes_per_s=1 / (1 / reached + sum(1 / slot for slot in slots)),
        latency_s=link.latency_s + len(ends) * _HOST_LATENCY_S,
        efficiency=1.0,
    )


def _cut_domain(group: NodeGroup, node: NodeDefaults) -> str | None:
    """How a node of more devices than a scale-up domain was cut; None where into whole ones, or as stated."""
    usual, each, inner = node.scaleup_domain, group.devices_per_node, group.domains[0]
    size = inner.size if inner.name == node.scaleup_name else 1
    if each <= usual or each % usual == 0 or size != largest_divisor(each, usual):
        return None
    cut = f"of {size} (usual: {usual}), the most that divide a node of {each}"
    boards = usual == node.devices_per_node and each < 2 * usual and group.nodes == 1
    other = f"say {each}x{group.device.name} for nodes of {usual} and {each - usual}, or" if boards else "say"
    return f"{cut}; {other} nvlink_domain in a cluster file"


def assumptions(cluster: ClusterSpec) -> tuple[Assumption, ...]:
    """What the cluster takes from its devices' usual nodes, because nobody said otherwise.

    Args:
        cluster: any cluster; a number that equals that of the usual node counts as taken from it.

    Returns:
        shapes of nodes and domains that differ from the usual, link speeds of the usual node with their basis, and
        links between groups, and the notes of the description it was read from.
    """
    found = []
    for group in cluster.groups:
        node = group.device.node or UNKNOWN_NODE
        speeds = {
            node.scaleup_name: node.scaleup_bytes_per_s,
            node.host_name: node.host_bytes_per_s,
            node.fabric_name: node.fabric_share(group.devices_per_node),
        }
        if group.devices_per_node != node.devices_per_node:
            shape = f"{group.nodes} of {group.devices_per_node} (usual: {node.devices_per_node})"
            found.append(Assumption(name=f"{group.name} nodes", value=shape, basis="assumed"))
        inner = group.domains[0]
        if group.devices_per_node < inner.size < min(node.scaleup_domain, group.devices):
            cut = f"{inner.size} of {node.scaleup_domain}"
            found.append(Assumption(name=f"{group.name} {inner.name} domain", value=cut, basis="assumed"))
        if (parted := _cut_domain(group, node)) is not None:
            found.append(Assumption(name=f"{group.name} {node.scaleup_name} domains", value=parted, basis="assumed"))
        for domain in group.domains:
            if domain.bandwidth_bytes_per_s in (speeds.get(domain.name), node.scaleup_bytes_per_s) and domain.size > 1:
                speed = f"{significant(domain.bandwidth_bytes_per_s / GIGA)} GB/s per device and direction"
                staged = domain.name == node.host_name and node.host_efficiency < UNKNOWN_NODE.host_efficiency
                through = ", through host memory: drivers allow no peer copies" if staged else ""
                value = f"{speed} x {significant(domain.efficiency)} achieved, {domain.size:,} devices{through}"
                found.append(Assumption(name=f"{group.name} {domain.name}", value=value, basis=domain.basis))
    for link in cluster.links:
        if link.basis == "assumed":
            speed = f"{significant(link.bandwidth_bytes_per_s / GIGA)} GB/s per device"
            value = f"{speed}, the slower of both fabrics"
            if link.transport is not None:
                value = f"{speed}, by {link.transport} over the slower of both fabrics"
            elif link.efficiency is not None:
                value = f"{speed} x {significant(link.efficiency)} achieved, the slower of both slots of a host"
            found.append(Assumption(name=link.name, value=value, basis="assumed"))
    found += [Assumption(name="cluster", value=note, basis="assumed") for note in cluster.notes]
    return tuple(found)
