"""What every description of a cluster becomes: the keys of a cluster file, and what was taken for granted.

A reader finds nodes; equal nodes become a group. What a description does not say is left out of the keys, so that it
comes from the library and is said to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import Problem, UnsupportedError
from meshwright.formats.cluster import DeviceLookup, Refusals
from meshwright.specs.device import DeviceSpec

CODE = "MW211"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A cluster as read."""

    kind: str
    """Kind of the file, in words."""
    table: dict[str, Any]
    """Keys of a cluster file."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterText:
    """What a reader is given."""

    text: str
    lookup: DeviceLookup
    tolerance: float
    """How far apart speeds may be that count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of description."""

    name: str
    """Name of the format: `nvidia-smi topo -m`."""
    holds: Callable[[str], bool]
    """Whether a text is of this kind, by what is in it."""
    read: Callable[[ClusterText], Description]
    """Raises InputError or UnsupportedError with all problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node with devices of one kind."""

    name: str
    device: str
    """Name of the device in the library."""
    devices: int
    zone: str | None = None
    keys: tuple[tuple[str, float | int | str], ...] = ()
    """Further keys of its group: speeds, domain, memory."""


@dataclass(slots=True)
class DeviceNames:
    """Looks names of devices up; each unknown one is a problem once, with the nodes that have it."""

    lookup: DeviceLookup
    unknown: dict[str, tuple[list[Problem], list[str]]] = field(default_factory=dict)

    def find(self, name: str, where: str) -> DeviceSpec | None:
        """The device, or None with the problem noted.

        Args:
            name: the name as the description spells it.
            where: the node.
        """
        if name in self.unknown:
            self.unknown[name][1].append(where)
            return None
        try:
            return self.lookup(name)
        except UnsupportedError as error:
            self.unknown[name] = (list(error.problems), [where])
        return None

    def refuse(self, wrong: Refusals) -> None:
        """Add the unknown ones to other problems."""
        for problems, nodes in self.unknown.values():
            wrong.unknown += [
                Problem(what=f"{p.what} of {listed(nodes)}", why=p.why, fix=p.fix, field="device") for p in problems
            ]


def node_groups(nodes: Iterable[ClusterNode]) -> list[dict[str, Any]]:
    """`group` entries: equal nodes together, in order of first appearance."""
    pools = Counter((n.device, n.devices, n.zone, n.keys) for n in nodes)
    several_zones = len({zone for _, _, zone, _ in pools}) > 1
    groups = []
    for (device, devices, zone, keys), count in pools.items():
        group: dict[str, Any] = {"device": device, "nodes": count, "devices_per_node": devices}
        if several_zones and zone is not None:
            group = {"name": f"{device} {zone}", **group}
        if zone is not None:
            group["zone"] = zone
        groups.append({**group, **dict(keys)})
    return _named(groups)


def _named(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of one name numbered, so that a table made of them can be edited and read again."""
    wanted = Counter(group.get("name") for group in groups if "name" in group)
    seen: Counter[str] = Counter()
    for group in groups:
        name = group.get("name")
        if name is not None and wanted[name] > 1:
            seen[name] += 1
            group["name"] = f"{name}-{seen[name]}"
    return groups


def directives(text: str) -> dict[str, str]:
    """Lines `# key = value` of a description that cannot say something itself."""
    found = re.findall(r"^[ \t]*#[ \t]*([a-z_]+)[ \t]*=([^\n\"]*(?:\"[^\n\"]*\"[ \t]*)?)$", text, re.M)
    return {key: value.strip(" \t").removeprefix('"').removesuffix('"') for key, value in found}


def whole_directive(known: dict[str, str], name: str, wrong: Refusals) -> int | None:
    """A directive that is a whole number of at least 1; None where it is not there or wrong."""
    if name not in known:
        return None
    if re.fullmatch(r"[0-9]{1,7}", known[name]) and int(known[name]) > 0:
        return int(known[name])
    wrong.add(f"# {name} = {known[name][:40]!r}", "must be a whole number of at least 1", "", name=name)
    return None


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence, the rest counted: `n1, n2, n3 and 5 more`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(gone: Counter[str]) -> str:
    """Nodes by the reason that they cannot be used: `3 nodes cordoned, 1 node not ready`."""
    return ", ".join(f"{count} node{'s' if count > 1 else ''} {why}" for why, count in gone.items())


def data_lines(text: str) -> list[str]:
    """Lines that are neither empty nor comments."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
