"""Expert parallelism with expert tensor parallelism, folded over tensor, context and data ranks.

Experts sit in blocks of E/ep on consecutive groups of etp ranks. Tokens go by all-to-all over ep, are gathered over
etp, and come back the same way. Dropless unless a capacity factor says otherwise.
Source: Lepikhin et al. 2020 (arXiv 2006.16668); Liu et al. 2025, MoE parallel folding (arXiv 2504.14960).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.kernels.exchange import Routing
from meshwright.specs.operators import Exchange, Linear
from meshwright.strategies.base import Call, Column, Kind, LocalGemm, Phase, StrategyColumns, full_width, local_width


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
    op: Exchange,
    columns: StrategyColumns,
    routing: Routing,
    activation_bytes: float,
    dispatched_bytes: float | None = None,
) -> tuple[Call, ...]:
    """The collectives that bring tokens to experts or back, forward and backward.

    Args:
        op: the exchange.
        columns: strategies, one per row.
        routing: experts of a token.
        activation_bytes: per element sent.
        dispatched_bytes: per element on its way to an expert: tokens forward, gradients of results backward; as the
            rest by default. Sums of what experts give back stay in the format of the activations.

    Returns:
        An all-to-all of T k h bytes per rank over ep, and over etp a gather before (scatter after) the experts.
        With a deduplicating dispatcher a token enters each domain, and there each rank, once; with one that gathers,
        all ranks of ep get all tokens, and sums of their results are scattered.
        Pipelined in c chunks, all but 1/c of the exchange hides behind the experts.
    """
    elements = columns.received(routing.copies) / columns.etp * op.width
    gathers, once = columns.dispatches("allgather"), columns.dispatches("deduplicated")
    calls: tuple[Call, ...] = ()
    phases: tuple[tuple[Literal["forward", "backward"], Phase], ...] = (
        ("forward", "forward"),
        ("backward", "input_gradient"),
    )
    for phase, compute in phases:
        gather = (op.direction == "dispatch") == (phase == "forward")
        element = dispatched_bytes or activation_bytes if gather else activation_bytes
        per_rank = elements * element
        exchanged = per_rank * (columns.ep > 1)
        kind: Kind = "all_gather" if gather else "reduce_scatter"
        calls += (
            Call(
                kind="all_to_all",
                category="ep",
                phase=phase,
                group="ep",
                payload_bytes=exchanged if gathers is None else exchanged * ~gathers,
                once=once,
                routing=routing,
                beside=compute,
                # Dispatch and combine share the experts' time.
                beside_share=np.where(columns.ep_chunks > 1, 0.5, 0.0),
                head_share=1.0 / columns.ep_chunks,
            ),
            Call(
                kind=kind,
                category="ep",
                phase=phase,
                group="etp",
                payload_bytes=per_rank * columns.etp * (columns.etp > 1),
            ),
        )
        if gathers is not None:
            whole = columns.sequence_tokens * columns.ep * (op.width * element) * (columns.ep > 1) * gathers
            calls += (Call(kind=kind, category="ep", phase=phase, group="ep", payload_bytes=whole),)
    return calls
