"""What all ways to run a training step on many devices take, and what they refuse alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import AbstractMesh

from meshwright.compiler.planned_devices import Stated, stated_hosts
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What all methods take."""

    devices: Sequence[Any] | None = None
    """JAX devices; all of this process without it."""
    num_micro_batches: int = 1
    """Parts of a batch whose gradients are accumulated before the update."""

    def __post_init__(self) -> None:
        wrong = [] if self.num_micro_batches >= 1 else [at_least_one("num_micro_batches", self.num_micro_batches)]
        wrong += not_devices(self.devices)
        if wrong:
            raise InputError(wrong)

    @property
    def sharding(self) -> DataSharding:
        """Shardings of values on each mesh."""
        return DataSharding()

    @property
    def own_meshes(self) -> frozenset[AbstractMesh]:
        """Meshes whose axes a step may name, because the stage that does runs on devices that have them."""
        return frozenset()

    @property
    def pipeline(self) -> tuple[str, int, int]:
        """Schedule, workers and chunks per worker."""
        return "1f1b", 1, 1

    def sharding_of(self, step: TracedStep) -> MeshSharding:
        """Shardings of the values of a step on each mesh.

        Args:
            step: the step that runs.
        """
        return self.sharding

    def axes(self, devices: int) -> dict[str, int]:
        """Axes of a mesh and devices along them.

        Args:
            devices: the number of devices of the mesh.
        """
        return {"data": devices}


def too_many_hosts(stated: Stated | None, devices: Sequence[Any] | None) -> list[Problem]:
    if stated is None or devices is None or (hosts := stated_hosts(stated)).devices <= len(devices):
        return []
    return [
        Problem(
            what=f"hosts of {hosts.devices} devices, and {len(devices)} devices",
            why="all devices of the hosts are used",
            fix=f"{hosts.devices} devices",
            field="hosts",
        )
    ]


def not_devices(stated: Any) -> list[Problem]:
    """What is wrong with what stands for devices: their number, or the name of a platform."""
    if stated is None or (hasattr(stated, "__iter__") and not isinstance(stated, str)):
        return []
    count = stated if isinstance(stated, int) and stated > 0 else 2
    why, fix = "they are a sequence of JAX devices", f"devices=jax.devices()[:{count}]"
    return [Problem(what=f"devices = {stated!r:.80}", why=why, fix=fix, field="devices")]


def at_least_one(name: str, value: int) -> Problem:
    return Problem(what=f"{name} = {value}", why="it counts from 1", fix=f"{name}=1", field=name)
