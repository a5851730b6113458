"""Pipeline sets: pipelines of unequal shape that train one batch together."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple


class StageShape(NamedTuple):
    """Consecutive layers on some devices of one kind."""

    device: str
    tp: int
    replicas: int
    """Data-parallel ranks inside the stage; each takes its part of the pipeline's micro-batch."""
    layers: int

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return self.tp * self.replicas


class PipelineShape(NamedTuple):
    """Stages in order, and the sequences of one micro-batch through all of them."""

    micro_batch: int
    stages: tuple[StageShape, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """First layer of each stage, then the number of layers."""
        return tuple(accumulate((stage.layers for stage in self.stages), initial=0))

    def devices(self, device: str) -> int:
        """Devices of a kind in one such pipeline."""
        return sum(stage.devices for stage in self.stages if stage.device == device)


class EqualPipelines(NamedTuple):
    """Equal pipelines of a pipeline set."""

    shape: PipelineShape
    pipelines: int


class ShapeSet(NamedTuple):
    """All pipelines of a job."""

    parts: tuple[EqualPipelines, ...]

    def devices(self, device: str) -> int:
        """Devices of a kind in use."""
        return sum(part.shape.devices(device) * part.pipelines for part in self.parts)
