"""Devices as the inter-operator pass sees them: equal hosts, submeshes of them, and what their links take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.errors import InputError, Problem
from meshwright.estimate.hardware import hardware_of
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.precision import precision
from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Equal hosts of equal devices; stages take them one after the other."""

    hosts: int
    devices_per_host: int
    name: str = "hosts"
    """Name of the group of equal hosts."""
    flop_per_s: float
    """Speed of one device reached in matrix products, flop/s."""
    inside_bytes_per_s: float
    """Bandwidth between devices of a host: out of one device, in one direction."""
    between_bytes_per_s: float
    """Bandwidth between hosts: out of one host, in one direction; its devices share it."""
    memory_bytes: float | None = None
    """Memory of one device for parameters, gradients, optimizer state and activations; None: unlimited."""
    inside_latency_s: float = 5e-6
    between_latency_s: float = 2e-5
    launch_s: float = 0.0
    """What a product takes beyond its work: with it many small micro-batches are no quicker than few."""
    source: str = "stated"
    """Source of these numbers, shown with the plan."""

    def __post_init__(self) -> None:
        wrong = [
            Problem(
                what=f"{name} = {getattr(self, name)}", why="it is a positive number", field=name, fix=f"{name} > 0"
            )
            for name in (
                "hosts",
                "devices_per_host",
                "flop_per_s",
                "inside_bytes_per_s",
                "between_bytes_per_s",
                "memory_bytes",
            )
            if getattr(self, name) is not None and not getattr(self, name) > 0
        ]
        if wrong:
            raise InputError(wrong)

    @classmethod
    def of(cls, group: NodeGroup, workload: Workload | None = None) -> Hosts:
        """Hosts of a group of nodes, its innermost domain inside and its outermost between them.

        Products of matrices run at the rate that estimates give them: peak x the fraction that kernels reach.

        Args:
            group: the group of a cluster.
            workload: the workload whose formats and framework count; one step in the widest 16-bit format of the device
                by default.

        Raises:
            UnsupportedError: the device does not compute in the workload's format.
        """
        inner, outer, device = group.domains[0], group.domains[-1], group.device
        if workload is None:
            known = next((name for name in ("bf16", "fp16") if device.peak(name)), "fp32")
            workload = Workload(seq_len=1, global_batch=1, precision=precision(known))
        hardware = hardware_of(group, workload)
        flop_per_s = hardware.gemm_flop_per_s * hardware.gemm_fraction
        return cls(
            source=f"{device.name}, {workload.precision.name} [{device.efficiency.basis}]",
            name=group.name,
            hosts=group.nodes,
            devices_per_host=group.devices_per_node,
            flop_per_s=flop_per_s,
            memory_bytes=group.device.memory_bytes,
            inside_bytes_per_s=inner.bandwidth_bytes_per_s * inner.efficiency,
            between_bytes_per_s=outer.bandwidth_bytes_per_s * outer.efficiency * group.devices_per_node,
            inside_latency_s=inner.latency_s,
            between_latency_s=outer.latency_s,
            launch_s=hardware.efficiency.launch_s,
        )

    @property
    def limit_bytes(self) -> float:
        """Memory of one device, infinite where it is unlimited."""
        return math.inf if self.memory_bytes is None else self.memory_bytes

    @property
    def devices(self) -> int:
        """All devices."""
        return self.hosts * self.devices_per_host

    def submeshes(self) -> list[int]:
        """Devices a stage may have: powers of two within a host, then whole hosts.

        Source: Zheng et al. (OSDI 2022), section 5.2: (1, 2^m) and (n, M) always tile an N x M cluster.
        """
        inside = [1 << power for power in range(self.devices_per_host.bit_length())]
        inside = [count for count in inside if self.devices_per_host % count == 0]
        whole = [n * self.devices_per_host for n in range(1, self.hosts + 1) if n & (n - 1) == 0 or n == self.hosts]
        return sorted({*inside, *whole})

    def fits(self, first: int, count: int) -> bool:
        """Whether devices in a row are part of one host or whole hosts.

        Args:
            first: device.
            count: devices.
        """
        inside = first % self.devices_per_host
        return inside + count <= self.devices_per_host or (inside == 0 and count % self.devices_per_host == 0)

    def views(self, count: int) -> list[tuple[int, ...]]:
        """Logical meshes of a submesh: a row, and grids of two axes.

        A grid and its transpose cost the same within a host; between hosts the inner axis stays within one.

        Args:
            count: devices.
        """
        inner = min(count, self.devices_per_host)
        grids = [(count // n, n) for n in range(2, inner + 1) if inner % n == 0 and count // n > 1]
        if count <= self.devices_per_host:
            grids = [shape for shape in grids if shape[0] <= shape[1]]
        return [(count,), *grids]

    def mesh(self, shape: tuple[int, ...]) -> LogicalMesh:
        """A logical mesh with the price of its links.

        Devices are in row-major order. An axis whose groups reach beyond a host shares the link of each host among as
        many groups as cross it at once.

        Args:
            shape: devices along each axis.
        """
        axes, stride = [], 1
        for size in reversed(shape):
            crossing = stride * size > self.devices_per_host
            sharing = min(stride, self.devices_per_host)
            axes.append(
                MeshAxis(
                    size=size,
                    latency_s=self.between_latency_s if crossing else self.inside_latency_s,
                    bytes_per_s=min(self.between_bytes_per_s / sharing, self.inside_bytes_per_s)
                    if crossing
                    else self.inside_bytes_per_s,
                )
            )
            stride *= size
        return LogicalMesh(
            axes=tuple(reversed(axes)), flop_per_s=self.flop_per_s, launch_s=self.launch_s, source=self.source
        )

    def hop_s(self, size_bytes: float, first: int, left: int, right: int) -> float:
        """Seconds to hand a value from one submesh to the next: every byte once, links of all hosts or devices at once.

        Args:
            size_bytes: the size in bytes of the whole value.
            first: device of the right submesh; the left one ends before it.
            left: devices of the left submesh.
            right: the devices of the right one.
        """
        if first % self.devices_per_host:
            return self.inside_latency_s + size_bytes / (self.inside_bytes_per_s * min(left, right))
        links = max(1, min(left, right) // self.devices_per_host)
        return self.between_latency_s + size_bytes / (self.between_bytes_per_s * links)
