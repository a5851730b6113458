"""Ways to run a training step on many devices: what users hand to `parallelize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from jax.sharding import AbstractMesh

from meshwright.compiler.grid import GridSharding, GridSplit
from meshwright.compiler.method_plan import MethodPlan, load_plan
from meshwright.compiler.planned_devices import Stated, recognised_hosts, stated_hosts
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import StageSpace
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
        wrong = [] if self.num_micro_batches >= 1 else [_at_least_one("num_micro_batches", self.num_micro_batches)]
        wrong += _not_devices(self.devices)
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
            step: that runs.
        """
        return self.sharding

    def axes(self, devices: int) -> dict[str, int]:
        """Axes of a mesh and devices along them.

        Args:
            devices: of the mesh.
        """
        return {"data": devices}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Method):
    """Every device holds the whole model and a share of the samples; gradients are all-reduced once a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero2Parallel(Method):
    """Data parallel with optimizer state and gradients split over the devices (ZeRO-2), reduced once a step."""

    @property
    def sharding(self) -> DataSharding:
        """State and gradients split."""
        return DataSharding(stage=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero3Parallel(Method):
    """Data parallel with parameters split too (ZeRO-3, FSDP)."""

    @property
    def sharding(self) -> DataSharding:
        """Everything split."""
        return DataSharding(stage=3)


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
            devices: of JAX.
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
            devices: in the mesh.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeshardParallel(Method):
    """Stages of the model on meshes of devices in a row, micro-batches in a pipeline schedule."""

    num_stages: int | Literal["auto"] = 2
    """Meshes; each takes an equal part of the devices. "auto" leaves their number, their layers and the devices of each
    to the inter-operator pass."""
    hosts: Stated | None = None
    """With "auto", what the devices and their links are like, as `Auto` takes it."""
    schedule: str = "1f1b"
    """A name of `meshwright schedule list` with forward and backward tasks."""
    chunks: int | None = None
    """Virtual stages per mesh; the fewest the schedule allows without it."""
    zero: int = 0
    """ZeRO stage within each mesh."""
    keep_gathered: bool = False
    """With ZeRO stage 3, whether parameters are gathered once a step instead of by every task."""
    split_sums: bool = False
    """With ZeRO stage 2, whether every backward reduces its gradients, so that no device keeps whole ones between
    micro-batches; without it they are reduced once a step."""
    grid: GridSplit | None = None
    """What is split over devices of a mesh beside its samples; without it, nothing."""
    updates: int | None = None
    """Updates of the weights in one call, of schedules that keep several versions of them: `pipedream` and `ftpipe` do
    one with each micro-batch, `pipedream-2bw` without it as many as have a micro-batch for each stage."""
    results_apart: bool = False
    """Whether results of the loss are returned for each of those updates, along a new first axis, not as one mean."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        wrong = [
            _at_least_one(name, value)
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
            wrong += _too_many(self.hosts, self.devices)
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
        """As asked."""
        if isinstance(self.num_stages, str):
            return self.schedule, 0, 1
        return self.schedule, self.num_stages, self.chunks or 0

    @property
    def own_meshes(self) -> frozenset[AbstractMesh]:
        """That of the grid of all stages."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(Method):
    """Stages, submeshes, shardings, micro-batches and recomputation, all chosen: Alpa's two passes."""

    num_micro_batches: int = 0
    """0 chooses them."""
    hosts: Stated | None = None
    """What the devices and their links are like: `8xH100`, a cluster, or numbers; without it, the kind of the devices
    where the library knows it, else its unknown accelerator."""
    recompute: bool | None = None
    """Whether every layer runs its forward again in the backward; without it, where that takes less time."""
    most_stages: int = 16

    def __post_init__(self) -> None:
        wrong = [_at_least_one("most_stages", self.most_stages)] if self.most_stages < 1 else []
        if self.num_micro_batches < 0:
            wrong.append(_at_least_one("num_micro_batches", self.num_micro_batches))
        wrong += _not_devices(self.devices) or _too_many(self.hosts, self.devices)
        if wrong:
            raise InputError(wrong)

    def on(self, devices: Sequence[Any]) -> Hosts | Islands:
        """Hosts to plan for.

        Args:
            devices: of JAX.
        """
        return recognised_hosts(devices) if self.hosts is None else stated_hosts(self.hosts)

    @property
    def space(self) -> StageSpace:
        """What is tried. Gradients of operators that are split one by one are reduced with each micro-batch."""
        return StageSpace(
            micro_batches=(self.num_micro_batches,) if self.num_micro_batches else None,
            recompute=(True, False) if self.recompute is None else (self.recompute,),
            reductions="micro-batch",
            most_stages=self.most_stages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowParallel(Method):
    """Where the state of a training step is, for a function without gradients of parts of it: `mw.FollowParallel(
    train_step)`. Parameters stay where they are; micro-batches go through their meshes as a pipeline."""

    step: Any = field(kw_only=False)
    """What `parallelize` made of the training step."""
    reads: Callable[..., Any] | None = None
    """From arguments like those of the step, what the function is given beside its batch:
    `lambda state, batch: state.params`; without it, found by structure and shapes."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        if self.devices is not None:
            raise InputError(
                Problem(
                    what="devices of a function that follows a step",
                    why="it runs where the step's state is",
                    fix="leave devices out",
                    field="devices",
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FromPlan(Method):
    """What a saved plan says (`train_step.lower(...).plan`), decision by decision."""

    plan: StagesPlan | MethodPlan

    @classmethod
    def load(cls, path: str | Path, devices: Sequence[Any] | None = None) -> FromPlan:
        """The plan in a file.

        Args:
            path: that `compiled.plan.save` or `compiled.save` wrote.
            devices: of JAX; all of this process without it.

        Raises:
            InputError: there is no such file, or it holds no plan.
        """
        return cls(plan=load_plan(path), devices=devices)


def _too_many(stated: Stated | None, devices: Sequence[Any] | None) -> list[Problem]:
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


def _not_devices(stated: Any) -> list[Problem]:
    """What is wrong with what stands for devices: their number, or the name of a platform."""
    if stated is None or (hasattr(stated, "__iter__") and not isinstance(stated, str)):
        return []
    count = stated if isinstance(stated, int) and stated > 0 else 2
    why, fix = "they are a sequence of JAX devices", f"devices=jax.devices()[:{count}]"
    return [Problem(what=f"devices = {stated!r:.80}", why=why, fix=fix, field="devices")]


def _at_least_one(name: str, value: int) -> Problem:
    return Problem(what=f"{name} = {value}", why="it counts from 1", fix=f"{name}=1", field=name)
