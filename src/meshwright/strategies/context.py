"""Core attention on one of tp x cp ranks: heads of its tensor rank, its share of the sequence by each context level.

Levels lie innermost first in the order of the catalogue: an exchange of heads inside a ring is the hierarchical form
(USP, Megatron `a2a+p2p`). Source: Fang and Zhao 2024 (arXiv 2405.07719).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.shapes import Bool, Int
from meshwright.specs.operators import CoreAttention, Scan, Scores
from meshwright.strategies import CONTEXTS, TENSORS
from meshwright.strategies.base import (
    AttentionBlock,
    ContextStrategy,
    Group,
    LocalAttention,
    LocalScan,
    LocalScores,
    StateBlock,
)
from meshwright.strategies.columns import StrategyColumns, local_units, ranks_of

STATE_BYTES = 4.0
"""States of recurrences are kept in 32 bits."""
SUM_BYTES = 4.0
"""Gradients of keys and values that are repeated for all heads are summed in 32 bits, and so are scores of a query."""


def head_ranks(context: Int[np.ndarray, "rows kinds"]) -> Int[np.ndarray, "rows"]:
    """Ranks among which the levels that exchange heads for sequence share heads, of columns of degrees by kind."""
    return _ranks_where(context, lambda kind: kind.swaps_heads)


def half_ranks(context: Int[np.ndarray, "rows kinds"]) -> Int[np.ndarray, "rows"]:
    """Ranks that hold a sequence in zigzag halves, of columns of degrees by kind."""
    return _ranks_where(context, lambda kind: kind.layout == "zigzag")


def _ranks_where(
    context: Int[np.ndarray, "rows kinds"], asked: Callable[[ContextStrategy], bool]
) -> Int[np.ndarray, "rows"]:
    """Ranks over the levels of some kinds."""
    return ranks_of(context[:, [number for number, kind in enumerate(CONTEXTS.values()) if asked(kind)]])


def _used(columns: StrategyColumns) -> list[tuple[ContextStrategy, Int[np.ndarray, "rows"]]]:
    """The kinds that some row has, and their degrees."""
    kinds = tuple(CONTEXTS.values())
    return [(kinds[at], columns.context[:, at]) for at in np.flatnonzero((columns.context > 1).any(0)).tolist()]


def context_groups(columns: StrategyColumns) -> dict[str, Group]:
    """The communication groups of every context level."""
    stride, found = columns.tp, {}
    for number, name in enumerate(CONTEXTS):
        degree = columns.context[:, number]
        found[f"cp_{name}"] = (stride, degree)
        stride = stride * degree
    return found


def shard_attention(
    op: CoreAttention,
    columns: StrategyColumns,
    pairs: float,
    activation_bytes: float,
    *,
    materialised: bool,
    repeated: bool = False,
) -> LocalAttention:
    """Core attention on one of tp x cp ranks.

    Args:
        op: attention of the whole layer.
        columns: strategies, one per row.
        pairs: score pairs of one sequence and head, mask applied as the kernel computes it.
        activation_bytes: the bytes per element sent.
        materialised: the kernel keeps the full square, so ranks share it by queries.
        repeated: keys and values are repeated for all heads before ranks gather them, which they do again in backward;
            their gradients are summed in 32 bits.

    Returns:
        The local attention: heads / (head ranks) heads, the pairs shared evenly by the sequence levels (the zigzag
        layout), and its collectives.
    """
    sharing = TENSORS[columns.tensor].head_ranks(columns.tp)
    batch_ranks = columns.tp / sharing
    heads, kv_heads = local_units(op.heads, sharing), local_units(op.kv_heads, sharing)
    exchanging = head_ranks(columns.context)
    sequence_ranks = columns.cp / exchanging
    width = op.head_dim + op.value_dim
    sequence = float(columns.seq_len)
    key_len = sequence if op.keys is None else op.keys.count
    # Before an exchange a rank holds all its heads of seq/cp tokens, of queries and of keys.
    tokens = columns.tokens / batch_ranks
    key_tokens = tokens if op.keys is None else tokens * (key_len / sequence)
    sent_heads = heads if repeated else kv_heads
    held = key_tokens * exchanging * (np.maximum(sent_heads / exchanging, 1.0) * width)
    queries = tokens * exchanging * np.maximum(heads / exchanging, 1.0)
    block = AttentionBlock(
        tokens_bytes=held * activation_bytes,
        backward_bytes=held * (activation_bytes + SUM_BYTES if repeated else activation_bytes),
        # Beyond one key-value head a rank, a head goes to every rank whose queries need it.
        heads_bytes=activation_bytes
        * (tokens * (heads * width) + key_tokens * (np.maximum(kv_heads, exchanging) * width)),
        queries_bytes=queries * (op.head_dim * activation_bytes),
        outputs_bytes=queries * (op.value_dim * activation_bytes),
        sums_bytes=queries * max(activation_bytes, SUM_BYTES),
    )
    used, loaded = _used(columns), np.ones(columns.rows)
    for kind, degree in used if op.causal and op.keys is None else ():
        loaded = loaded * kind.fullest(sequence, degree)
    query_len = sequence / sequence_ranks
    return LocalAttention(
        batch=columns.mbs / batch_ranks,
        heads=np.maximum(heads / exchanging, 1.0),
        kv_heads=np.maximum(kv_heads / exchanging, 1.0),
        query_len=query_len,
        key_len=np.full(columns.rows, key_len),
        pairs=query_len * key_len if materialised else pairs / sequence_ranks * loaded,
        calls=tuple(call for kind, degree in used for call in kind.calls(block, degree)),
    )


def shard_scores(
    op: Scores, columns: StrategyColumns, pairs: tuple[float, float], activation_bytes: float
) -> LocalScores:
    """Scores that pick keys, on one rank: of the queries of its own tokens, with keys from all context ranks.

    Args:
        op: the operator of the whole layer; tensor ranks hold the indexer whole.
        columns: strategies, one per row.
        pairs: the pairs of one sequence and head, all and those picked.
        activation_bytes: the bytes per element sent.
    """
    sequences = columns.sequence_tokens / columns.seq_len
    width = op.dim * activation_bytes
    block = AttentionBlock(
        tokens_bytes=columns.sequence_tokens * width,
        backward_bytes=columns.sequence_tokens * width,
        heads_bytes=columns.sequence_tokens * width * (op.heads + 1),
        queries_bytes=columns.sequence_tokens * (width * op.heads),
        outputs_bytes=np.zeros(columns.rows),
        sums_bytes=columns.sequence_tokens * (op.heads * max(activation_bytes, SUM_BYTES)),
    )
    calls = tuple(call for kind, degree in _used(columns) for call in kind.calls(block, degree))
    return LocalScores(
        pairs=sequences * pairs[0],
        picked_pairs=sequences * pairs[1],
        calls=calls,
    )


def shard_scan(op: Scan, columns: StrategyColumns, activation_bytes: float) -> LocalScan:
    """A recurrence on one of tp x cp ranks: heads of its tensor rank, its tokens; states pass between context ranks.

    Args:
        op: the scan of the whole layer.
        columns: strategies, one per row.
        activation_bytes: the bytes per element exchanged.

    Returns:
        Tokens and heads of one rank, whose product falls with tp and cp, and its collectives.
    """
    sharing = TENSORS[columns.tensor].head_ranks(columns.tp)
    batch_ranks = columns.tp / sharing
    heads, exchanging = local_units(op.heads, sharing), head_ranks(columns.context)
    tokens = columns.tokens / batch_ranks
    own = np.maximum(heads / exchanging, 1.0)
    block = StateBlock(
        state_bytes=columns.mbs / batch_ranks * own * (op.state * STATE_BYTES),
        heads_bytes=tokens * heads * (op.exchanged * activation_bytes),
    )
    calls = tuple(call for kind, degree in _used(columns) for call in kind.state_calls(block, degree))
    return LocalScan(tokens=tokens * exchanging, heads=own, calls=calls)


def gathered_keys(columns: StrategyColumns) -> Bool[np.ndarray, "rows"]:
    """Whether a rank holds the keys and values of all ranks of a level at once."""
    return _ranks_where(columns.context, lambda kind: kind.gathers) > 1


def gathered_queries(columns: StrategyColumns) -> Bool[np.ndarray, "rows"]:
    """Whether a rank holds the queries of all ranks of a level at once, and what its keys give them."""
    return _ranks_where(columns.context, lambda kind: kind.gathers_queries) > 1
