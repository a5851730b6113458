"""Kinds of device: what all devices of an island have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Devices of one name, memory and node size in one zone: an island, its parts side by side or apart."""

    name: str
    """Name of the group of nodes."""
    device: str
    """Name of the device in the profiles."""
    count: int
    devices_per_node: int
    memory_bytes: float
    zone: str = ""
    """Name of the zone in the network profile."""
