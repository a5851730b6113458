"""A cluster after devices were lost or added: its groups, and the later number of every earlier device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from meshwright.errors import InputError, Problem, nearest
from meshwright.formats.cluster import default_links, fabric_of, group_names, node_group
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import plain_name
from meshwright.planning.fewer_nodes import first_nodes
from meshwright.shapes import Bool, Int
from meshwright.specs.cluster import AND, ClusterSpec, DomainSpec, NodeGroup

MOST_BROKEN = 2
"""Groups that nodes of a group which lost some of their devices form at most; the others of those stay idle."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangedCluster:
    """The later cluster."""

    cluster: ClusterSpec
    number_after: Int[np.ndarray, "before"]
    """Later number of each earlier device, -1 where it is lost or its node is left out."""
    broken: tuple[str, ...]
    """Groups of nodes that lost some of their devices, the last ones of the cluster."""
    lost: int
    """Devices that are gone."""
    stranded: int
    """Remaining devices of nodes that lost some and form no group, since the nodes of a group are equal; idle."""
    added: int

    @property
    def on_whole_nodes(self) -> ChangedCluster:
        """The same with the remaining devices of nodes that lost some as if they were lost, too."""
        numbers = np.cumsum([0, *(group.devices for group in self.cluster.groups)])
        number = self.number_after.copy()
        for place, group in enumerate(self.cluster.groups):
            if group.name in self.broken:
                number[(number >= numbers[place]) & (number < numbers[place + 1])] = -1
        return replace(self, number_after=number, broken=())


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
    heirs: dict[str, list[str]] = {group.name: [] for group in cluster.groups}
    broken: list[tuple[NodeGroup, Int[np.ndarray, "left"]]] = []
    for group, first in zip(cluster.groups, ends, strict=False):
        node = np.arange(group.devices) // group.devices_per_node
        lost_here = gone[first : first + group.devices]
        hit = np.isin(node, node[lost_here])
        nodes = len(np.unique(node[~hit]))
        for index, more in enumerate(new.groups if new else ()):
            same = (more.device.name, more.devices_per_node) == (group.device.name, group.devices_per_node)
            if same and index not in joined:
                joined.add(index)
                nodes, grown = nodes + more.nodes, grown + more.devices
        if nodes:
            staying = np.unique(node[~hit])
            later = _left_of(group, hit) if len(staying) else group
            heirs[group.name].append(later.name)
            # Nodes of several groups that count as one keep their order, so that it is known which is which.
            place = np.searchsorted(staying, np.arange(node[-1] + 1)) if later.counted else _places(staying, nodes)
            within = np.arange(group.devices) % group.devices_per_node
            slots = next_free + place[node[~hit]] * group.devices_per_node + within[~hit]
            number[first : first + group.devices][~hit] = slots
            groups.append(resized(later, nodes * group.devices_per_node // later.devices_per_node))
            next_free += groups[-1].devices
        stranded += int((hit & ~lost_here).sum())
        for some, devices in _broken_nodes(group, lost_here, hit):
            heirs[group.name].append(some.name)
            broken.append((some, first + devices))
            stranded -= some.devices
    others = [more for index, more in enumerate(new.groups if new else ()) if index not in joined]
    # Behind all others, so that these have the numbers that they would have by themselves.
    next_free += sum(group.devices for group in others)
    for some, devices in broken:
        number[devices] = next_free + np.arange(some.devices)
        next_free += some.devices
    groups += [*others, *(some for some, _ in broken)]
    names = group_names([group.name for group in groups])
    groups = [replace(group, name=name) for group, name in zip(groups, names, strict=True)]
    if not groups:
        raise InputError(
            what="every node is lost",
            why="nothing is left to plan for",
            fix=f"say what replaces them, for example --added {cluster.name}, or lose fewer",
            field="lost",
            code="MW218",
        )
    kept = [
        replace(link, between=(one, other))
        for link in cluster.links
        for one in heirs[link.between[0]]
        for other in heirs[link.between[1]]
    ]
    given = {frozenset(link.between): link for link in kept}
    # What is left of a single node shows no fabric: it is that of its group.
    fabrics = {name: fabric_of(group) for group in cluster.groups for name in heirs[group.name]}
    left = replace(
        cluster,
        name=",".join(f"{group.devices}x{group.device.name}" for group in groups),
        groups=tuple(groups),
        links=tuple(default_links(groups, fabrics, given)),
    )
    return ChangedCluster(
        cluster=left,
        number_after=number,
        broken=tuple(names[len(names) - len(broken) :]),
        lost=int(gone.sum()),
        stranded=stranded,
        added=grown + sum(group.devices for group in others),
    )


def _broken_nodes(
    group: NodeGroup, lost: Bool[np.ndarray, "devices"], hit: Bool[np.ndarray, "devices"]
) -> list[tuple[NodeGroup, Int[np.ndarray, "left"]]]:
    """What is left of nodes that lost some devices: groups of equal nodes, with their devices in order.

    Those of most devices; none of groups that are counted together, whose nodes are no longer told apart.

    Args:
        group: the group before.
        lost: its devices that are lost.
        hit: its devices on nodes that lost some.
    """
    if group.counted or group.unequal_nodes or AND in group.name:
        return []
    each, whole = group.devices_per_node, ClusterSpec(name=group.name, groups=(group,))
    left = (hit & ~lost).reshape(-1, each)
    counts = left.sum(axis=1)
    found = []
    for count in np.unique(counts[counts > 0]).tolist():
        nodes = np.flatnonzero(counts == count)
        (some,) = first_nodes(whole, nodes=len(nodes), per_node=count).groups
        devices = np.concatenate([node * each + np.flatnonzero(left[node]) for node in nodes])
        found.append((replace(some, name=f"{group.name}-{count}"), devices))
    return sorted(found, key=lambda one: -len(one[1]))[:MOST_BROKEN]


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
