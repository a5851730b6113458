"""The nouns: model, cluster, workload, strategy, plan and the seam for other planners. Frozen, checked when built."""

from __future__ import annotations

from meshwright.specs.cluster import ClusterSpec, DomainSpec, Island, LinkSpec, NodeGroup
from meshwright.specs.device import DeviceSpec, KernelEfficiency, Provenance
from meshwright.specs.layers import Attention, DenseMlp, LatentAttention, MoeMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, StrategyRun, Worker
from meshwright.specs.precision import Precision
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.tuning import Frozen, Lora, Tuning
from meshwright.specs.workload import Workload

__all__ = [
    "Attention",
    "Chunk",
    "ClusterSpec",
    "DenseMlp",
    "DeviceSpec",
    "DomainSpec",
    "ExecutionPlan",
    "Frozen",
    "Island",
    "KernelEfficiency",
    "LatentAttention",
    "LayerRun",
    "LayerSpec",
    "LayerStrategy",
    "LinkSpec",
    "Lora",
    "ModelSlice",
    "ModelSpec",
    "MoeMlp",
    "NodeGroup",
    "Parallelizer",
    "PartialPlan",
    "Pipeline",
    "PlanRow",
    "Precision",
    "Provenance",
    "Schedule",
    "StrategyRun",
    "Tuning",
    "Worker",
    "Workload",
]
