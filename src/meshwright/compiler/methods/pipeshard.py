"""Stages of the model on meshes of devices, as the user states them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax.sharding import AbstractMesh

from meshwright.compiler.grid import GridSharding, GridSplit
from meshwright.compiler.methods.method import Method, at_least_one, too_many_hosts
from meshwright.compiler.planned_devices import Stated, recognised_hosts, stated_hosts
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeshardParallel(Method):
    """Stages of the model on meshes of devices in a row, micro-batches in a pipeline schedule."""

    num_stages: int | Literal["auto"] = 2
    """Meshes; each takes an equal part of the devices. "auto" leaves their number, their layers and the devices of each
    to the inter-operator pass."""
    hosts: Stated | None = None
    """The devices and their links for "auto", as `Auto` takes them."""
    schedule: str = "1f1b"
    """A name of `meshwright schedule list` with forward and backward tasks."""
    chunks: int | None = None
    """Virtual stages per mesh; the fewest the schedule allows without it."""
    zero: int = 0
    """ZeRO stage within each mesh."""
    keep_gathered: bool = False
    """Whether parameters are gathered once a step instead of by every task, with ZeRO stage 3."""
    split_sums: bool = False
    """Whether every backward reduces its gradients, with ZeRO stage 2, so that no device keeps whole ones between
    micro-batches; without it they are reduced once a step."""
    grid: GridSplit | None = None
    """What is split over devices of a mesh beside its samples; without it, nothing."""
    updates: int | None = None
    """Updates of the weights in one call, of schedules that keep several versions of them: `pipedream` and `ftpipe` do
    one with each micro-batch, `pipedream-2bw` without it as many as have a micro-batch for each stage."""
    results_apart: bool = False
    """Whether results of the loss are returned for each of those updates, along a new first axis, not as one mean."""
    paged: bool = False
    """Whether states wait in host memory: the weights of a stage come while the stage before it on its mesh runs, its
    gradients leave behind it, and the update is made there (Mobius). Meshes have one device."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        wrong = [
            at_least_one(name, value)
            for name, value in (("num_stages", self.num_stages), ("chunks", self.chunks or 1))
            if not isinstance(value, str) and value < 1
        ]
        if isinstance(self.num_stages, str):
            if str(self.num_stages) != "auto":
                wrong.append(
                    Problem(
                        what=f'num_stages = "{self.num_stages}"',
                        why='it is a number or "auto"',
                        fix='num_stages="auto"',
                        field="num_stages",
                    )
                )
            if (self.chunks or 1) > 1:
                wrong.append(
                    Problem(
                        what=f'chunks = {self.chunks} with num_stages = "auto"',
                        why='with "auto" each mesh holds one stage',
                        fix="chunks=1, or a number of stages",
                        field="chunks",
                    )
                )
            wrong += too_many_hosts(self.hosts, self.devices)
        elif self.hosts is not None:
            wrong.append(
                Problem(
                    what=f"hosts with num_stages = {self.num_stages}",
                    why="stages of given number take equal parts of the devices",
                    fix='num_stages="auto"',
                    field="hosts",
                )
            )
        if self.updates is not None and (self.updates < 1 or self.num_micro_batches % self.updates):
            wrong.append(
                Problem(
                    what=f"updates = {self.updates} with num_micro_batches = {self.num_micro_batches}",
                    why="all updates have the same number of micro-batches",
                    fix="updates=1",
                    field="updates",
                )
            )
        if self.zero not in (0, 1, 2, 3):
            wrong.append(Problem(what=f"zero = {self.zero}", why="ZeRO has stages 0 to 3", fix="zero=2", field="zero"))
        if wrong:
            raise InputError(wrong)

    def on(self, devices: Sequence[Any]) -> Hosts | Islands:
        """Hosts to seek stages for; `devices` as `Auto.on` takes them."""
        return recognised_hosts(devices) if self.hosts is None else stated_hosts(self.hosts)

    @property
    def sharding(self) -> DataSharding:
        """Data parallel within each mesh."""
        return DataSharding(stage=self.zero, keep=self.keep_gathered, split_sums=self.split_sums)

    @property
    def pipeline(self) -> tuple[str, int, int]:
        """Schedule, stages and chunks as asked."""
        if isinstance(self.num_stages, str):
            return self.schedule, 0, 1
        return self.schedule, self.num_stages, self.chunks or 0

    @property
    def own_meshes(self) -> frozenset[AbstractMesh]:
        """The mesh of the grid of all stages."""
        return self.grid.written if self.grid is not None else frozenset()

    def sharding_of(self, step: TracedStep) -> MeshSharding:
        """Data parallel, and weights split where it is asked."""
        return self.sharding if self.grid is None else GridSharding.of(step, self.grid, self.sharding)

    def axes(self, devices: int) -> dict[str, int]:
        """Data ranks, or the axes of the grid.

        Raises:
            InputError: the grid is for another number of devices.
        """
        if self.grid is None:
            return {"data": devices}
        grid = self.grid.grid
        if grid.devices != devices:
            raise InputError(
                Problem(
                    what=f"a grid of {grid.devices} devices on {devices} devices of a stage",
                    why="every device has its place in the grid",
                    fix="a grid of the stage's devices",
                    field="grid",
                )
            )
        return dict(grid.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPipeline(PipeshardParallel):
    """The same stages and schedule with every mesh on one and the same device: what a pipeline is compared with."""
