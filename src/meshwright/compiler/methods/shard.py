"""Every operator split over the devices: Alpa's inner pass alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from meshwright.compiler.methods.method import Method
from meshwright.compiler.planned_devices import Stated, recognised_hosts, stated_hosts
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParallel(Method):
    """Every operator split over the devices the way that takes the whole step the least time (Alpa's inner pass)."""

    mesh_shape: tuple[int, ...] | None = None
    """Devices along each axis of a logical mesh of 1 to 3 axes; without it, the best row or grid of two axes."""
    data_ranks: int | None = None
    """Parts along the first axis of the mesh that share the samples, whatever it costs; without it, where it pays."""
    memory_bytes: float | None = None
    """Memory of one device for parameters, gradients, optimizer state and activations, bytes; None: unlimited."""
    hosts: Stated | None = None
    """What the devices and their links are like, of one kind: `8xH100`, a cluster, or numbers; without it, the kind of
    the devices where the library knows it, else its unknown accelerator."""
    flop_per_s: float | None = None
    """Speed of one device in matrix products; None: that of `hosts`."""
    link_bytes_per_s: float | None = None
    """Out of one device, in one direction, likewise."""
    link_latency_s: float | None = None
    """Latency of one collective, seconds; None: that of `hosts`."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        wrong = [
            Problem(what=f"{name} = {value}", why="it is a positive number", fix=f"{name}={fix:g}", field=name)
            for name, value, fix in (
                ("memory_bytes", self.memory_bytes, 16e9),
                ("flop_per_s", self.flop_per_s, 100e12),
                ("link_bytes_per_s", self.link_bytes_per_s, 100e9),
            )
            if value is not None and not value > 0
        ]
        if self.link_latency_s is not None and self.link_latency_s < 0:
            wrong.append(
                Problem(
                    what=f"link_latency_s = {self.link_latency_s}",
                    why="no collective ends before it begins",
                    fix="link_latency_s=0",
                    field="link_latency_s",
                )
            )
        shape = self.mesh_shape
        if shape is not None and (not 1 <= len(shape) <= 3 or min(shape) < 1):
            wrong.append(
                Problem(
                    what=f"mesh_shape = {shape}",
                    why="a logical mesh has 1 to 3 axes of devices",
                    fix="mesh_shape=(2, 4)",
                    field="mesh_shape",
                )
            )
        ranks = self.data_ranks
        if ranks is not None and ranks < 2:
            wrong.append(
                Problem(
                    what=f"data_ranks = {ranks}",
                    why="samples are shared between two ranks or more",
                    fix="data_ranks=2, or leave it out",
                    field="data_ranks",
                )
            )
        elif ranks is not None and shape and shape[0] != ranks:
            wrong.append(
                Problem(
                    what=f"data_ranks = {ranks} with mesh_shape = {shape}",
                    field="data_ranks",
                    why="data ranks lie along the first axis of the mesh",
                    fix=f"data_ranks={shape[0]}",
                )
            )
        if self.hosts is not None and isinstance(stated_hosts(self.hosts), Islands):
            wrong.append(
                Problem(
                    what="hosts of several kinds",
                    why="an operator is split over equal devices",
                    fix="hosts of one kind, or method=Auto(hosts=...)",
                    field="hosts",
                )
            )
        if wrong:
            raise InputError(wrong)

    def on(self, devices: Sequence[Any]) -> Hosts:
        """The devices that operators are split over, as one host.

        Args:
            devices: the devices of JAX.
        """
        known = recognised_hosts(devices) if self.hosts is None else stated_hosts(self.hosts)
        assert isinstance(known, Hosts)
        rates = {"flop_per_s": self.flop_per_s}
        links = {"inside_bytes_per_s": self.link_bytes_per_s, "inside_latency_s": self.link_latency_s}
        stated = {name: value for name, value in (rates | links).items() if value is not None}
        if not stated:
            return known
        rest = "" if len(stated) == len(rates | links) else f", else {known.source}"
        if set(stated) & set(links):
            known = replace(known, hosts=1, devices_per_host=known.devices)
        return replace(known, source=f"stated{rest}", **stated)  # type: ignore[arg-type]

    def shapes(self, devices: int) -> list[tuple[int, ...]]:
        """Logical meshes to choose from.

        Args:
            devices: the number of devices in the mesh.

        Raises:
            InputError: `mesh_shape` or `data_ranks` is for another number of devices.
        """
        ranks = self.data_ranks
        if self.mesh_shape is None and ranks is not None:
            if devices % ranks:
                raise InputError(
                    Problem(
                        what=f"data_ranks = {ranks} on {devices} devices",
                        field="data_ranks",
                        why="all ranks have as many devices",
                        fix=f"data_ranks={devices}, or other devices",
                    )
                )
            return [(devices,) if ranks == devices else (ranks, devices // ranks)]
        if self.mesh_shape is None:
            return [(devices,), *((n, devices // n) for n in range(2, devices) if devices % n == 0)]
        if prod(self.mesh_shape) != devices:
            raise InputError(
                what=f"mesh_shape = {self.mesh_shape} on {devices} devices",
                why=f"its axes hold {prod(self.mesh_shape)} devices",
                fix=f"mesh_shape=({devices},), or other devices",
                field="mesh_shape",
            )
        return [self.mesh_shape]
