"""Cluster files: groups of equal nodes and the links between groups or zones, as TOML, JSON or YAML.

[[group]]
name = "new"
device = "H100"
nodes = 8
devices_per_node = 8
zone = "a"
ram_gb = 1024                   # of one host, for what is offloaded; ram_gb_s, pcie_gb_s, pcie_devices likewise
nvme_gb_s = 7                   # of its drives together; nvme_gb, nvme_write_gb_s
[[link]]                        # between two groups or two zones
between = ["new", "old"]
gb_s = 25
latency_us = 20
price_per_gb = 0.02
transport = "gloo"              # between devices under two collective libraries, such as NCCL and RCCL

A speed or a size is a number in the unit of its key, or a text with its own: `inter_gb_s = "400Gb/s"` is 50 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from pydantic import ValidationError

from meshwright.errors import InputError, MeshwrightError, UnsupportedError, nearest
from meshwright.formats.cluster import (
    UNKNOWN_NODE,
    DeviceLookup,
    GroupLinks,
    Refusals,
    default_links,
    group_names,
    node_group,
    through_hosts,
)
from meshwright.formats.cluster_tables import ClusterTable, GroupTable, LinkTable
from meshwright.formats.link_ends import LinkEnds, stray_ends
from meshwright.formats.problems import problems_of
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec, HostSpec, LinkSpec, NodeGroup
from meshwright.specs.collective_libraries import collective_library
from meshwright.specs.transports import Transport, transports
from meshwright.units import GIB, GIGA, MICRO

DEFAULT_LATENCY_US = 20.0
"""Latency between groups, where a link says its speed and not its latency."""


def cluster_from_table(
    data: Mapping[str, object], lookup: DeviceLookup, *, name: str = "cluster", notes: tuple[str, ...] = ()
) -> ClusterSpec:
    """The cluster of a table of keys, as a file holds it.

    Args:
        data: keys `group`, `link` and `name`.
        lookup: finds a device by name.
        name: the name of the cluster where the table has none.
        notes: what was taken for granted where the table was made from another description.

    Raises:
        InputError: any key cannot be used; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    try:
        table = ClusterTable.model_validate(data, context=lookup)
    except ValidationError as error:
        raise _refusal(error, data, lookup) from None
    wrong = Refusals("MW211")
    given = [group.name for group in table.group if group.name is not None]
    for repeated in sorted({one for one in given if given.count(one) > 1}):
        wrong.add(f"two groups are named {repeated!r}", "names of groups must differ", "rename one", name="group.name")
    total = sum(group.nodes * group.per_node for group in table.group)
    if total > MAX_DEVICES:
        wrong.add(
            f"the groups hold {total:,} devices",
            f"at most {MAX_DEVICES:,} devices can be planned",
            "plan one replica and scale its data-parallel degree",
            name="group.nodes",
        )
    if wrong:
        stray_ends(data, lookup, wrong)
        wrong.done()
    names = group_names([group.name or group.device.name for group in table.group])
    groups = [_node_group(group, name) for group, name in zip(table.group, names, strict=True)]
    fabrics = {name: _fabric(group) for group, name in zip(table.group, names, strict=True)}
    usual = {frozenset(link.between): link for link in default_links(groups, fabrics)}
    links = _links(table.link, groups, usual, wrong)
    if wrong:
        wrong.done()
    return ClusterSpec(
        name=table.name or name,
        groups=tuple(groups),
        links=tuple(links.values()),
        notes=notes,
        pue=table.pue,
        carbon_kg_per_kwh=table.carbon_kg_per_kwh,
    )


def _refusal(error: ValidationError, data: Mapping[str, object], lookup: DeviceLookup) -> MeshwrightError:
    """All problems; unknown devices have an exit code of their own where nothing else is wrong."""
    ends = Refusals("MW211")
    stray_ends(data, lookup, ends)
    problems = (*problems_of(error, ClusterTable), *ends.problems)
    faults = [one.get("ctx", {}).get("error") for one in error.errors(include_url=False)]
    if not ends and all(isinstance(fault, UnsupportedError) for fault in faults):
        return UnsupportedError(problems, code="MW402")
    return InputError(problems, code="MW211")


