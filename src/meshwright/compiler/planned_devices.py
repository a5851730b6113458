"""The devices that a method plans for: those that are stated, or recognised by their kind, or assumed and named so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.errors import UnsupportedError
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device as library_device
from meshwright.library.devices import unknown_accelerator
from meshwright.specs.cluster import ClusterSpec

Stated = Hosts | Islands | ClusterSpec | str
"""Devices and their links: `8xH100`, a cluster, or their numbers."""


def stated_hosts(stated: Stated) -> Hosts | Islands:
    """Hosts of one kind, or islands of several.

    Raises:
        InputError: the text is not of the form `8xH100`.
        UnsupportedError: an unknown device.
    """
    cluster = resolve_gpus(stated) if isinstance(stated, str) else stated
    if not isinstance(cluster, ClusterSpec):
        return cluster
    return Hosts.of(cluster.groups[0]) if cluster.homogeneous else Islands.of(cluster)


def recognised_hosts(devices: Sequence[Any]) -> Hosts:
    """Hosts of JAX devices by their kind: a device of the library (`meshwright profile` adds those of this machine).

    Args:
        devices: the devices of all processes.

    Returns:
        Their hosts; one host of the library's unknown accelerator where the kind is not known.
    """
    per_host = len(devices) // max(1, len({one.process_index for one in devices}))
    try:
        known = library_device(devices[0].device_kind)
    except UnsupportedError:
        return _unknown(len(devices))
    if known.node is None or len(devices) % per_host:
        return _unknown(len(devices))
    return Hosts.of(resolve_gpus(f"{len(devices) // per_host}x{per_host}x{known.name}").groups[0])


def _unknown(devices: int) -> Hosts:
    like = unknown_accelerator()
    return Hosts(
        hosts=1,
        devices_per_host=devices,
        flop_per_s=like.flop_per_s,
        inside_bytes_per_s=like.link_bytes_per_s,
        between_bytes_per_s=like.link_bytes_per_s,
        inside_latency_s=like.link_latency_s,
        between_latency_s=like.link_latency_s,
        launch_s=like.launch_s,
        source=f"{like.name} [{like.basis}], as these devices are not in the library; state them with hosts=",
    )
