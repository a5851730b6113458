"""Where it runs: groups of equal nodes, nested domains inside each, links between groups.

A domain is a set of consecutive devices joined by one kind of link; an NVLink domain is not a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from meshwright.records import fields_of
from meshwright.specs.check import Check, HashedOnce, hashed_once
from meshwright.specs.device import MOST, Basis, DeviceSpec, LinkProtocols

MAX_DEVICES = 1_048_576
AND = " + "
"""Joins the names of groups that count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSpec:
    """One level of the network, innermost first in a group."""

    name: str
    size: int
    """Consecutive devices inside one such domain."""
    bandwidth_bytes_per_s: float
    """Nominal, per device and direction."""
    efficiency: float
    """Large-message share of the nominal bandwidth that collectives reach."""
    latency_s: float
    """Seconds per step of a ring or tree."""
    in_switch_efficiency: float = 0.0
    """Share of the nominal bandwidth that a reduction in the switches reaches (NVLink SHARP, Quantum SHARP); 0 where
    they do not add."""
    topology: Literal["switch", "mesh", "torus"] = "switch"
    basis: Basis = "datasheet"
    protocols: LinkProtocols | None = None
    """Timed protocols of collectives inside the domain, if there are any."""

    def __post_init__(self) -> None:
        check = Check(f"domain {self.name}")
        check.whole("size", self.size)
        if check.positive("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s):
            most = self.bandwidth_bytes_per_s <= MOST
            check.that(most, "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, f"must be at most {MOST:g}")
        if check.positive("efficiency", self.efficiency):
            check.that(self.efficiency <= 1, "efficiency", self.efficiency, "cannot exceed 1")
        check.positive("latency_s", self.latency_s, zero=True)
        check.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """The host of a node: memory, disks and links that offloaded states live in and cross; None where not stated."""

    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    """Nominal, of all channels."""
    link_bytes_per_s: float | None = None
    """Bandwidth per direction between host memory and one device, or those that share a link; None for the device's
    own."""
    link_devices: int = 1
    """Devices that share such a link (two cards behind one PCIe switch)."""
    disk_bytes: float | None = None
    disk_read_bytes_per_s: float | None = None
    """Read bandwidth of all NVMe drives of the host together."""
    disk_write_bytes_per_s: float | None = None
    """None for as fast as reading."""

    def __post_init__(self) -> None:
        check = Check("host")
        for name in ("memory_bytes", "memory_bytes_per_s", "link_bytes_per_s", "disk_bytes", "disk_read_bytes_per_s"):
            if getattr(self, name) is not None:
                check.positive(name, getattr(self, name))
        if self.disk_write_bytes_per_s is not None:
            check.positive("disk_write_bytes_per_s", self.disk_write_bytes_per_s)
            check.that(
                self.disk_read_bytes_per_s is not None,
                "disk_write_bytes_per_s",
                self.disk_write_bytes_per_s,
                "needs the speed of reading beside it",
            )
        check.whole("link_devices", self.link_devices)
        check.done()

    def describe(self) -> dict[str, object]:
        """What is stated, as data."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup(HashedOnce):
    """Equal nodes."""

    name: str
    device: DeviceSpec
    nodes: int
    devices_per_node: int
    domains: tuple[DomainSpec, ...]
    """Innermost first; sizes grow; the last one holds the whole group."""
    zone: str | None = None
    price_per_device_hour: float | None = None
    host: HostSpec = HostSpec()
    power_w_per_device: float | None = None
    """Mean over a step of training, as measured; None for the device's limit."""
    preemptions_per_node_hour: float = 0.0
    """How often a spot node is taken away, beside failures."""
    unequal_nodes: tuple[tuple[int, int], ...] = ()
    """Nodes of each group that counts as this one, and devices of such a node, in order, where these differ. The
    group's own nodes are then as large as the largest size that divides them all."""
    counted: tuple[NodeGroup, ...] = field(default=(), compare=False)
    """The groups that this one stands for, as the cluster states them and in the order of the devices; else empty."""

    def __post_init__(self) -> None:
        check = Check(f"group {self.name}")
        if self.power_w_per_device is not None:
            check.positive("power_w_per_device", self.power_w_per_device)
        check.positive("preemptions_per_node_hour", self.preemptions_per_node_hour, zero=True)
        good = check.whole("nodes", self.nodes) & check.whole("devices_per_node", self.devices_per_node)
        sizes = [domain.size for domain in self.domains]
        check.that(bool(sizes), "domains", sizes, "a group needs at least one domain")
        check.that(sizes == sorted(sizes), "domains", sizes, "must be listed innermost first, sizes growing")
        if good and sizes:
            check.that(
                sizes[-1] >= self.devices,
                "domains",
                sizes,
                f"the outermost must hold all {self.devices} devices of the group",
            )
        if self.unequal_nodes and good:
            held = sum(nodes * devices for nodes, devices in self.unequal_nodes)
            why = f"they hold {held} devices, and the group {self.devices}"
            check.that(held == self.devices, "unequal_nodes", self.unequal_nodes, why)
        check.done()

    @property
    def devices(self) -> int:
        """Devices in the group."""
        return self.nodes * self.devices_per_node

    @property
    def members(self) -> tuple[str, ...]:
        """The groups of a cluster that count as this one; itself where it is no such group."""
        return tuple(self.name.split(AND))

    def first_unequal(self, devices: int) -> tuple[tuple[int, int], ...]:
        """`unequal_nodes` of the first devices of the group; nothing where those nodes are equal.

        Args:
            devices: how many; the last node may have some of its devices alone.
        """
        found: list[tuple[int, int]] = []
        for nodes, each in self.unequal_nodes:
            whole = min(nodes, devices // each)
            part = min(devices - whole * each, each) if whole < nodes else 0
            found += [*([(whole, each)] if whole else []), *([(1, part)] if part else [])]
            devices -= whole * each + part
        return tuple(found) if len({each for _, each in found}) > 1 else ()

    @property
    def price_per_hour(self) -> float | None:
        """Price of one device and hour, the group's own before the device's list price."""
        return self.price_per_device_hour if self.price_per_device_hour is not None else self.device.price_per_hour

    @property
    def busy_power_w(self) -> float | None:
        """Power of one device while it works: the group's own before the device's limit."""
        return self.power_w_per_device if self.power_w_per_device is not None else self.device.power_w

    @property
    def waiting_power_w(self) -> float | None:
        """Power of one device while it waits; a measured mean includes the waiting already."""
        stated = None if self.power_w_per_device is not None else self.device.idle_power_w
        return self.busy_power_w if stated is None else stated


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """What joins two groups or zones, both directions."""

    between: tuple[str, str]
    bandwidth_bytes_per_s: float
    """Bandwidth per direction and device of the smaller side."""
    latency_s: float
    efficiency: float | None = None
    """Large-message share of the bandwidth that is reached; None for that of the fabrics, 1 for a measured speed."""
    basis: Basis = "assumed"
    price_per_gb: float = 0.0
    """USD for 1e9 bytes that cross it, in either direction."""
    transport: str | None = None
    """What carries tensors over it where the devices at its ends share no collective library; None where none does."""

    @property
    def name(self) -> str:
        """`link H100 - A100-80`."""
        return f"link {self.between[0]} - {self.between[1]}"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.positive("price_per_gb", self.price_per_gb, zero=True)
        if self.efficiency is not None and check.positive("efficiency", self.efficiency):
            check.that(self.efficiency <= 1, "efficiency", self.efficiency, "cannot exceed 1")
        check.done()

    def to_dict(self) -> dict[str, object]:
        """As data."""
        unsaid = (name for name in ("efficiency", "transport") if getattr(self, name) is None)
        return fields_of(self, *unsaid)


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec(HashedOnce):
    """All devices of a job, groups in rank order."""

    name: str
    groups: tuple[NodeGroup, ...]
    links: tuple[LinkSpec, ...] = ()
    notes: tuple[str, ...] = ()
    """What was taken for granted when the cluster was read from a description that does not say everything."""
    pue: float = 1.0
    """Power of the whole site over that of its devices: hosts, network, cooling; 1 for the devices alone."""
    carbon_kg_per_kwh: float | None = None
    """CO2-equivalent of the site's electricity; None where nobody says it."""

    def __post_init__(self) -> None:
        check = Check("cluster")
        check.that(1 <= self.pue <= 10, "pue", self.pue, "is at least 1 (the devices alone), and below 10")
        if self.carbon_kg_per_kwh is not None:
            check.positive("carbon_kg_per_kwh", self.carbon_kg_per_kwh, zero=True)
        check.that(bool(self.groups), "groups", [], "must hold at least one group of nodes")
        names = [group.name for group in self.groups]
        check.that(len(set(names)) == len(names), "groups", names, "names of groups must differ")
        check.that(
            self.devices <= MAX_DEVICES,
            "devices",
            self.devices,
            f"at most {MAX_DEVICES:,} devices can be planned",
            "plan one replica and scale its data-parallel degree",
        )
        check.done()

    @property
    def devices(self) -> int:
        """Devices of all groups."""
        return sum(group.devices for group in self.groups)

    @property
    def homogeneous(self) -> bool:
        """One group: every device is like every other."""
        return len(self.groups) == 1

    def part(self, name: str, groups: tuple[NodeGroup, ...]) -> ClusterSpec:
        """Some of its nodes at the same site, without links between groups.

        Args:
            name: the name of the part.
            groups: the groups that stand in place of its own.
        """
        return ClusterSpec(name=name, groups=groups, pue=self.pue, carbon_kg_per_kwh=self.carbon_kg_per_kwh)

    def link(self, one: str, other: str) -> LinkSpec | None:
        """What joins two groups; None where nothing is said of it."""
        names = {one, other}
        return next((link for link in self.links if set(link.between) == names), None)

    def describe(self) -> dict[str, object]:
        """The `cluster` entry of a plan set."""
        return {
            "name": self.name,
            "devices": self.devices,
            "links": [link.to_dict() for link in self.links],
            "groups": [
                {
                    "name": group.name,
                    "device": group.device.name,
                    "nodes": group.nodes,
                    "devices_per_node": group.devices_per_node,
                    "memory_bytes": group.device.memory_bytes,
                    **({"host": host} if (host := group.host.describe()) else {}),
                    "zone": group.zone,
                    "price_per_device_hour": group.price_per_hour,
                    **_stated_only(group),
                    "domains": [
                        {
                            "name": domain.name,
                            "size": domain.size,
                            "bandwidth_bytes_per_s": domain.bandwidth_bytes_per_s,
                            "basis": domain.basis,
                        }
                        for domain in group.domains
                    ],
                }
                for group in self.groups
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Devices alike in compute, memory and connectivity: a part of one group."""

    group: NodeGroup
    first_device: int
    devices: int


def _stated_only(group: NodeGroup) -> dict[str, float]:
    """What few groups have."""
    rate = group.preemptions_per_node_hour
    return {"preemptions_per_node_hour": rate} if rate else {}
