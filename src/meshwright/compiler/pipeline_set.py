"""Pipelines of unlike stages that train one batch together, as a method of `parallelize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from meshwright.compiler.grid import GridSharding, GridSplit
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.methods.method import Method
from meshwright.compiler.shardings import DataSharding, MeshSharding
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevices:
    """The devices of one worker, and what is split over them."""

    devices: tuple[int, ...]
    """Numbers of the devices among those of the method."""
    data: DataSharding = field(default_factory=DataSharding)
    split: GridSplit | None = None
    """What is split beside samples; without it, nothing."""

    def mesh(self, devices: Sequence[Any]) -> Mesh:
        """The worker's devices as a row of data ranks, or as its grid.

        Args:
            devices: the devices of the method.
        """
        own = np.array([devices[number] for number in self.devices], dtype=object)
        if self.split is None:
            return Mesh(own, ("data",))
        sizes = dict(self.split.grid.sizes)
        return Mesh(own.reshape(tuple(sizes.values())), tuple(sizes))

    def sharding(self, step: TracedStep) -> MeshSharding:
        """How values lie on it.

        Args:
            step: the step that runs.
        """
        return self.data if self.split is None else GridSharding.of(step, self.split, self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPipeline:
    """One pipeline and its share of the batch."""

    workers: tuple[StageDevices, ...]
    samples: int
    """Samples of one micro-batch, over all data ranks."""
    micro_batches: int
    schedule: str = "1f1b"
    chunks: int = 1
    """Virtual stages of each worker."""
    step: Callable[..., Any] | None = None
    """The step as this pipeline runs it: ends of stages marked, layers recomputed, products split over its grids; what
    it computes is the same. None: the step itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSet(Method):
    """Pipelines that share a batch, each its own way. Their losses must be said to be means or sums."""

    pipelines: tuple[StagedPipeline, ...]
    joint_states: bool = False
    """Whether all pipelines hold one copy of the optimizer states together, each some tensors in proportion to its
    devices, and update these; else the first holds and updates all."""
    paces: Callable[[StepProgram], Sequence[Sequence[float]]] | None = None
    """Least seconds of each instruction of each mesh, to emulate slower devices; None slows nothing down."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        numbers = [number for one in self.pipelines for worker in one.workers for number in worker.devices]
        if not numbers or len(set(numbers)) != len(numbers):
            raise InputError(
                Problem(
                    what=f"{len(numbers)} places for {len(set(numbers))} devices",
                    why="a device belongs to one worker of one pipeline",
                    field="pipelines",
                    fix="other numbers of devices",
                )
            )

    @property
    def own_meshes(self) -> frozenset[AbstractMesh]:
        """Meshes of the grids of the workers."""
        splits = [worker.split for one in self.pipelines for worker in one.workers if worker.split is not None]
        return frozenset().union(*(split.written for split in splits))

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return sum(one.samples * one.micro_batches for one in self.pipelines)
