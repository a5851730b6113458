"""Context parallelism: every rank holds seq/cp of each sequence, attention must see it all.

    p2p   keys and values go round a ring, hidden behind the block computed meanwhile; zigzag halves balance the mask
    a2a   an all-to-all gives each rank the whole sequence of fewer heads (Ulysses)
    ag    keys and values are gathered before attention, their gradients reduce-scattered
    a2a inside, p2p outside is the hierarchical form (USP, Megatron `a2a+p2p`).

Source: Liu et al. 2023 (arXiv 2310.01889); Jacobs et al. 2023 (arXiv 2309.14509); Fang and Zhao 2024 (arXiv
2405.07719).
"""

from __future__ import annotations

import numpy as np

from meshwright.specs.operators import CoreAttention
from meshwright.strategies.base import Call, LocalAttention, StrategyColumns, local_units


def shard_attention(
    op: CoreAttention, columns: StrategyColumns, pairs: float, activation_bytes: float, *, materialised: bool
) -> LocalAttention:
    """Core attention on one of tp x cp ranks.

    Args:
        op: attention of the whole layer.
        columns: strategies, one per row.
        pairs: score pairs of one sequence and head, mask applied as the kernel computes it.
        activation_bytes: per element sent.
        materialised: the kernel keeps the full square, so ranks share it by queries.

    Returns:
        The local attention: heads / (tp a2a) heads, the pairs shared evenly by the sequence levels (the zigzag layout),
        and its collectives. Ring: (C-1) sends of a block of keys and values forward, the same and their gradients
        backward.
    """
    heads = local_units(op.heads, columns.tp)
    kv_heads = local_units(op.kv_heads, columns.tp)
    sequence_ranks = columns.cp_p2p * columns.cp_ag
    kv_width = kv_heads * (op.head_dim + op.value_dim)
    query_width = heads * (op.head_dim + op.value_dim)

    # Before the exchange a rank holds all its heads of seq/cp tokens; queries, keys and values leave, the output
    # returns.
    exchanged = columns.tokens * activation_bytes * (query_width + kv_width) * (columns.cp_a2a > 1)
    calls = [
        Call(kind="all_to_all", category="cp", phase="forward", group="cp_a2a", payload_bytes=exchanged),
        Call(kind="all_to_all", category="cp", phase="backward", group="cp_a2a", payload_bytes=exchanged),
    ]
    local_kv = np.maximum(kv_heads / columns.cp_a2a, 1.0) * (op.head_dim + op.value_dim)
    block = columns.tokens * columns.cp_a2a * local_kv * activation_bytes
    ring_share = np.where(columns.cp_p2p > 1, (columns.cp_p2p - 1) / columns.cp_p2p, 0.0)
    sent = block * (columns.cp_p2p > 1)
    sends = (columns.cp_p2p - 1).astype(float)
    calls += [
        Call(
            kind="send",
            category="cp",
            phase="forward",
            group="cp_p2p",
            payload_bytes=sent,
            repeats=sends,
            beside="forward",
            beside_share=ring_share,
        ),
        Call(
            kind="send",
            category="cp",
            phase="backward",
            group="cp_p2p",
            payload_bytes=2 * sent,
            repeats=sends,
            beside="input_gradient",
            beside_share=ring_share,
        ),
    ]
    gathered = block * columns.cp_ag * (columns.cp_ag > 1)
    calls += [
        Call(kind="all_gather", category="cp", phase="forward", group="cp_ag", payload_bytes=gathered),
        Call(kind="reduce_scatter", category="cp", phase="backward", group="cp_ag", payload_bytes=gathered),
    ]
    sequence = float(columns.seq_len)
    query_len = sequence / sequence_ranks
    return LocalAttention(
        batch=columns.mbs.astype(float),
        heads=np.maximum(heads / columns.cp_a2a, 1.0),
        kv_heads=np.maximum(kv_heads / columns.cp_a2a, 1.0),
        query_len=query_len,
        key_len=np.full(columns.rows, sequence),
        pairs=query_len * sequence if materialised else pairs / sequence_ranks,
        calls=tuple(calls),
    )
