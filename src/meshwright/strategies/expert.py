"""Expert parallelism with expert tensor parallelism, folded over tensor, context and data ranks.

Experts sit in blocks of E/ep on consecutive groups of etp ranks. Tokens go by all-to-all over ep, are gathered over
etp, and come back the same way. Dropless unless a capacity factor says otherwise.
Source: Lepikhin et al. 2020 (arXiv 2006.16668); Liu et al. 2025, MoE parallel folding (arXiv 2504.14960).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.specs.operators import Exchange, Linear
from meshwright.strategies.base import Call, Column, LocalGemm, Phase, StrategyColumns, full_width, local_width


def shard_experts(op: Linear, columns: StrategyColumns, top_k: float) -> LocalGemm:
    """One matrix of all local experts on one rank: a grouped product.

    Args:
        op: the operator of one expert, with the number of experts.
        columns: strategies, one per row.
        top_k: experts a token visits.

    Returns:
        `groups` = E / ep products of received / groups tokens, widths cut by etp.
    """
    local_experts = np.maximum(op.experts / columns.ep, 1.0)
    column = op.split == "expert-column"
    width_in: Column = full_width(op.inputs) if column else local_width(op.inputs, columns.etp)
    width_out: Column = local_width(op.outputs, columns.etp) if column else full_width(op.outputs)
    bias: Column = op.bias / columns.etp if column else float(op.bias)
    return LocalGemm(
        m=columns.received(top_k) / local_experts,
        n=width_out,
        k=width_in,
        groups=local_experts,
        parameters=local_experts * (width_in * width_out + bias),
        expert=True,
    )


def exchange_calls(
    op: Exchange, columns: StrategyColumns, top_k: float, activation_bytes: float, dispatched_bytes: float | None = None
) -> tuple[Call, ...]:
    """The collectives that bring tokens to experts or back, forward and backward.

    Args:
        op: the exchange.
        columns: strategies, one per row.
        top_k: experts a token visits.
        activation_bytes: per element sent.
        dispatched_bytes: per element on its way to an expert: tokens forward, gradients of results backward; as the
            rest by default. Sums of what experts give back stay in the format of the activations.

    Returns:
        An all-to-all of T k h bytes per rank over ep, and over etp a gather before (scatter after) the experts.
        With a deduplicating dispatcher a token enters each domain once.
        Pipelined in c chunks, all but 1/c of the exchange hides behind the experts.
    """
    elements = columns.received(top_k) / columns.etp * op.width
    copies = 1.0 if columns.deduplicated is None else np.where(columns.deduplicated, float(top_k), 1.0)
    calls: tuple[Call, ...] = ()
    phases: tuple[tuple[Literal["forward", "backward"], Phase], ...] = (
        ("forward", "forward"),
        ("backward", "input_gradient"),
    )
    for phase, compute in phases:
        gather = (op.direction == "dispatch") == (phase == "forward")
        per_rank = elements * (dispatched_bytes or activation_bytes if gather else activation_bytes)
        calls += (
            Call(
                kind="all_to_all",
                category="ep",
                phase=phase,
                group="ep",
                payload_bytes=per_rank * (columns.ep > 1),
                copies=copies,
                beside=compute,
                # Dispatch and combine share the experts' time.
                beside_share=np.where(columns.ep_chunks > 1, 0.5, 0.0),
                head_share=1.0 / columns.ep_chunks,
            ),
            Call(
                kind="all_gather" if gather else "reduce_scatter",
                category="ep",
                phase=phase,
                group="etp",
                payload_bytes=per_rank * columns.etp * (columns.etp > 1),
            ),
        )
    return calls
