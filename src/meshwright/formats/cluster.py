"""Clusters from the one-line form of `--gpus`, and the nested domains of a group of equal nodes.

The one-line form is a comma list of `[NODESx]COUNTxDEVICE`: `64xH100` (nodes of the device's usual size), `8x8xH100`
(8 nodes of 8), `32xA100-80,64xH100`; `1xRTX4090+1xRTX3090` are unlike devices of one host.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, cast

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec, DomainSpec, HostSpec, LinkSpec, NodeGroup
from meshwright.specs.device import Basis, DeviceSpec, NodeDefaults
from meshwright.units import GIGA, significant

DeviceLookup = Callable[[str], DeviceSpec]
"""From a name or alias to the device; raises UnsupportedError for an unknown name."""

MAX_GROUPS = 64
_MAX_TEXT = 10_000
_EXAMPLE = "for example 64xH100, 8x8xH100 (8 nodes of 8) or 32xA100-80,64xH100"

_NUMBER = r"[+-]?[0-9][0-9_.]*"
_ITEM = re.compile(rf"(?:({_NUMBER})\s*[xX×*]\s*)?({_NUMBER})\s*[xX×*]\s*(\S.*)", re.DOTALL)
_IN_HOST = re.compile(r"\+(?=\s*[0-9]+\s*[xX×*])")
_OUTER_COMMA = re.compile(r",(?![^()]*\))")
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
    """A number nobody gave that the answer rests on."""

    name: str
    value: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLinks:
    """Numbers of a group that replace those of the device's usual node, SI, per device and direction."""

    intra_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    """Between devices of a node that share no scale-up domain."""
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


def _no_node(name: str) -> bool:
    return False


def parse_gpus(text: str, lookup: DeviceLookup, is_node: Callable[[str], bool] = _no_node) -> ClusterSpec:
    """The cluster of the one-line form.

    Args:
        text: comma list of `[NODESx]COUNTxDEVICE`; `COUNTxDEVICE+COUNTxDEVICE` for unlike devices of one host.
        lookup: finds a device by name.
        is_node: whether a name stands for a whole node, whose devices `lookup` finds: `4xp5.48xlarge` are 32 devices.

    Returns:
        one group per entry; entries of one device get numbered names. Numbers that were not given come from the
        device's usual node; `assumptions` lists them.

    Raises:
        InputError: the text is not of this form, or its numbers cannot be; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    wrong, given = Refusals("MW210"), cast(object, text)
    if not isinstance(given, str):
        wrong.add(f"gpus is {given!r:.60}", "it is a text that says how many of which device")
        wrong.done()
    if not text.strip():
        wrong.add("--gpus is empty", "it says how many of which device")
        wrong.done()
    items = [item.strip() for item in _OUTER_COMMA.split(text[:_MAX_TEXT])]
    if len(text) > _MAX_TEXT or len(items) > MAX_GROUPS:
        wrong.add(f"--gpus lists {len(items)} groups or more", f"at most {MAX_GROUPS} groups can be planned")
        wrong.done()
    reading = _Reading(lookup, is_node, wrong)
    found = [_parse_host(item, reading) for item in items]
    shapes = [shape for own in found for shape in own]
    total = sum(nodes * per_node for _, nodes, per_node in shapes)
    if total > MAX_DEVICES:
        wrong.add(
            f"--gpus asks for {_digits(total)} devices",
            f"at most {MAX_DEVICES:,} devices can be planned",
            "plan one replica and scale its data-parallel degree",
        )
    if wrong:
        wrong.done()
    names = group_names([device.name for device, _, _ in shapes])
    groups = [
        node_group(name=name, device=device, nodes=nodes, devices_per_node=per_node)
        for name, (device, nodes, per_node) in zip(names, shapes, strict=True)
    ]
    upto = itertools.pairwise(itertools.accumulate((len(own) for own in found), initial=0))
    together = [groups[low:high] for item, (low, high) in zip(items, upto, strict=True) if _IN_HOST.search(item)]
    inside = {frozenset(link.between): link for hosted in together for link in host_links(hosted)}
    return ClusterSpec(
        name=",".join(items),
        groups=tuple(groups),
        links=tuple(default_links(groups, None, inside)),
        notes=tuple(_uneven(shapes)),
    )


def host_links(groups: Sequence[NodeGroup]) -> Iterator[LinkSpec]:
    """Links between unlike devices of one host: the slower of both slots, at what drivers of both reach."""
    for pair in itertools.combinations(groups, 2):
        nodes = [group.device.node or UNKNOWN_NODE for group in pair]
        yield LinkSpec(
            between=(pair[0].name, pair[1].name),
            bandwidth_bytes_per_s=min(node.host_bytes_per_s for node in nodes),
            efficiency=min(node.host_efficiency for node in nodes),
            latency_s=_HOST_LATENCY_S,
            basis="assumed",
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What entries are read with."""

    lookup: DeviceLookup
    is_node: Callable[[str], bool]
    wrong: Refusals


def _parse_host(item: str, reading: _Reading) -> list[tuple[DeviceSpec, int, int]]:
    """The shapes of an entry; each part of one that joins devices by `+` is one node's."""
    parts = [part.strip() for part in _IN_HOST.split(item)]
    if len(parts) == 1:
        return _parse_item(item, reading)
    shapes = []
    for part in parts:
        own = _parse_item(part, reading)
        if len(own) > 1 or (own and own[0][1] > 1):
            reading.wrong.add(f"--gpus entry {part[:60]!r}: more than one node", "a + joins the devices of one host")
        shapes += own
    return shapes


