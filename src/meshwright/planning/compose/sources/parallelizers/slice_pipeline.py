"""One pipeline of partial plans, and what it costs by what their planners claim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Int
from meshwright.specs.seam import PartialPlan

Cost = tuple[float, float, float]
"""Fill, period and synchronisation, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A slice with the partial plan that was chosen for it."""

    group: int
    """Index of the group in the cluster."""
    first: int
    last: int
    """Layers, from 0, inclusive."""
    devices: int
    """Devices that the slice was given; its plan may use fewer."""
    plan: PartialPlan
    parallelizer: str

    @property
    def micro_batch_s(self) -> float:
        """Forward and backward."""
        return self.plan.forward_s + self.plan.backward_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlicePipeline:
    """A pipeline of partial plans."""

    stages: tuple[PlannedStage, ...]
    global_micro_batch: int
    """Sequences of a micro-batch over all data ranks of a stage."""
    hops_s: tuple[float, ...]
    """Seconds of one transfer from each stage to the next."""
    fill_s: float
    period_s: float
    sync_s: float

    @property
    def islands(self) -> frozenset[int]:
        """Groups that its stages stand on."""
        return frozenset(stage.group for stage in self.stages)

    @property
    def stage_islands(self) -> tuple[int, ...]:
        """Group of each stage."""
        return tuple(stage.group for stage in self.stages)

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """Devices of each stage."""
        return tuple(stage.plan.devices for stage in self.stages)

    @property
    def stage_of_layer(self) -> Int[np.ndarray, "layers"]:
        """Which stage holds each layer."""
        return np.repeat(np.arange(len(self.stages)), [stage.last - stage.first + 1 for stage in self.stages])

    @property
    def least_micro_batches(self) -> int:
        """Fewest micro-batches of a step."""
        return 1

    @property
    def claimed(self) -> Cost:
        """Fill, period and synchronisation by what the parallelizers say, whatever it is taken for."""
        cost: Cost = (0.0, 0.0, 0.0)
        behind_s = (*self.hops_s, 0.0)
        for number, (stage, hop) in enumerate(reversed(list(zip(self.stages, behind_s, strict=True))), start=1):
            cost = cost_with_stage(cost, stage.micro_batch_s, stage.plan.sync_s, hop, number)
        return cost

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return sum(stage.plan.devices for stage in self.stages)

    def step_s(self, micro_batches: float) -> float:
        """Seconds of so many micro-batches and of what follows them, as the partial plans claim."""
        return self.fill_s + (micro_batches - 1) * self.period_s + self.sync_s

    def holds(self, micro_batches: int) -> bool:
        """Always: planners of slices answer for the most that are in flight."""
        return True


def cost_with_stage(behind: Cost, busy_s: float, sync_s: float, hop: float, stages: int) -> Cost:
    """Costs with one more stage in front, of so many."""
    fill_s = behind[0] + busy_s + 2 * hop
    return fill_s, max(behind[1], busy_s, fill_s / stages), max(behind[2], sync_s)
