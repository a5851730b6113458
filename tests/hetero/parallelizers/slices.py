"""Slices, islands and parallelizers that tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.job_inputs import JobInputs, job_inputs
from meshwright.hetero.parallelizers.guard import least_forward_s
from meshwright.specs.cluster import Island
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload


def job(model: str = "llama-3-8b", gpus: str = "16xH100,8xA100-80") -> JobInputs:
    return job_inputs(model, gpus=gpus, seq_len=2048, global_batch=64)


def slice_of(inputs: JobInputs, layers: int, **edges: bool) -> ModelSlice:
    return ModelSlice(model=inputs.model, layers=((next(inputs.model.layers()), layers),), **edges)


def island_of(inputs: JobInputs, group: int = 0, devices: int = 8) -> Island:
    return Island(group=inputs.cluster.groups[group], first_device=0, devices=devices)


@dataclass(frozen=True)
class Half:
    """A parallelizer that takes all devices and half of their peak; `change` makes it lie."""

    change: dict[str, Any]
    name: str = "half"

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        devices = island.devices
        forward_s = 2 * least_forward_s(part, island, workload, micro_batch, devices)
        honest = PartialPlan(
            devices=devices,
            micro_batch=micro_batch,
            forward_s=forward_s,
            backward_s=2 * forward_s,
            sync_s=0.0,
            state_bytes=1e9,
            activation_bytes=1e9,
            strategies=(PlanRow(tp=devices, mbs=micro_batch, gbs=micro_batch).strategy(),),
            runs=(StrategyRun(layers=part.num_layers, strategy=0),),
        )
        return [honest, replace(honest, **self.change)] if self.change else [honest]