def _node_group(group: GroupTable, name: str) -> NodeGroup:
    device = group.device
    if group.memory_gib is not None:
        device = replace(device, memory_bytes=group.memory_gib * GIB)
    return node_group(
        name=name,
        device=device,
        nodes=group.nodes,
        devices_per_node=group.per_node,
        links=GroupLinks(
            intra_bytes_per_s=None if group.intra_gb_s is None else group.intra_gb_s * GIGA,
            host_bytes_per_s=None if group.host_gb_s is None else group.host_gb_s * GIGA,
            inter_bytes_per_s=None if group.inter_gb_s is None else group.inter_gb_s * GIGA,
            inter_latency_s=None if group.latency_us is None else group.latency_us * MICRO,
            scaleup_domain=group.nvlink_domain,
            basis=group.basis,
        ),
        zone=group.zone,
        price_per_device_hour=group.price_per_device_hour,
        power_w_per_device=group.power_w,
        preemptions_per_node_hour=group.preemptions_per_hour,
        host=_host(group),
    )


def _host(group: GroupTable) -> HostSpec:
    """What the file says of a node's host."""

    def si(value: float | None) -> float | None:
        return None if value is None else value * GIGA

    return HostSpec(
        memory_bytes=si(group.ram_gb),
        memory_bytes_per_s=si(group.ram_gb_s),
        link_bytes_per_s=si(group.pcie_gb_s),
        link_devices=group.pcie_devices,
        disk_bytes=si(group.nvme_gb),
        disk_read_bytes_per_s=si(group.nvme_gb_s),
        disk_write_bytes_per_s=si(group.nvme_write_gb_s),
    )


def _fabric(group: GroupTable) -> tuple[float, float]:
    """What leaves a group, also where the group is one scale-up domain and shows no fabric."""
    node = group.device.node or UNKNOWN_NODE
    return (
        node.fabric_share(group.per_node) if group.inter_gb_s is None else group.inter_gb_s * GIGA,
        node.fabric_latency_s if group.latency_us is None else group.latency_us * MICRO,
    )


def _links(
    tables: list[LinkTable], groups: list[NodeGroup], usual: dict[frozenset[str], LinkSpec], wrong: Refusals
) -> dict[frozenset[str], LinkSpec]:
    """Links by their two groups; one between zones holds for each pair of their groups that has none of its own.

    Args:
        tables: the tables of the file.
        groups: the groups of the cluster.
        usual: what joins two groups where the file does not say it.
        wrong: what is wrong goes here.
    """
    between_groups: dict[frozenset[str], LinkSpec] = {}
    between_zones: dict[frozenset[str], LinkSpec] = {}
    known = LinkEnds.of((group.name, group.zone) for group in groups)
    for i, link in enumerate(tables):
        where = f"link[{i}]"
        ends = link.between
        sides = [known.named(end, where, wrong) for end in ends]
        if sides[0] is None or sides[1] is None:
            continue
        (kind, first), (other_kind, second) = sides[0], sides[1]
        pairs = [frozenset((a, b)) for a in first for b in second if a != b]
        if not pairs:
            wrong.add(
                f"{where}.between joins {ends[0]!r} and {ends[1]!r}",
                "a link joins two different groups",
                "the speed inside a group is its inter_gb_s",
                name=f"{where}.between",
            )
        target = between_groups if kind == other_kind == "group" else between_zones
        for pair in pairs:
            if pair in target and first != second:
                wrong.add(
                    f"{where}.between: {' and '.join(sorted(pair))} have two links",
                    "two groups have one link",
                    "keep one of them",
                    name=f"{where}.between",
                )
            joined = [group for group in groups if group.name in pair]
            carried = _carried(link, joined, where, wrong)
            target[pair] = _link(link, usual[pair], joined, carried)
    _check_zones(groups, between_zones, between_groups, wrong)
    return usual | between_zones | between_groups


