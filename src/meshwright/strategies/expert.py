"""Expert parallelism with expert tensor parallelism, folded over tensor, context and data ranks.

Experts sit in blocks of E/ep on consecutive groups of etp ranks. Tokens go by all-to-all over ep, are gathered over
etp, and come back the same way. Dropless unless a capacity factor says otherwise.
Source: Lepikhin et al. 2020 (arXiv 2006.16668); Liu et al. 2025, MoE parallel folding (arXiv 2504.14960).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Literal

import numpy as np

from meshwright.kernels.exchange import Routing
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.operators import Exchange, Linear
from meshwright.strategies.base import Call, ExpertMethod, Kind, LocalGemm, Phase, WeightBytes
from meshwright.strategies.columns import Column, StrategyColumns, full_width, local_width

SIZES_ALONE = WeightBytes()
"""Bytes of weights for those who ask for sizes, not for traffic."""
METHODS = ("experts_moved:MovedExperts", "experts_shadowed:ShadowedExperts")
"""What brings weights of experts to ranks that do not own them: a method is one file of this folder, read where a layer
has experts, and one line here."""


def shard_experts(op: Linear, columns: StrategyColumns, top_k: float, formats: WeightBytes = SIZES_ALONE) -> LocalGemm:
    """One matrix of all local experts on one rank: a grouped product.

    Args:
        op: the operator of one expert, with the number of experts.
        columns: strategies, one per row.
        top_k: experts a token visits.
        formats: bytes of weights and gradients that cross the network; none where sizes alone are asked for.

    Returns:
        `groups` = E / ep products of received / groups tokens, widths cut by etp; more groups where a rank computes
        experts of others, or in chunks.
    """
    local_experts = columns.local_experts(op.experts)
    column = op.split == "expert-column"
    width_in: Column = full_width(op.inputs) if column else local_width(op.inputs, columns.etp)
    width_out: Column = local_width(op.outputs, columns.etp) if column else full_width(op.outputs)
    bias: Column = op.bias / columns.etp if column else float(op.bias)
    one = width_in * width_out + bias
    visiting = np.zeros(columns.rows)
    calls: tuple[Call, ...] = ()
    for method in _methods():
        visitors = method.visitors(op, columns)
        if visitors is not None:
            visiting = visiting + visitors
            calls = (*calls, *method.calls(op, columns, one, formats))
    groups = (local_experts + visiting) * columns.ep_chunks
    return LocalGemm(
        m=columns.received(top_k) / groups,
        n=width_out,
        k=width_in,
        groups=groups,
        parameters=local_experts * one,
        fetched=visiting * one,
        expert=True,
        calls=calls,
    )


@cache
def _methods() -> tuple[ExpertMethod, ...]:
    """The methods of `METHODS`."""
    found = []
    for place in METHODS:
        module, _, name = place.partition(":")
        found.append(getattr(import_module(f"meshwright.strategies.{module}"), name)())
    return tuple(found)


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
        activation_bytes: the bytes per element sent.
        dispatched_bytes: the bytes per element on its way to an expert: tokens forward, gradients of results backward;
            as the rest by default. Sums of what experts give back stay in the format of the activations.

    Returns:
        An all-to-all of T k h bytes per rank over ep, and over etp a gather before (scatter after) the experts.
        With a deduplicating dispatcher a token enters each domain, and there each rank, once, and etp gathers it once,
        however many experts of the ranks it visits; with one that gathers, all ranks of ep get all tokens, and sums of
        their results are scattered. Where experts move nothing is sent;
        where tensor ranks that hold the same tokens send their parts, results are gathered over them (gradients where
        dispatch goes back). Pipelined in c chunks, all but 1/c of the exchange hides behind the experts.
    """
    copies = routing.copies
    elements = columns.exchanged(copies) / columns.etp * op.width
    gathers, once = columns.dispatches("gathers"), columns.dispatches("once")
    by_level, silent = columns.dispatches("by_level"), columns.sends_otherwise
    chunks = columns.ep_chunks
    calls: tuple[Call, ...] = ()
    phases: tuple[tuple[Literal["forward", "backward"], Phase], ...] = (
        ("forward", "forward"),
        ("backward", "input_gradient"),
    )
    for phase, compute in phases:
        gather = (op.direction == "dispatch") == (phase == "forward")
        element = dispatched_bytes or activation_bytes if gather else activation_bytes
        per_rank = elements * element
        whole = columns.routed_tokens * columns.ep * (op.width * element)
        held = per_rank
        if once is not None:
            # Of a token's copies for a rank one comes, and no rank gets more than all tokens.
            held = np.where(once, np.minimum(per_rank * routing.entered(columns.ep) / copies, whole), per_rank)
        exchanged = per_rank * (columns.ep > 1)
        if silent is not None:
            exchanged = exchanged * ~silent
        kind: Kind = "all_gather" if gather else "reduce_scatter"
        calls += (
            Call(
                kind="all_to_all",
                category="ep",
                phase=phase,
                group="ep",
                payload_bytes=(exchanged if gathers is None else exchanged * ~gathers) / chunks,
                repeats=chunks,
                once=once,
                routing=routing,
                by_level=by_level,
                leaving=columns.leaving,
                beside=compute,
                # Dispatch and combine share the experts' time.
                beside_share=np.where(chunks > 1, 0.5, 0.0),
                head_share=1.0 / chunks,
            ),
            Call(
                kind=kind,
                category="ep",
                phase=phase,
                group="etp",
                payload_bytes=(held if gathers is None else np.where(gathers, whole, held))
                * columns.etp
                * (columns.etp > 1),
            ),
        )
        if gathers is not None:
            sums = whole * (columns.ep > 1) * gathers
            calls += (Call(kind=kind, category="ep", phase=phase, group="ep", payload_bytes=sums),)
        if columns.whole_tokens is not None and not gather:
            # What comes back is of a rank's own part of the tokens, which all of them hold again.
            shared = columns.whole_tokens & ~columns.sp & (columns.tp > 1)
            back = columns.tokens * (op.width * activation_bytes) * shared
            calls += (Call(kind="all_gather", category="ep", phase=phase, group="tp", payload_bytes=back),)
    if silent is not None:
        calls += _own_traffic(op, columns, copies, activation_bytes, dispatched_bytes or activation_bytes)
    return calls


def _own_traffic(
    op: Exchange, columns: StrategyColumns, copies: float, activation_bytes: float, dispatched_bytes: float
) -> tuple[Call, ...]:
    """The collectives of dispatchers that say by themselves what they send."""
    from meshwright.strategies import DISPATCHES  # few jobs have one

    ahead, back = dispatched_bytes, activation_bytes
    if op.direction != "dispatch":
        ahead, back = back, ahead
    calls: tuple[Call, ...] = ()
    for kind in DISPATCHERS.values():
        rows = columns.dispatches_as(kind.name) if kind.traffic else None
        if rows is None:
            continue
        for call in DISPATCHES[kind.traffic].calls(op, columns, copies, ahead, back):
            calls += (replace(call, payload_bytes=call.payload_bytes * (rows & (columns.ep > 1))),)
    return calls
