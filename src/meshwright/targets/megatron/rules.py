"""What starts under Megatron-LM and what does not, beyond what its options say: rules as data, each with its source."""

from __future__ import annotations

import math

from meshwright.errors import Problem
from meshwright.specs.job import Job
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.row_of import homogeneous
from meshwright.targets.sayable import Plan, Rule, broken, overlap_inside_domain, settings_of

_EIGHT_BIT = {"fp8": 16, "fp8-block": 128, "mxfp8": 32}
"""Divisor of the sizes of 8-bit products, by format."""


def _sizes_divide(plan: Plan) -> bool:
    """Whether every tensor rank's share of an 8-bit product has a size that its kernel takes."""
    by = _EIGHT_BIT.get(plan.precision.compute, 1)
    widths = {plan.model.hidden}
    widths |= {kind.mlp.ffn_hidden // plan.strategy.tp for kind in plan.model.kinds() if isinstance(kind.mlp, DenseMlp)}
    tokens = plan.found.pipeline.micro_batch * plan.workload.seq_len // plan.strategy.cp
    return not any(width % by for width in widths) and not tokens % 8


def _key_heads_divide(plan: Plan) -> bool:
    """Whether the all-to-all of context parallelism hands out whole key-value heads of a tensor rank."""
    degree = math.prod(level.degree for level in plan.strategy.context if level.kind == "a2a")
    heads = {count for kind in plan.model.kinds() for _, count in kind.attention.replicated}
    return all(max(count // plan.strategy.tp, 1) % degree == 0 for count in heads)


RULES = (
    Rule(
        field="context.kinds",
        holds=_key_heads_divide,
        why="its all-to-all hands out whole key-value heads: the a2a degree of cp must divide those of a tensor rank",
        fix="use p2p or ag, a lower a2a degree, or a2a inside p2p (cp4-a2a2xp2p2)",
        source="transformer_engine/pytorch/attention of Transformer Engine 2.x (context_parallel.py), 2026",
    ),
    overlap_inside_domain("transformer_engine/common/comm_gemm_overlap of Transformer Engine 2.x, 2026"),
    Rule(
        field="recompute.modules",
        holds=lambda plan: (
            plan.precision.compute != "fp8" or not {"layernorm", "moe_act"} & {*plan.strategy.recompute.modules}
        ),
        why="with delayed scaling of 8-bit products neither norms nor activations of experts are made again",
        fix="leave out layernorm and moe_act, or use fp8-block or mxfp8",
        source="megatron/core/transformer/transformer_config.py of Megatron-LM, commit d98e8a64, 2026-08",
    ),
    Rule(
        field="expert.overlap",
        holds=lambda plan: (
            not plan.strategy.expert.overlap.startswith("paired")
            or plan.model.mtp_layers == 0
            or (plan.model.mtp_layers == 1 and plan.found.pp > 1)
        ),
        why="beside exchanges it runs one module that predicts further tokens, and only in a pipeline",
        fix="leave epov out, or use pp2 or more",
        source="megatron/core/transformer/transformer_config.py of Megatron-LM, commit d98e8a64, 2026-08",
    ),
    Rule(
        field="vpp",
        holds=lambda plan: plan.found.vpp == 1 or plan.found.pp > 1,
        why="interleaving needs at least two pipeline ranks",
        fix="use vpp1",
        source="megatron/training/arguments.py of Megatron-LM, commit d98e8a64, 2026-08",
    ),
    Rule(
        field="precision",
        holds=_sizes_divide,
        why="8-bit products take widths that 16 divides (mxfp8: 32, blockwise: 128) and tokens that 8 divides",
        fix="use a smaller tp, or bf16",
        source="transformer_engine/pytorch/utils.py of Transformer Engine 2.x, 2026",
    ),
    Rule(
        field="precision",
        holds=lambda plan: not plan.model.is_moe or plan.precision.dispatched != "mxfp8",
        why="tokens are sent in mxfp8 by NCCL's expert exchange into fused grouped GEMMs alone, which are not planned",
        fix="leave --dispatch-dtype out",
        source="megatron/core/transformer/transformer_config.py of Megatron-LM, commit d98e8a64, 2026-08",
    ),
)


def rule_problems(job: Job) -> tuple[Problem, ...]:
    """The rules that a plan breaks; none where its stages differ, which is refused anyway."""
    found, _ = homogeneous(job.plan)
    if found is None:
        return ()
    plan = Plan(job=job, found=found, settings=settings_of(job, found))
    return tuple(broken(rule, plan.settings[rule.field]) for rule in RULES if not rule.holds(plan))
