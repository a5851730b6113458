"""The nouns: model, cluster, workload, strategy, plan and the seam for other planners. Frozen, checked when built.

A name is imported when it is asked for, so that a command's help does not load every noun.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.specs.cluster import ClusterSpec, DomainSpec, Island, LinkSpec, NodeGroup
    from meshwright.specs.device import DeviceSpec, KernelEfficiency, Provenance
    from meshwright.specs.layers.attention import Attention
    from meshwright.specs.layers.dense_mlp import DenseMlp
    from meshwright.specs.layers.latent_attention import LatentAttention
    from meshwright.specs.layers.moe import MoeMlp
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

_HOMES = {
    "Attention": "layers.attention",
    "Chunk": "plan",
    "ClusterSpec": "cluster",
    "DenseMlp": "layers.dense_mlp",
    "DeviceSpec": "device",
    "DomainSpec": "cluster",
    "ExecutionPlan": "plan",
    "Frozen": "tuning",
    "Island": "cluster",
    "KernelEfficiency": "device",
    "LatentAttention": "layers.latent_attention",
    "LayerRun": "model",
    "LayerSpec": "model",
    "LayerStrategy": "strategy",
    "LinkSpec": "cluster",
    "Lora": "tuning",
    "ModelSlice": "seam",
    "ModelSpec": "model",
    "MoeMlp": "layers.moe",
    "NodeGroup": "cluster",
    "Parallelizer": "seam",
    "PartialPlan": "seam",
    "Pipeline": "plan",
    "PlanRow": "row",
    "Precision": "precision",
    "Provenance": "device",
    "Schedule": "plan",
    "StrategyRun": "plan",
    "Tuning": "tuning",
    "Worker": "plan",
    "Workload": "workload",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
