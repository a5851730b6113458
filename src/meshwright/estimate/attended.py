"""Query-key pairs that attention computes, whatever limits what a query sees."""

from __future__ import annotations

import numpy as np

from meshwright.kernels.compute import entry_pairs, score_pairs
from meshwright.specs.operators import CoreAttention


def attended_pairs(op: CoreAttention, seq_len: float) -> float:
    """Pairs of one sequence and head.

    Args:
        op: core attention; its window counts the keys a query sees, a chunk cuts the sequence into pieces that do not
            see each other.
        seq_len: tokens.

    Returns:
        Sum over the pieces of `score_pairs`, and of keys that stand for several tokens; all keys for every query where
        they are those of another stream.
    """
    if op.keys is not None:
        return seq_len * op.keys.count
    window = float(op.window) if op.window else np.inf

    def pairs(tokens: float) -> float:
        return float(score_pairs(tokens, tokens, window=window, causal=op.causal))

    if op.entry:
        most = np.inf if op.picked is None else float(op.picked)
        return pairs(seq_len) + entry_pairs(int(seq_len), op.entry, most)
    if not op.chunk or op.chunk >= seq_len:
        return pairs(seq_len)
    whole, rest = divmod(seq_len, op.chunk)
    return whole * pairs(float(op.chunk)) + (pairs(rest) if rest else 0.0)