def _carried(table: LinkTable, ends: list[NodeGroup], where: str, wrong: Refusals) -> Transport | None:
    """The transport of a link, known and able to carry tensors of both ends; None where none is named or needed."""
    if table.transport is None:
        return None
    known = transports()
    found = known.get(table.transport.lower())
    if found is None:
        close = nearest(table.transport[:40], known)
        wrong.add(
            f"{where}.transport is {table.transport[:40]!r}",
            f"transports: {', '.join(known)}",
            f"did you mean {close[0]}?" if close else "name one of them",
            name=f"{where}.transport",
        )
        return None
    libraries = {collective_library(group.device.vendor) for group in ends}
    if len(libraries) == 1 and None not in libraries:
        return None  # they share a communicator, which is no slower
    for group in ends:
        if group.device.vendor not in found.vendors:
            able = [one.name for one in known.values() if all(end.device.vendor in one.vendors for end in ends)]
            wrong.add(
                f"{where}.transport: {found.name} carries no tensors of {group.name}",
                f"it reads memory of {', '.join(found.vendors)} devices, and {group.device.name} is of "
                f"{group.device.vendor or 'an unknown vendor'}",
                f"name one that carries both: {', '.join(able)}" if able else "leave transport out",
                name=f"{where}.transport",
            )
    return found


def _link(table: LinkTable, usual: LinkSpec, ends: list[NodeGroup], carried: Transport | None) -> LinkSpec:
    """A link of the file; one without gb_s keeps the speed that is assumed without it, copies to the hosts included."""
    found = replace(usual, price_per_gb=table.price_per_gb or 0.0, transport=carried.name if carried else None)
    if table.gb_s is None and carried is not None and carried.path == "hosts":
        found = through_hosts(found, ends)
    if table.gb_s is not None:
        latency_us = DEFAULT_LATENCY_US if table.latency_us is None else table.latency_us
        found = replace(found, bandwidth_bytes_per_s=table.gb_s * GIGA, latency_s=latency_us * MICRO, basis=table.basis)
        found = replace(found, efficiency=table.efficiency)
    elif table.latency_us is not None:
        found = replace(found, latency_s=table.latency_us * MICRO)
    return found


def _check_zones(
    groups: list[NodeGroup],
    between_zones: dict[frozenset[str], LinkSpec],
    between_groups: dict[frozenset[str], LinkSpec],
    wrong: Refusals,
) -> None:
    """Where any two zones have a link, all have: a fabric's speed and no price across a hole would be a guess."""
    zone = {group.name: group.zone for group in groups if group.zone is not None}
    if not any(len({zone.get(name) for name in pair}) > 1 for pair in between_zones):
        return
    joined = between_zones.keys() | between_groups.keys()
    apart = [(a, b) for a, b in combinations(zone, 2) if zone[a] != zone[b] and frozenset((a, b)) not in joined]
    for one, other in sorted({tuple(sorted((zone[a], zone[b]))) for a, b in apart}):
        wrong.add(
            f"zones {one!r} and {other!r} have no link",
            "links of other zones are given, and the link between these two cannot be derived from them",
            f'add [[link]] between = ["zone:{one}", "zone:{other}"] with gb_s, and price_per_gb where it is paid for',
            name="link",
        )
    for name in (group.name for group in groups if group.name not in zone):
        if any(frozenset((name, other)) not in joined for other in zone):
            wrong.add(
                f"group {name} has no zone",
                "links between zones are given, and none of them says how it is joined to the others",
                f'write zone = "{next(iter(zone.values()))}", or another one, in its [[group]]',
                name="group.zone",
            )
