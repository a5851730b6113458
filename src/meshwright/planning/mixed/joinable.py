"""Which groups of a cluster can train one model together: those whose devices can talk to each other.

Devices under one collective library share communicators. Devices under two need a transport of the user's own (through
the hosts, by gloo or UCX), which is only planned with where the cluster states the link between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.library.collective_libraries import collective_library
from meshwright.planning.compose.island_part import IslandPart
from meshwright.specs.cluster import ClusterSpec


def joinable(cluster: ClusterSpec, parts: Sequence[IslandPart]) -> list[tuple[IslandPart, ...]]:
    """The parts, split into sets of which every two can talk to each other, directly or through others of the set.

    Args:
        cluster: with a link between any two groups, assumed or stated.
        parts: of it.
    """
    sets: list[tuple[IslandPart, ...]] = []
    for part in parts:
        touching = [one for one in sets if any(can_talk(cluster, part.group, other.group) for other in one)]
        joined = (*(other for one in touching for other in one), part)
        sets = [*(one for one in sets if one not in touching), joined]
    order = {part: number for number, part in enumerate(parts)}
    return [tuple(sorted(one, key=order.__getitem__)) for one in sorted(sets, key=lambda one: order[one[0]])]


def can_talk(cluster: ClusterSpec, here: int, there: int) -> bool:
    """Whether two groups have a collective library in common, one that is not known, or a link that is stated."""
    first, second = (cluster.groups[number] for number in (here, there))
    libraries = {collective_library(group.device.vendor) for group in (first, second)}
    if len(libraries) == 1 or None in libraries:
        return True
    link = cluster.link(first.name, second.name)
    return link is not None and link.basis != "assumed"


def strangers(cluster: ClusterSpec, group: str, used: Sequence[str]) -> tuple[str, str] | None:
    """The libraries of a group and of the groups in use, where none of those can talk to it; else None.

    Args:
        cluster: with both.
        group: its name.
        used: names of the groups in use.
    """
    number = {one.name: index for index, one in enumerate(cluster.groups)}
    if not used or any(can_talk(cluster, number[group], number[other]) for other in used):
        return None
    own, other = (collective_library(cluster.groups[number[name]].device.vendor) for name in (group, used[0]))
    return (own, other) if own and other else None