def _parse_item(item: str, reading: _Reading) -> list[tuple[DeviceSpec, int, int]]:
    """Device, nodes and devices of a node of an entry: one group, or full nodes and one that is not."""
    wrong = reading.wrong
    shown = item if len(item) <= 60 else f"{item[:57]}..."
    match = _ITEM.fullmatch(item)
    if match is None or re.match(r"[0-9]+\s*[xX×*]", match[3]):
        why = "each entry is [NODESx]COUNTxDEVICE" if item else "an entry is empty"
        wrong.add(f"--gpus entry {shown!r} is not understood", why)
        return []
    nodes_text, count_text, device_name = match.groups()
    nodes = _whole(nodes_text, "nodes", shown, wrong) if nodes_text is not None else None
    count = _whole(count_text, "devices", shown, wrong)
    device = wrong.device(device_name.strip(), reading.lookup)
    if device is None or count is None or (nodes is None and nodes_text is not None):
        return []
    usual = (device.node or UNKNOWN_NODE).devices_per_node
    if reading.is_node(device_name):
        if nodes is not None:
            say = f"{nodes * count}x{device_name.strip()[:40]}"
            wrong.add(f"--gpus entry {shown!r}: nodes of nodes", "a machine type is a whole node", f"{say} says so")
        return [(device, count, usual)]
    if nodes is not None:
        return [(device, nodes, count)]
    full, rest = divmod(count, usual)
    return [shape for shape in ((device, full, usual), (device, 1, rest)) if shape[1] and shape[2]]


def _uneven(shapes: Sequence[tuple[DeviceSpec, int, int]]) -> Iterator[str]:
    """Entries that were read as full nodes and one that is not."""
    for (device, full, usual), (other, last, rest) in itertools.pairwise(shapes):
        if device is other and last == 1 and rest < usual == (device.node or UNKNOWN_NODE).devices_per_node:
            said = f"{full} node{'s' if full > 1 else ''} of {usual} and one of {rest}"
            yield f"{full * usual + rest} {device.name} are {said}; say NODESxCOUNTx{device.name} for equal nodes"


def _whole(text: str, noun: str, item: str, wrong: Refusals) -> int | None:
    digits = text.replace("_", "")
    if not re.fullmatch(r"\+?[0-9]+", digits):
        wrong.add(f"--gpus entry {item!r}: {text[:20]} {noun}", f"the number of {noun} must be a whole number above 0")
        return None
    significant_digits = digits.lstrip("+0")
    if not significant_digits:
        wrong.add(f"--gpus entry {item!r}: 0 {noun}", f"the number of {noun} must be a whole number above 0")
        return None
    if len(significant_digits) > 9 or int(significant_digits) > MAX_DEVICES:
        wrong.add(
            f"--gpus entry {item!r}: too many {noun}",
            f"at most {MAX_DEVICES:,} devices can be planned",
            "plan one replica and scale its data-parallel degree",
        )
        return None
    return int(significant_digits)


def _digits(number: int) -> str:
    return f"{number:,}" if number < 10**18 else "too many"


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
                bandwidth_bytes_per_s=links.inter_bytes_per_s or node.fabric_bytes_per_s,
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
    return node.fabric_bytes_per_s, node.fabric_latency_s


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
            node.fabric_name: node.fabric_bytes_per_s,
        }
        if group.devices_per_node != node.devices_per_node:
            shape = f"{group.nodes} of {group.devices_per_node} (usual: {node.devices_per_node})"
            found.append(Assumption(name=f"{group.name} nodes", value=shape, basis="assumed"))
        inner = group.domains[0]
        if group.devices_per_node < inner.size < min(node.scaleup_domain, group.devices):
            cut = f"{inner.size} of {node.scaleup_domain}"
            found.append(Assumption(name=f"{group.name} {inner.name} domain", value=cut, basis="assumed"))
        for domain in group.domains:
            if domain.bandwidth_bytes_per_s in (speeds.get(domain.name), node.scaleup_bytes_per_s) and domain.size > 1:
                speed = f"{significant(domain.bandwidth_bytes_per_s / GIGA)} GB/s per device and direction"
                staged = domain.name == node.host_name and node.host_efficiency < UNKNOWN_NODE.host_efficiency
                through = ", through host memory: drivers allow no peer copies" if staged else ""
                value = f"{speed} x {significant(domain.efficiency)} achieved, {domain.size} devices{through}"
                found.append(Assumption(name=f"{group.name} {domain.name}", value=value, basis=domain.basis))
    for link in cluster.links:
        if link.basis == "assumed":
            speed = f"{significant(link.bandwidth_bytes_per_s / GIGA)} GB/s per device"
            value = f"{speed}, the slower of both fabrics"
            if link.efficiency is not None:
                value = f"{speed} x {significant(link.efficiency)} achieved, the slower of both slots of a host"
            found.append(Assumption(name=f"link {link.between[0]} - {link.between[1]}", value=value, basis="assumed"))
    found += [Assumption(name="cluster", value=note, basis="assumed") for note in cluster.notes]
    return tuple(found)
