"""Ways to run a training step on many devices: what users hand to `parallelize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.compiler.shardings import DataSharding
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What all methods take."""

    devices: Sequence[Any] | None = None
    """JAX devices; all of this process without it."""
    num_micro_batches: int = 1
    """Parts of a batch whose gradients are accumulated before the update."""

    def __post_init__(self) -> None:
        if self.num_micro_batches < 1:
            raise InputError(_at_least_one("num_micro_batches", self.num_micro_batches))

    @property
    def sharding(self) -> DataSharding:
        """How values lie on each mesh."""
        return DataSharding()

    @property
    def pipeline(self) -> tuple[str, int, int]:
        """Schedule, workers and chunks per worker."""
        return "1f1b", 1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Method):
    """Every device holds the whole model and a share of the samples; gradients are all-reduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero2Parallel(Method):
    """Data parallel with optimizer state and gradients split over the devices (ZeRO-2)."""

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
class PipeshardParallel(Method):
    """Stages of the model on meshes of devices in a row, micro-batches in a pipeline schedule."""

    num_stages: int = 2
    """Meshes; each takes an equal part of the devices."""
    schedule: str = "1f1b"
    """A name of `meshwright schedule list` with forward and backward tasks."""
    chunks: int | None = None
    """Virtual stages per mesh; the fewest the schedule allows without it."""
    zero: int = 0
    """ZeRO stage within each mesh."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        wrong = [
            _at_least_one(name, value)
            for name, value in (("num_stages", self.num_stages), ("chunks", self.chunks or 1))
            if value < 1
        ]
        if self.zero not in (0, 1, 2, 3):
            wrong.append(Problem(what=f"zero = {self.zero}", why="ZeRO has stages 0 to 3", fix="zero=2", field="zero"))
        if wrong:
            raise InputError(wrong)

    @property
    def sharding(self) -> DataSharding:
        """Data parallel within each mesh."""
        return DataSharding(stage=self.zero)

    @property
    def pipeline(self) -> tuple[str, int, int]:
        """As asked."""
        return self.schedule, self.num_stages, self.chunks or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPipeline(PipeshardParallel):
    """The same stages and schedule with every mesh on one and the same device: what a pipeline is compared with."""


def _at_least_one(name: str, value: int) -> Problem:
    return Problem(what=f"{name} = {value}", why="it counts from 1", fix=f"{name}=1", field=name)
