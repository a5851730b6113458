"""Which groups of a cluster can train one model together: those of which every two can talk to each other.

Devices under one collective library share communicators. Devices under two need a transport between them, which a
cluster file names with their link: a speed alone, stated or measured, says nothing of what carries tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planning.compose.island_part import IslandPart
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.collective_libraries import collective_library


def joinable(cluster: ClusterSpec, parts: Sequence[IslandPart]) -> list[tuple[IslandPart, ...]]:
    """The largest sets of parts of which every two can talk to each other.

    Stages of any two may be neighbours, and gradients go around all of them. A part may be in several sets.

    Args:
        cluster: the cluster with a link between any two groups, assumed or stated.
        parts: the parts of it.
    """
    sets: list[frozenset[IslandPart]] = []
    for part in parts:
        beside = frozenset(other for other in parts if other != part and can_talk(cluster, part.group, other.group))
        grown = [*(one for one in sets if not one <= beside), *((one & beside) | {part} for one in sets), {part}]
        distinct = list(dict.fromkeys(frozenset(one) for one in grown))
        sets = [one for one in distinct if not any(one < other for other in distinct)]
    order = {part: number for number, part in enumerate(parts)}
    ordered = [tuple(sorted(one, key=order.__getitem__)) for one in sets]
    return sorted(ordered, key=lambda one: [order[part] for part in one])


def can_talk(cluster: ClusterSpec, here: int, there: int) -> bool:
    """Whether two groups have a collective library in common, one that is not known, or a transport between them."""
    first, second = (cluster.groups[number] for number in (here, there))
    libraries = {collective_library(group.device.vendor) for group in (first, second)}
    if len(libraries) == 1 or None in libraries:
        return True
    link = cluster.link(first.name, second.name)
    return link is not None and link.transport is not None


def strangers(cluster: ClusterSpec, group: str, used: Sequence[str]) -> tuple[str, str] | None:
    """The libraries of a group and of the first group in use that it cannot talk to; None where it can to all.

    Args:
        cluster: the cluster with both.
        group: its name.
        used: names of the groups in use.
    """
    number = {one.name: index for index, one in enumerate(cluster.groups)}
    apart = [other for other in used if not can_talk(cluster, number[group], number[other])]
    if not apart:
        return None
    own, other = (collective_library(cluster.groups[number[name]].device.vendor) for name in (group, apart[0]))
    return (own, other) if own and other else None
