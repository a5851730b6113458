"""Small models and clusters whose whole space brute force can price."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.library.clusters import resolve_gpus
from meshwright.schedules import PLAN_SCHEDULES
from meshwright.specs import (
    Attention,
    ClusterSpec,
    DenseMlp,
    LayerRun,
    LayerSpec,
    ModelSpec,
    MoeMlp,
    Workload,
)
from meshwright.units import GIB

ATTENTION = Attention(heads=4, kv_heads=2, head_dim=128)
DENSE = LayerSpec(attention=ATTENTION, mlp=DenseMlp(ffn_hidden=2048, gated=True))
WINDOWED = LayerSpec(attention=replace(ATTENTION, window=256), mlp=DenseMlp(ffn_hidden=2048, gated=True))
MOE = LayerSpec(
    attention=ATTENTION,
    mlp=MoeMlp(experts=2, top_k=1, ffn_hidden=1024, gated=True, shared_ffn_hidden=512),
)


def model(*runs: LayerRun, tied: bool = False, mtp: int = 0) -> ModelSpec:
    return ModelSpec(
        name="small",
        family="llama",
        hidden=512,
        vocab=32000,
        max_seq_len=8192,
        runs=runs,
        tied_embeddings=tied,
        mtp_layers=mtp,
    )


def cluster(gpus: str, memory_gib: float | None = None) -> ClusterSpec:
    found = resolve_gpus(gpus)
    if memory_gib is None:
        return found
    group = found.groups[0]
    return replace(found, groups=(replace(group, device=replace(group.device, memory_bytes=memory_gib * GIB)),))


@dataclass(frozen=True)
class SmallSpace:
    name: str
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    pins: tuple[tuple[str, tuple[object, ...]], ...] = ()
    """Axes held to these values, as a `Space` takes them."""


SPACES = (
    SmallSpace(
        "dense",
        model(LayerRun(layers=(DENSE,), repeats=3)),
        cluster("4xH100"),
        Workload(seq_len=1024, global_batch=4),
        pins=(("cp", (1, 4)), ("mbs", (1, 2))),
    ),
    SmallSpace(
        "short of memory, two nodes",
        model(LayerRun(layers=(DENSE, WINDOWED), repeats=2), tied=True),
        cluster("2x2xA100-80", 4.0),
        Workload(seq_len=4096, global_batch=4),
        pins=(("cp", (1, 2)), ("mbs", (1, 4)), ("sharding", ("z0", "z1", "fsdp", "hsdp"))),
    ),
    SmallSpace(
        "experts and a prediction module",
        model(LayerRun(layers=(DENSE,), repeats=1), LayerRun(layers=(MOE,), repeats=1), mtp=1),
        cluster("4xH100", 5.0),
        Workload(seq_len=512, global_batch=2),
        pins=(
            ("cp", (1, 2)),
            ("tp_overlap", ("bulk",)),
            ("sharding", ("z0", "fsdp-keep", "hsdp")),
            ("recompute", ("sel-moe_act", "full")),
        ),
    ),
    SmallSpace(
        "exchanges before gradients",
        model(LayerRun(layers=(MOE,), repeats=2)),
        cluster("4x1xA100-80", 7.0),
        Workload(seq_len=512, global_batch=8),
        pins=(
            ("tp", (1,)),
            ("cp", (1,)),
            ("mbs", (1, 2, 4)),
            ("ep_order", ("shared", "first")),
            ("sharding", ("z0", "z1", "z2", "fsdp")),
            ("recompute", ("none", "full")),
        ),
    ),
    SmallSpace(
        "halves, and weights gathered some layers ahead",
        model(LayerRun(layers=(DENSE, WINDOWED), repeats=2)),
        cluster("2x2xA100-80", 2.4),
        Workload(seq_len=1024, global_batch=8),
        pins=(
            ("cp", (1, 2)),
            ("mbs", (1, 2, 4)),
            ("tp_overlap", ("bulk", "ring", "halves")),
            ("prefetch", ("1", "0", "2")),
            ("sharding", ("z0", "z1", "fsdp", "hsdp")),
            ("recompute", ("none", "full")),
        ),
    ),
)

CATALOGUE = SmallSpace(
    "every schedule",
    model(LayerRun(layers=(DENSE, WINDOWED), repeats=4), tied=True),
    cluster("2x2xA100-80", 3.5),
    Workload(seq_len=2048, global_batch=16),
    pins=(
        ("tp", (1,)),
        ("cp", (1,)),
        ("mbs", (1, 2)),
        ("sharding", ("z0", "z2", "fsdp")),
        ("recompute", ("none", "full")),
        ("schedule", PLAN_SCHEDULES),
    ),
)
"""Small enough to write out, and short of memory, with tied ends that share a worker in some schedules."""
