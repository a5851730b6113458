"""Gathered blocks: every rank has the keys and values of all before attention, or the queries of all.

    ag     keys and values are gathered, their gradients reduce-scattered
    tree   queries are gathered, the largest scores reduced over ranks, the sums of each rank's keys reduce-scattered;
           backward gathers queries again with the gradients of outputs, and reduce-scatters those of queries

Both handle any mask, at the price of a block of the whole sequence in memory. Queries are less than keys and values
where few of them attend to many keys, as in decoding and in attention to another sequence.
Source: Grattafiori et al. 2024 (Llama 3, section 3.3.2); Shyam et al. 2024 (Tree Attention, arXiv 2408.04093).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.shapes import Int
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy, Kind, StateBlock
from meshwright.strategies.columns import Column


class Gathered(ContextStrategy):
    """All-gather of keys and values."""

    name = "ag"
    summary = "all-gather of keys and values"
    gathers = True
    runs = True

    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """A gather before attention and a reduce-scatter after its backward, exposed."""
        spread = degree * (degree > 1)
        gathered, summed = block.tokens_bytes * spread, block.backward_bytes * spread
        return (
            Call(kind="all_gather", category="cp", phase="forward", group="cp_ag", payload_bytes=gathered),
            Call(kind="reduce_scatter", category="cp", phase="backward", group="cp_ag", payload_bytes=summed),
        )

    def state_calls(self, block: StateBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """States of all pieces of the sequence, two per rank, gathered at once; each rank adds up those before its own.

        Source: Sun et al. 2025 (LASP-2, arXiv 2502.07563), section 3.
        """
        gathered = 2.0 * block.state_bytes * degree * (degree > 1)
        return tuple(
            Call(kind="all_gather", category="cp", phase=phase, group="cp_ag", payload_bytes=gathered)
            for phase in ("forward", "backward")
        )


class Tree(ContextStrategy):
    """All-gather of queries, sums of what all ranks find for them."""

    name = "tree"
    summary = "all-gather of queries, sums of each rank's keys (Tree Attention)"
    gathers_queries = True
    searched = False
    runs = True

    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """Gathers before attention and its backward, and sums behind them, exposed."""
        spread = degree * (degree > 1)
        queries, outputs, sums = (own * spread for own in (block.queries_bytes, block.outputs_bytes, block.sums_bytes))

        def call(kind: Kind, phase: Literal["forward", "backward"], payload: Column) -> Call:
            return Call(kind=kind, category="cp", phase=phase, group="cp_tree", payload_bytes=payload)

        return (
            call("all_gather", "forward", queries),
            call("all_reduce", "forward", sums),
            call("reduce_scatter", "forward", outputs + sums),
            call("all_gather", "backward", queries + outputs + 2 * sums),
            call("reduce_scatter", "backward", queries),
        )
