"""Nodes that cloud providers rent, by the names of their machine types: `p5.48xlarge` is a node of 8 H100."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from meshwright.specs.device import DeviceSpec, Provenance
from meshwright.units import GIGA

_FILE = Path(__file__).parent / "data" / "instances.toml"
_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine type."""

    name: str
    device: str
    """Name of the device in the library."""
    devices: int
    fabric_name: str
    fabric_bytes_per_s: float
    """Bandwidth of each device and direction: its share of the node's network."""
    source: str


def instances() -> tuple[Instance, ...]:
    """Every machine type that is known."""
    return tuple(_by_name().values())


def instance(name: str) -> Instance | None:
    """The machine type of a name, case and `Standard_` apart; None where none has it.

    Args:
        name: the name as the provider writes it.
    """
    return _by_name().get(_plain(name))


def is_instance(name: str) -> bool:
    """Whether a name is one of a machine type, so that a count of it counts nodes."""
    return instance(name) is not None


def in_instance(spec: DeviceSpec, of: Instance) -> DeviceSpec:
    """A device in the nodes of a machine type: the usual node with its size and its network.

    Args:
        spec: the device, with a usual node.
        of: the machine type.
    """
    if spec.node is None:
        return spec
    stated = Provenance(basis="datasheet", source=of.source, date="2026-11")
    changed = ("devices_per_node", "fabric_name", "fabric_bytes_per_s")
    node = replace(
        spec.node,
        devices_per_node=of.devices,
        fabric_name=of.fabric_name,
        fabric_bytes_per_s=of.fabric_bytes_per_s,
        provenance=(
            *((key, given) for key, given in spec.node.provenance if key not in changed),
            *((key, stated) for key in changed),
        ),
    )
    return replace(spec, node=node)


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix("standard_")


@cache
def _by_name() -> dict[str, Instance]:
    return {
        _plain(entry["name"]): Instance(
            name=entry["name"],
            device=entry["device"],
            devices=entry["devices"],
            fabric_name=f"{entry.get('fabric', provider['fabric'])} {entry['gbit_s']:,} Gb/s a node",
            fabric_bytes_per_s=entry["gbit_s"] * GIGA / _BITS / entry["devices"],
            source=f"{entry['name']}: {provider['source']}",
        )
        for provider in tomllib.loads(_FILE.read_text("utf-8")).values()
        for entry in provider["instances"]
    }
