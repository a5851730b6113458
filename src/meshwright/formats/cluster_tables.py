"""Keys of cluster files: what each takes, in which unit, and what goes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    model_validator,
)

from meshwright.errors import InputError, MeshwrightError
from meshwright.formats.cluster import (
    MAX_GROUPS,
    UNKNOWN_NODE,
    DeviceLookup,
)
from meshwright.formats.problems import TableProblems, Text, key
from meshwright.specs.cluster import MAX_DEVICES
from meshwright.specs.device import DeviceSpec
from meshwright.units import GIGA, rate_bytes_per_s, size_bytes


def _find_device(name: object, info: ValidationInfo) -> DeviceSpec:
    if not isinstance(name, str):
        raise ValueError("must be text")
    return cast(DeviceLookup, info.context)(name)


Stated = Literal["datasheet", "measured", "assumed"]
"""Where the speeds that a file states come from."""


def _in_giga(read: Callable[[str], float | None], example: str) -> BeforeValidator:
    """A text with a unit as the number of 1e9 bytes that its key counts."""

    def number(value: object) -> object:
        if not isinstance(value, str):
            return value
        found = read(value)
        if found is None:
            raise ValueError(
                f"must be a number, or a text with its unit such as {example}, where B are bytes and b bits"
            )
        return found / GIGA

    return BeforeValidator(number)


_Speed = Annotated[PositiveFloat, _in_giga(rate_bytes_per_s, '"50GB/s" or "400Gb/s"')]
_Size = Annotated[PositiveFloat, _in_giga(size_bytes, '"128GB" or "120GiB"')]


class GroupTable(TableProblems):
    """`[[group]]`: equal nodes."""

    name: Text | None = None
    device: Annotated[DeviceSpec, PlainValidator(_find_device)] = key('"H100"', required=True)
    nodes: PositiveInt = key("8", required=True, le=MAX_DEVICES)
    devices_per_node: PositiveInt | None = key("8", le=MAX_DEVICES)
    zone: Text | None = None
    intra_gb_s: _Speed | None = key("450", le=1e6)
    host_gb_s: _Speed | None = key("31.5", le=1e6)
    inter_gb_s: _Speed | None = key("50", le=1e6)
    latency_us: NonNegativeFloat | None = key("14", le=1e9)
    nvlink_domain: PositiveInt | None = key("8", le=MAX_DEVICES)
    memory_gib: PositiveFloat | None = key("79.1", le=1e6)
    price_per_device_hour: NonNegativeFloat | None = key("2.5", le=1e6)
    power_w: PositiveFloat | None = key("620", le=2e4)
    preemptions_per_hour: NonNegativeFloat = key("0.05", le=1e3, default=0.0)
    ram_gb: _Size | None = key("1024", le=1e7)
    ram_gb_s: _Speed | None = key("300", le=1e6)
    pcie_gb_s: _Speed | None = key("24", le=1e4)
    pcie_devices: PositiveInt = key("2", le=64, default=1)
    nvme_gb: _Size | None = key("4000", le=1e8)
    nvme_gb_s: _Speed | None = key("7", le=1e5)
    nvme_write_gb_s: _Speed | None = key("5", le=1e5)
    basis: Stated = "datasheet"

    @property
    def per_node(self) -> int:
        """Devices of a node, the usual number where the file has none."""
        return self.devices_per_node or (self.device.node or UNKNOWN_NODE).devices_per_node

    @model_validator(mode="before")
    @classmethod
    def _gigabits_named(cls, data: object, info: ValidationInfo) -> object:
        """A bare number of gigabits where gigabytes are asked for: eight times the device's usual fabric, exactly."""
        speed = data.get("inter_gb_s") if isinstance(data, Mapping) else None
        if isinstance(data, Mapping) and isinstance(speed, int | float) and isinstance(data.get("device"), str):
            try:
                usual = (_find_device(data["device"], info).node or UNKNOWN_NODE).fabric_bytes_per_s / GIGA
            except MeshwrightError:
                return data  # the key of the device says it
            if speed == 8 * usual:
                raise InputError(
                    what=f"inter_gb_s is {speed:g}",
                    why=f"{data['device']} usually has {usual:g} GB/s per device, which are {speed:g} Gb/s (bits)",
                    fix=f'write inter_gb_s = "{speed:g}Gb/s" for gigabits, or "{speed:g}GB/s" for gigabytes',
                    field="inter_gb_s",
                )
        return data

    @model_validator(mode="after")
    def _domain_nests(self) -> Self:
        domain, per_node = self.nvlink_domain, self.per_node
        if domain is not None and domain < self.nodes * per_node and per_node % domain and domain % per_node:
            raise InputError(
                what=f"nvlink_domain is {domain}",
                why=f"it must divide the {per_node} devices of a node or hold whole nodes",
                fix=f"for example {per_node}",
                field="nvlink_domain",
            )
        return self


class LinkTable(TableProblems):
    """`[[link]]`: between two groups or two zones."""

    between: list[Text] = key('["new", "old"]', required=True, min_length=2, max_length=2)
    gb_s: _Speed | None = key("25", le=1e6)
    efficiency: PositiveFloat | None = key("0.75", le=1)
    latency_us: NonNegativeFloat | None = key("20", le=1e9)
    price_per_gb: NonNegativeFloat | None = key("0.02", le=1e6)
    transport: Text | None = key('"ucx"')
    basis: Stated = "datasheet"

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.gb_s is None and self.price_per_gb is None and self.transport is None:
            raise InputError(
                what="gb_s is missing",
                why="a link says how fast it is, what it costs, or what carries tensors over it",
                fix='for example gb_s = 25, price_per_gb = 0.02, transport = "gloo" or several of them',
                field="gb_s",
            )
        if self.efficiency is not None and (self.gb_s is None or self.basis == "measured"):
            raise InputError(
                what=f"efficiency is {self.efficiency:g} without gb_s"
                if self.gb_s is None
                else f"efficiency is {self.efficiency:g} beside a measured gb_s",
                why="it is the share of a nominal gb_s that is reached; a measured one is what is reached",
                fix="say the nominal gb_s too" if self.gb_s is None else "remove it",
                field="efficiency",
            )
        return self


class ClusterTable(TableProblems):
    """A whole file."""

    name: Text | None = None
    pue: Annotated[float, Field(ge=1, le=10)] = key("1.2", default=1.0)
    carbon_kg_per_kwh: NonNegativeFloat | None = key("0.38", le=5)
    group: list[GroupTable] = key(
        '[{ device = "H100", nodes = 8, devices_per_node = 8 }]', required=True, min_length=1, max_length=MAX_GROUPS
    )
    link: list[LinkTable] = key(default=[])
