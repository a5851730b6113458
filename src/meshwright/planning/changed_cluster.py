"""A cluster after devices were lost or added: its groups, and the later number of every earlier device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from meshwright.errors import InputError, Problem, nearest
from meshwright.formats.cluster import default_links, group_names, node_group
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import plain_name
from meshwright.shapes import Bool, Int
from meshwright.specs.cluster import AND, ClusterSpec, DomainSpec, NodeGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangedCluster:
    """The later cluster."""

    cluster: ClusterSpec
    number_after: Int[np.ndarray, "before"]
    """Later number of each earlier device, -1 where it is lost or its node is left out."""
    lost: int
    """Devices that are gone."""
    stranded: int
    """Remaining devices of nodes that lost some; idle, since the nodes of a group are equal."""
    added: int


def changed_cluster(cluster: ClusterSpec, *, lost: str | None = None, added: str | None = None) -> ChangedCluster:
    """What is left of a cluster, and what was added.

    Args:
        cluster: the earlier one.
        lost: comma list of device numbers and ranges (`16-23`), of counts of a group or device (`8xH100`: the last
            ones of the group), or of groups that are lost whole (`spot`).
        added: the devices added, as `--gpus` takes them; devices of a group's kind and node size join it.

    Raises:
        InputError: neither is given, or what is lost is not there; all problems together.
        UnsupportedError: an unknown device among those added.
    """
    if not lost and not added:
        what, fix = "nothing is lost and nothing added", "say --lost 8xH100, --lost 16-23 or --added 8xH100"
        raise InputError(what=what, why="a plan is made again for a change", fix=fix, field="lost", code="MW218")
    gone = _gone(cluster, lost or "")
    new = resolve_gpus(added) if added else None
    ends = [0, *accumulate(group.devices for group in cluster.groups)]
    number = np.full(cluster.devices, -1, dtype=np.int64)
    groups: list[NodeGroup] = []
    stranded = grown = next_free = 0
    joined: set[int] = set()
    renamed: dict[str, str] = {}
    for group, first in zip(cluster.groups, ends, strict=False):
        node = np.arange(group.devices) // group.devices_per_node
        hit = np.isin(node, node[gone[first : first + group.devices]])
        stranded += int((hit & ~gone[first : first + group.devices]).sum())
        nodes = len(np.unique(node[~hit]))
        for index, more in enumerate(new.groups if new else ()):
            same = (more.device.name, more.devices_per_node) == (group.device.name, group.devices_per_node)
            if same and index not in joined:
                joined.add(index)
                nodes, grown = nodes + more.nodes, grown + more.devices
        if not nodes:
            continue
        staying = np.unique(node[~hit])
        later = _left_of(group, hit) if len(staying) else group
        renamed[group.name] = later.name
        # Nodes of several groups that count as one keep their order, so that it is known which is which.
        place = np.searchsorted(staying, np.arange(node[-1] + 1)) if later.counted else _places(staying, nodes)
        within = np.arange(group.devices) % group.devices_per_node
        slots = next_free + place[node[~hit]] * group.devices_per_node + within[~hit]
        number[first : first + group.devices][~hit] = slots
        groups.append(resized(later, nodes * group.devices_per_node // later.devices_per_node))
        next_free += groups[-1].devices
    others = [more for index, more in enumerate(new.groups if new else ()) if index not in joined]
    names = group_names([group.name for group in [*groups, *others]])
    groups = [replace(group, name=name) for group, name in zip([*groups, *others], names, strict=True)]
    if not groups:
        raise InputError(
            what="every node is lost",
            why="nothing is left to plan for",
            fix=f"say what replaces them, for example --added {cluster.name}, or lose fewer",
            field="lost",
            code="MW218",
        )
    kept = [
        replace(link, between=(renamed[link.between[0]], renamed[link.between[1]]))
        for link in cluster.links
        if renamed.keys() >= {*link.between}
    ]
    given = {frozenset(link.between): link for link in kept}
    left = replace(
        cluster,
        name=",".join(f"{group.devices}x{group.device.name}" for group in groups),
        groups=tuple(groups),
        links=tuple(default_links(groups, None, given)),
    )
    return ChangedCluster(
        cluster=left,
        number_after=number,
        lost=int(gone.sum()),
        stranded=stranded,
        added=grown + sum(group.devices for group in others),
    )


def _places(left: Int[np.ndarray, "left"], nodes: int) -> Int[np.ndarray, "places"]:
    """Later place of each earlier node: its own where there is one, else that of a lost node.

    Nodes that stay where they are keep their part of the plan; the last ones and those added fill the holes.
    """
    place = np.full(int(left.max(initial=0)) + 1, -1, dtype=np.int64)
    staying = left[left < nodes]
    place[staying] = staying
    moving = left[left >= nodes]
    place[moving] = np.setdiff1d(np.arange(nodes), staying)[: len(moving)]
    return place


def resized(group: NodeGroup, nodes: int) -> NodeGroup:
    """A group with another number of equal nodes."""
    devices = nodes * group.devices_per_node
    inner = [domain for domain in group.domains if domain.size < devices]
    outer = next((domain for domain in group.domains if domain.size >= devices), None)
    if outer is None and group.nodes == 1:
        # One node shows no fabric: it is that of the device's usual nodes.
        usual = node_group(name=group.name, device=group.device, nodes=nodes, devices_per_node=group.devices_per_node)
        outer = usual.domains[-1]
    elif outer is None:
        inner, outer = inner[:-1], group.domains[-1]
    domains: list[DomainSpec] = [*inner, replace(outer, size=devices)]
    return replace(group, nodes=nodes, domains=tuple(domains), unequal_nodes=group.first_unequal(devices))


def _gone(cluster: ClusterSpec, text: str) -> np.ndarray:
    """Which devices are lost."""
    gone = np.zeros(cluster.devices, dtype=bool)
    problems: list[Problem] = []
    spans = _spans(cluster)
    for item in filter(None, (part.strip() for part in text.split(","))):
        if match := re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", item):
            first, last = int(match[1]), int(match[2] or match[1])
            if first <= last < cluster.devices:
                gone[first : last + 1] = True
            else:
                why = f"devices count from 0 to {cluster.devices - 1:,}"
                problems.append(Problem(what=f"--lost {item}", why=why, field="lost"))
            continue
        count, name = _count_of(item, spans)
        whole = _joined(cluster.groups, name)
        found = _named(spans, name)
        if count is not None and not found and whole is not None:
            found = _named(spans, whole)  # its ranks are equal: any of them
        if not found:
            if whole is not None:
                why = f"the plan holds {whole} as one group of equal ranks, and not how many devices of it are {item}"
                fix = f"say how many, such as 8x{item}, or the numbers of its devices"
            else:
                close, names = nearest(name, every := [group.name for group, _ in spans]), ", ".join(every)
                why, fix = "it names no group or device", f"did you mean {close[0]}?" if close else f"groups: {names}"
            problems.append(Problem(what=f"--lost {item[:60]!r}", why=why, fix=fix, field="lost"))
            continue
        there = sum(group.devices for group, _ in found)
        wanted = there if count is None else count
        for group, first in reversed(found):
            taken = min(wanted, group.devices)
            gone[first + group.devices - taken : first + group.devices] = True
            wanted -= taken
        if wanted:
            problems.append(Problem(what=f"--lost {item}", why=f"there are {there:,} of them", field="lost"))
    if problems:
        raise InputError(problems, code="MW218")
    return gone


def _count_of(item: str, spans: list[tuple[NodeGroup, int]]) -> tuple[int | None, str]:
    """Devices and name of `8xH100`, or of `2x8xH100`: as many whole nodes; None where no number is said."""
    match = re.fullmatch(r"(\d{1,7})\s*[xX×*]\s*(.+)", item)
    if match is None:
        return None, item
    of_nodes = re.fullmatch(r"(\d{1,7})\s*[xX×*]\s*(.+)", match[2])
    if of_nodes is not None and any(
        group.devices_per_node == int(of_nodes[1]) for group, _ in _named(spans, of_nodes[2])
    ):
        return int(match[1]) * int(of_nodes[1]), of_nodes[2]
    return int(match[1]), match[2]


def _spans(cluster: ClusterSpec) -> list[tuple[NodeGroup, int]]:
    """Every group that the cluster states with its first device; one that several count as as well."""
    found: list[tuple[NodeGroup, int]] = []
    first = 0
    for group in cluster.groups:
        found.append((group, first))
        for one in _counted(group):
            found.append((one, first))
            first += one.devices
        first = found[-1][1] + found[-1][0].devices
    return found


def _counted(group: NodeGroup) -> tuple[NodeGroup, ...]:
    """The groups that count as this one, where it holds all of them."""
    return group.counted if sum(one.devices for one in group.counted) == group.devices else ()


def _left_of(group: NodeGroup, hit: Bool[np.ndarray, "devices"]) -> NodeGroup:
    """What a group is without some of its nodes: where one of those that count as it is left alone, that one.

    Args:
        group: the group before.
        hit: its devices that stay behind.
    """
    ends = np.cumsum([0, *(one.devices for one in _counted(group))])
    left = [
        (one, int((~hit[first : first + one.devices]).sum()))
        for one, first in zip(_counted(group), ends.tolist(), strict=False)
    ]
    some = [(one, devices) for one, devices in left if devices]
    if any(devices % one.devices_per_node for one, devices in some):
        return replace(group, counted=())
    counted = tuple(resized(one, devices // one.devices_per_node) for one, devices in some)
    return counted[0] if len(counted) == 1 else replace(group, counted=counted)


def _named(spans: Sequence[tuple[NodeGroup, int]], name: str) -> list[tuple[NodeGroup, int]]:
    """Groups of a name, else of a device; no group beside those that count as it."""
    by_name = [(group, first) for group, first in spans if group.name == name]
    wanted = plain_name(name)
    by_device = [
        (group, first)
        for group, first in spans
        if not _counted(group) and wanted in map(plain_name, (group.device.name, *group.device.aliases))
    ]
    return by_name or by_device


def _joined(groups: Sequence[NodeGroup], name: str) -> str | None:
    """The group of equal ranks that a group or device is a part of, by its name; None where there is none."""
    wanted = plain_name(name)
    parts = {group.name: [plain_name(one) for one in group.name.split(AND)] for group in groups}
    return next((whole for whole, names in parts.items() if len(names) > 1 and wanted in names), None)
