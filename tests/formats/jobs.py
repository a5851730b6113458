"""Small models, clusters and jobs that the tests of plans share."""

from __future__ import annotations

from dataclasses import MISSING, fields

from meshwright.specs import (
    Attention,
    ClusterSpec,
    DenseMlp,
    DeviceSpec,
    DomainSpec,
    ExecutionPlan,
    KernelEfficiency,
    LayerRun,
    LayerSpec,
    ModelSpec,
    MoeMlp,
    NodeGroup,
    Workload,
)
from meshwright.specs.job import Job
from meshwright.specs.settings import ModelSettings

DENSE_LAYER = LayerSpec(
    attention=Attention(heads=32, kv_heads=8, head_dim=128), mlp=DenseMlp(ffn_hidden=14336, gated=True)
)
MOE_LAYER = LayerSpec(
    attention=Attention(heads=32, kv_heads=8, head_dim=128),
    mlp=MoeMlp(experts=64, top_k=2, ffn_hidden=1024, gated=True),
)


def model(layers: int, kind: LayerSpec = DENSE_LAYER) -> ModelSpec:
    """A decoder of equal layers."""
    return ModelSpec(
        name=f"toy-{layers}",
        family="llama",
        hidden=4096,
        vocab=128256,
        max_seq_len=8192,
        runs=(LayerRun(layers=(kind,), repeats=layers),),
        tied_embeddings=False,
        settings=ModelSettings(rope_base=500000.0, norm_epsilon=1e-5, activation="silu"),
    )


# Plans do not look at what kernels reach, so any numbers do.
EFFICIENCY = KernelEfficiency(
    source="round numbers for tests",
    **{
        item.name: {"int": 128, "float": 1.0}[str(item.type)]
        for item in fields(KernelEfficiency)
        if item.default is MISSING and item.name != "source"
    },
)
DEVICE = DeviceSpec(
    name="T1",
    vendor="test",
    year=2024,
    peak_flop_per_s=(("bf16", 1e15), ("fp8", 2e15)),
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=3e12,
    units=132,
    host_bandwidth_bytes_per_s=5e10,
    efficiency=EFFICIENCY,
)


def cluster(devices: int, per_node: int = 8) -> ClusterSpec:
    """Nodes of 8 devices, or one node of fewer."""
    per_node = per_node if devices % per_node == 0 else devices
    inner = DomainSpec(name="nvlink", size=per_node, bandwidth_bytes_per_s=4.5e11, efficiency=0.8, latency_s=2e-6)
    outer = DomainSpec(name="fabric", size=devices, bandwidth_bytes_per_s=5e10, efficiency=0.9, latency_s=5e-6)
    group = NodeGroup(
        name="all", device=DEVICE, nodes=devices // per_node, devices_per_node=per_node, domains=(inner, outer)
    )
    return ClusterSpec(name=f"{devices}xT1", groups=(group,))


def job(plan: ExecutionPlan, kind: LayerSpec = DENSE_LAYER, name: str | None = None) -> Job:
    """The plan with a model of its depth on a cluster of its size."""
    last = max(last for pipeline in plan.pipelines for worker in pipeline.workers for _, last in worker.devices)
    return Job(
        model=model(plan.num_layers, kind),
        cluster=cluster(last + 1),
        workload=Workload(seq_len=4096, global_batch=plan.global_batch),
        plan=plan,
        name=name,
    )
