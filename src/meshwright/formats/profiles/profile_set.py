"""What a profiler measured: seconds and bytes of each layer, and bytes per second between devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from meshwright.shapes import Float
from meshwright.units import GIGA, MEGA

FLOOR_SHARE = 0.01
"""Least share of a link's largest measured bandwidth that its fit may fall to: a quadratic leaves the sizes it was
fitted on through zero."""


class Point(NamedTuple):
    """Where layer times were taken."""

    device: str
    tp: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Seconds of every layer at one point."""

    forward_s: Float[np.ndarray, "layers"]
    backward_s: Float[np.ndarray, "layers"]
    update_s: Float[np.ndarray, "layers"]
    """The optimizer's step, once per iteration."""
    basis: Literal["measured", "interpolated"] = "measured"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSizes:
    """Elements of every layer at one tensor degree, per device; activations of one sequence."""

    parameters: Float[np.ndarray, "layers"]
    input_elements: Float[np.ndarray, "layers"]
    output_elements: Float[np.ndarray, "layers"]
    saved_elements: Float[np.ndarray, "layers"]
    """Kept from forward to backward."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelProfile:
    """One model on every device it was run on; its first layer is the embedding, its last the head."""

    name: str
    num_layers: int
    times: Mapping[Point, LayerTimes]
    sizes: Mapping[int, LayerSizes]
    """Sizes of the layers, by tensor degree."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names, as the profiler spells them."""
        return tuple(sorted({point.device for point in self.times}))

    def tensor_degrees(self, device: str) -> tuple[int, ...]:
        """Degrees with both times and sizes."""
        return tuple(sorted({p.tp for p in self.times if p.device == device and p.tp in self.sizes}))

    def micro_batches(self, device: str, tp: int) -> tuple[int, ...]:
        """Micro-batches with times on a device at a degree."""
        return tuple(sorted(p.micro_batch for p in self.times if (p.device, p.tp) == (device, tp)))

    @property
    def interpolated(self) -> tuple[Point, ...]:
        """Points that lie between measured ones."""
        return tuple(sorted(p for p, times in self.times.items() if times.basis == "interpolated"))


class End(NamedTuple):
    """One side of a link, as network profiles know it."""

    device: str
    per_node: int
    """Devices of the node that share its network interface in the transfer."""
    zone: str


class Route(NamedTuple):
    """A measured link and its direction."""

    kind: str
    """`intra_node`, `homo_intra`, `homo_inter` or `inter_node_het`."""
    source: End
    target: End


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """Bandwidth over payload: a quadratic in log2 of megabytes."""

    c2: float
    c1: float
    c0: float
    max_gb_s: float

    def seconds(self, payload_bytes: float) -> float:
        """Time of one transfer.

            x = log2(payload / 1e6),  GB/s = c2 x^2 + c1 x + c0,  t = payload / (1e9 GB/s)

        Args:
            payload_bytes: above 0.

        Returns:
            seconds; the bandwidth is not held to the largest measured one, and to `FLOOR_SHARE` of it from below.

        Source: fits of network_bandwidth_fits.csv, as eth-easl/sailor uses them.
        """
        x = math.log2(payload_bytes / MEGA)
        gb_s = max(self.c2 * x * x + self.c1 * x + self.c0, FLOOR_SHARE * self.max_gb_s)
        return payload_bytes / (GIGA * gb_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileSet:
    """All that one folder of profiles holds."""

    source: str
    models: Mapping[str, ModelProfile]
    links: Mapping[Route, LinkFit]

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones that links name, the first one alphabetically first."""
        return tuple(sorted({end.zone for route in self.links for end in (route.source, route.target) if end.zone}))

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices with times of any model."""
        return tuple(sorted({name for model in self.models.values() for name in model.devices}))
