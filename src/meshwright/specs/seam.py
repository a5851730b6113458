"""The seam behind which any parallelizer can stand: a slice of the model and an island in, partial plans out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from meshwright.specs.cluster import Island
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import StrategyRun
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSlice:
    """Consecutive layers of a model, known by content: equal layers give equal slices wherever they stand."""

    model: ModelSpec
    layers: tuple[tuple[LayerSpec, int], ...]
    """Runs (kind, count)."""
    embedding: bool = False
    head: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of all runs."""
        return sum(count for _, count in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialPlan:
    """One way to run a slice on some devices of an island."""

    devices: int
    micro_batch: int
    forward_s: float
    """Seconds of forward per micro-batch."""
    backward_s: float
    sync_s: float
    """Gradient synchronisation and optimizer per step that compute does not hide."""
    state_bytes: float
    """Weights, gradients, optimizer, transient and overheads per device."""
    activation_bytes: float
    """Kept per micro-batch in flight and device."""
    strategies: tuple[LayerStrategy, ...]
    runs: tuple[StrategyRun, ...]


class Parallelizer(Protocol):
    """Anything that can plan a slice on a homogeneous island."""

    name: str

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """Partial plans worth considering; one that another beats in devices, time and memory may be left out."""
        ...
