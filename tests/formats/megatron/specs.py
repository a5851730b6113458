"""Jobs and models that Megatron-LM runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.specs import ExecutionPlan, LayerRun, ModelSpec, Workload
from meshwright.specs.job import Job
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerSpec
from meshwright.specs.settings import ModelSettings
from tests.formats.jobs import cluster


def with_model(plan: ExecutionPlan, spec: ModelSpec, **workload: Any) -> Job:
    return Job(
        model=spec,
        cluster=cluster(plan.devices),
        workload=Workload(**({"seq_len": 4096, "global_batch": plan.global_batch} | workload)),
        plan=plan,
    )


DEEPSEEK = ModelSpec(
    name="mla",
    family="deepseek",
    settings=ModelSettings(rope_base=10000.0, norm_epsilon=1e-6, activation="silu"),
    hidden=7168,
    vocab=129280,
    max_seq_len=163840,
    runs=(
        LayerRun(
            layers=(
                LATENT := LayerSpec(
                    attention=LatentAttention(
                        heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
                    ),
                    mlp=DenseMlp(ffn_hidden=18432, gated=True),
                ),
            ),
            repeats=3,
        ),
        LayerRun(
            layers=(
                replace(
                    LATENT,
                    mlp=MoeMlp(experts=256, top_k=8, ffn_hidden=2048, gated=True, shared_ffn_hidden=2048),
                ),
            ),
            repeats=58,
        ),
    ),
    tied_embeddings=False,
    mtp_layers=1,
)
