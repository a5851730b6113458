"""The host of a node as people write it: `128GB` of memory, NVMe `2TB@7GB/s`, PCIe `4x16`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meshwright.specs.cluster import ClusterSpec
from meshwright.units import rate_bytes_per_s, size_bytes

_SLOT = re.compile(r"\s*(?:(?:gen|pcie)\s*)?([1-7])(?:\.0)?\s*[xX×]\s*([0-9]{1,2})\s*", re.IGNORECASE)

PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bandwidth of one lane and direction, after line coding. Source: PCI Express base specifications 1.0 to 6.0."""
PCIE_REACHED = 0.76
"""Share of a slot's nominal rate that copies from pinned memory reach: 24 of 31.5 GB/s on 4.0 x16, 12 of 15.8 on 3.0
x16 (bandwidthTest of the CUDA samples, as the device files cite it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """NVMe drives of a host together."""

    bytes_per_s: float
    """Reading; writing is taken as quick."""
    size_bytes: float | None = None


def disks_of(text: str) -> Disks | None:
    """Drives of `7GB/s` or `2TB@7GB/s`; None where it is no such text."""
    size, at, rate = text[:80].rpartition("@")
    speed, room = rate_bytes_per_s(rate), size_bytes(size) if at else None
    if not speed or (at and not room):
        return None
    return Disks(bytes_per_s=speed, size_bytes=room)


def slot_bytes_per_s(text: str) -> float | None:
    """Bytes per second that copies reach in a slot `4x16` (generation, lanes), or as stated in `12GB/s`."""
    match = _SLOT.fullmatch(text[:40])
    if match is None:
        return rate_bytes_per_s(text)
    lane, lanes = PCIE_LANE_BYTES_PER_S.get(int(match[1])), int(match[2])
    return None if lane is None or lanes not in (1, 2, 4, 8, 16) else lane * lanes * PCIE_REACHED


def with_host(
    cluster: ClusterSpec, memory_bytes: float | None, disks: Disks | None, link_bytes_per_s: float | None
) -> ClusterSpec:
    """The cluster with what is stated of its hosts in place of what it says itself.

    Args:
        cluster: any groups.
        memory_bytes: the bytes of memory of one host.
        disks: the disks of one host.
        link_bytes_per_s: the bytes per second of a link between one device and its host.
    """
    stated: dict[str, float | None] = {}
    if memory_bytes is not None:
        stated["memory_bytes"] = memory_bytes
    if link_bytes_per_s is not None:
        stated["link_bytes_per_s"] = link_bytes_per_s
    if disks is not None:
        stated |= {"disk_read_bytes_per_s": disks.bytes_per_s, "disk_bytes": disks.size_bytes}
        stated["disk_write_bytes_per_s"] = None
    if not stated:
        return cluster
    groups = tuple(replace(group, host=replace(group.host, **stated)) for group in cluster.groups)  # type: ignore[arg-type]
    return replace(cluster, groups=groups)
