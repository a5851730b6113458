"""Slices, islands and parallelizers that tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.fields.job import JobFields
from meshwright.planning.compose.sources.parallelizers.guard import least_forward_s
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.specs.cluster import Island
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload


def job(model: str = "llama-3-8b", gpus: str = "16xH100,8xA100-80") -> JobInputs:
    return job_inputs(JobFields(model=model, gpus=gpus, seq_len=2048, global_batch=64))


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


@dataclass(frozen=True)
class Plain:
    """Every tensor degree, the rest data parallel: larger degrees are slower and take less memory."""

    name: str = "plain"

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        devices = island.devices
        least_s = least_forward_s(part, island, workload, micro_batch, devices)
        edges = part.model.head_parameters * part.head + part.model.embedding_parameters * part.embedding
        layers = sum(layer.parameters(part.model.hidden) * count for layer, count in part.layers)
        return [
            PartialPlan(
                devices=devices,
                micro_batch=micro_batch,
                forward_s=least_s * (2 + 0.1 * tp) * (1 + edges / layers),
                backward_s=least_s * (4 + 0.2 * tp),
                sync_s=0.01 / tp,
                state_bytes=18.0 * (layers + edges) / tp,
                activation_bytes=2e9 * part.num_layers * micro_batch / devices,
                strategies=(PlanRow(tp=tp, dp=devices // tp, mbs=1, gbs=micro_batch).strategy(),),
                runs=(StrategyRun(layers=part.num_layers, strategy=0),),
            )
            for tp in (1, 2, 4, 8)
            if devices % tp == 0
        ]
