"""Rings of keys and values: blocks go from rank to rank, hidden behind the block that is computed meanwhile.

    p2p, striped   (C-1) sends of a block of keys and values forward; backward the same, and as many of their gradients
    burst          forward likewise; backward (C-1) sends of queries, of gradients of outputs and of queries, and of two
                   numbers for each query and head, while keys and values stay: 3/4 of a ring's bytes where every head
                   has keys of its own, more where heads share them

Zigzag halves of the sequence balance the causal mask, and so do stripes, which need no pair of halves a rank.
Source: Liu et al. 2023 (arXiv 2310.01889); Brandon et al. 2023 (arXiv 2311.09431); Sun et al. 2024 (arXiv 2403.09347).
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Int
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy
from meshwright.strategies.columns import Column


class Ring(ContextStrategy):
    """Blocks of keys and values from rank to rank."""

    name = "p2p"
    summary = "ring of keys and values"
    runs = True

    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """Sends that all blocks but the rank's own may hide."""
        share = np.where(degree > 1, (degree - 1) / degree, 0.0)
        sent, sends = degree > 1, (degree - 1).astype(float)
        return (
            Call(
                kind="send",
                category="cp",
                phase="forward",
                group=f"cp_{self.name}",
                payload_bytes=block.tokens_bytes * sent,
                repeats=sends,
                beside="forward",
                beside_share=share,
            ),
            Call(
                kind="send",
                category="cp",
                phase="backward",
                group=f"cp_{self.name}",
                payload_bytes=self.returned_bytes(block) * sent,
                repeats=sends,
                beside="input_gradient",
                beside_share=share,
            ),
        )

    def returned_bytes(self, block: AttentionBlock) -> Column:
        """Bytes of one send in backward: keys and values, and their gradients."""
        return 2 * block.tokens_bytes


class Striped(Ring):
    """The ring, where each rank has every C-th token: it cuts a sequence into C parts instead of 2 C."""

    name = "striped"
    summary = "ring of keys and values, every C-th token on a rank"
    layout = "striped"
    searched = False

    def fullest(self, length: float, degree: Int[np.ndarray, "rows"]) -> Column:
        """The last rank sees as many keys of every rank as its own: C n (n+1)/2 pairs of the mean n (C n + 1)/2."""
        return (length + degree) / (length + 1.0)


class Burst(Ring):
    """The ring forward; backward queries go round with their gradients, and keys and values stay."""

    name = "burst"
    summary = "ring of keys and values forward, of queries backward (BurstAttention)"
    searched = False

    def returned_bytes(self, block: AttentionBlock) -> Column:
        """Bytes of one send in backward: queries, gradients of outputs and queries, two numbers a query and head."""
        return 2 * block.queries_bytes + block.outputs_bytes + 2 * block.sums_bytes
