"""A cluster as a folder of measured profiles knows it: its groups by the profiler's names for devices and zones."""

from __future__ import annotations

import os
from dataclasses import replace

from meshwright.errors import InputError, Problem, UnsupportedError, nearest
from meshwright.formats.gpus import parse_gpus
from meshwright.formats.profiles import ProfileSet
from meshwright.library.devices import device
from meshwright.planning.compose.sources.profiles.costs import BETWEEN
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.device import DeviceSpec

UNKNOWN_BYTES = 1.0
"""Stands for the memory of a device that the library does not know until the cluster file has said it."""


def measured_cluster(
    cluster: ClusterSpec | str | os.PathLike[str] | None, gpus: str | None, profiles: ProfileSet
) -> ClusterSpec:
    """The cluster of a file or of `--gpus`; devices of the profiles are known too.

    Raises:
        InputError: the cluster cannot be read, or the memory of a device is not known.
        UnsupportedError: a device that neither the library nor the profiles know.
    """
    if (cluster is None) == (gpus is None):
        raise InputError(
            what="give --gpus or --cluster, one of them",
            why="a plan needs to know its devices",
            field="gpus",
            code="MW206",
        )

    def lookup(name: str) -> DeviceSpec:
        """A device of the library, or one only the profiles know; its memory is for the cluster file to say."""
        try:
            return device(name)
        except UnsupportedError:
            if name not in profiles.devices:
                raise
            return replace(
                device("V100-16"), name=name, aliases=(), memory_bytes=UNKNOWN_BYTES, node=None, price_per_hour=None
            )

    if isinstance(cluster, ClusterSpec):
        spec = cluster
    elif gpus is not None:
        spec = parse_gpus(gpus, lookup)
    else:
        from meshwright.formats.clusters import read_cluster

        spec = read_cluster(os.fspath(cluster or ""), lookup)
    unknown = [group for group in spec.groups if group.device.memory_bytes == UNKNOWN_BYTES]
    if unknown:
        raise InputError(
            [
                Problem(
                    what=f"the memory of {group.device.name} is not known",
                    why="the library has no such device, only the profiles",
                    fix=f'write memory_gib beside device = "{group.device.name}" in a cluster file',
                    field="memory_gib",
                )
                for group in unknown
            ],
            code="MW211",
        )
    return spec


def measured_kinds(cluster: ClusterSpec, profiles: ProfileSet, model: str) -> list[DeviceKind]:
    """The groups of the cluster as the profiles know them.

    Raises:
        UnsupportedError: a device, a zone or a link was not measured; all of one kind together.
    """
    problems: list[Problem] = []
    known = profiles.models[model].devices
    kinds = []
    for group in cluster.groups:
        device = _profiled_name(group, known)
        if device is None:
            problems.append(
                Problem(
                    what=f"the profiles have no times of {model} on {group.device.name}",
                    why=f"profiled devices: {', '.join(known)}",
                    fix="profile it, or leave its nodes out",
                    field="cluster",
                )
            )
            continue
        kinds.append(
            DeviceKind(
                name=group.name,
                device=device,
                count=group.devices,
                devices_per_node=group.devices_per_node,
                memory_bytes=group.device.memory_bytes,
                zone=_zone(group, device, profiles, problems),
            )
        )
    if problems:
        raise UnsupportedError(problems, code="MW402")
    missing = [(a, b) for i, a in enumerate(kinds) for b in kinds[i:] if not _joined(a, b, profiles)]
    if missing:
        pairs = ", ".join(f"{a.name} and {b.name}" for a, b in missing)
        raise UnsupportedError(
            what=f"the network profile has no link between {pairs}",
            why="transfers and gradients cross it",
            fix="add the rows to network.csv, or leave one of the groups out",
            field="cluster",
            code="MW402",
        )
    return kinds


def _profiled_name(group: NodeGroup, known: tuple[str, ...]) -> str | None:
    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    names = {plain(name) for name in (group.name, group.device.name, *group.device.aliases)}
    return next((name for name in known if plain(name) in names), None)


def _zone(group: NodeGroup, device: str, profiles: ProfileSet, problems: list[Problem]) -> str:
    """The group's zone, or the first zone in which its device was measured."""
    measured = sorted(
        {route.source.zone for route in profiles.links if route.kind == BETWEEN and route.source.device == device}
    )
    if group.zone is None or group.zone in measured:
        return group.zone or (measured[0] if measured else "")
    close = nearest(group.zone, measured)
    problems.append(
        Problem(
            what=f"group {group.name} is in zone {group.zone!r}",
            why=f"the network profile knows {device} in {', '.join(measured) or 'no zone'}",
            fix=f"did you mean {close[0]}?" if close else "name one of them, or none",
            field="zone",
        )
    )
    return group.zone


def _joined(a: DeviceKind, b: DeviceKind, profiles: ProfileSet) -> bool:
    def has(source: DeviceKind, target: DeviceKind) -> bool:
        return any(
            route.kind == BETWEEN
            and (route.source.device, route.source.zone) == (source.device, source.zone)
            and (route.target.device, route.target.zone) == (target.device, target.zone)
            for route in profiles.links
        )

    return has(a, b) or has(b, a)
