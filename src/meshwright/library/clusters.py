"""Clusters from text and files, with devices from the library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from meshwright.formats.gpus import parse_gpus
from meshwright.library.devices import device, generations, is_device, kernel_efficiency
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.device import DeviceSpec


def resolve_gpus(text: str, calibration: Calibration | None = None) -> ClusterSpec:
    """The cluster of `64xH100`, `8x8xH100`, `32xA100-80,64xH100` or, in nodes of a cloud, `4xp5.48xlarge`.

    `calibration` as `library.devices.device` takes it.

    Raises:
        InputError: the text is not of this form, or its numbers cannot be.
        UnsupportedError: an unknown device and nothing else wrong.
    """
    devices: dict[str, DeviceSpec] = {}

    def found(name: str) -> DeviceSpec:
        return devices.setdefault(name, device(name, calibration=calibration))

    known = _READ.get(text) if isinstance(text, str) else None
    if known is not None and all(found(name) is one for name, one in known.devices):
        return known.cluster
    cluster = parse_gpus(text, found, is_node=_is_instance)
    if len(_READ) >= MOST_KEPT:
        _READ.clear()
    _READ[text] = _Read(cluster=cluster, devices=tuple(devices.items()))
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A text as it was read, and the devices that its names then stood for."""

    cluster: ClusterSpec
    devices: tuple[tuple[str, DeviceSpec], ...]


MOST_KEPT = 256
_READ: dict[str, _Read] = {}
"""Clusters by their text, which estimates ask for again and again: good while names stand for the same devices."""


def _is_instance(name: str) -> bool:
    if is_device(name):
        return False
    from meshwright.library.instances import is_instance  # of names that no device has

    return is_instance(name)


def refitted(cluster: ClusterSpec, before: Calibration, after: Calibration) -> ClusterSpec:
    """The same cluster with kernels as another calibration has them; devices with numbers of their own keep them.

    Args:
        cluster: the cluster of any devices.
        before: the calibration that its devices have.
        after: the one they shall have.
    """

    def group(one: NodeGroup) -> NodeGroup:
        own = one.device.efficiency
        if own.generation not in generations() or own != kernel_efficiency(own.generation, before):
            return one
        fitted = kernel_efficiency(own.generation, after)
        return replace(one, device=replace(one.device, efficiency=fitted))

    return replace(cluster, groups=tuple(map(group, cluster.groups)))


def resolve_cluster_file(path: str | Path, calibration: Calibration | None = None) -> ClusterSpec:
    """The cluster of a cluster file, or of another description that `formats.clusters` knows.

    `calibration` as `library.devices.device` takes it.

    Raises:
        InputError: the file or any of its keys cannot be used.
        UnsupportedError: an unknown device and nothing else wrong, or YAML without a reader.
    """
    from meshwright.formats.clusters import read_cluster  # with pydantic, which --gpus can do without

    return read_cluster(path, partial(device, calibration=calibration))
