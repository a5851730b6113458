"""Ring attention: keys and values go round the ranks, hidden behind the block computed meanwhile.

(C-1) sends of a block of keys and values forward, the same and their gradients backward; zigzag halves of the sequence
balance the causal mask. Source: Liu et al. 2023 (arXiv 2310.01889).
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Int
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy


class Ring(ContextStrategy):
    """Blocks of keys and values from rank to rank."""

    name = "p2p"
    summary = "ring of keys and values"
    runs = True

    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """Sends that all blocks but the rank's own may hide."""
        share = np.where(degree > 1, (degree - 1) / degree, 0.0)
        sent, sends = block.tokens_bytes * (degree > 1), (degree - 1).astype(float)
        return (
            Call(
                kind="send",
                category="cp",
                phase="forward",
                group="cp_p2p",
                payload_bytes=sent,
                repeats=sends,
                beside="forward",
                beside_share=share,
            ),
            Call(
                kind="send",
                category="cp",
                phase="backward",
                group="cp_p2p",
                payload_bytes=2 * sent,
                repeats=sends,
                beside="input_gradient",
                beside_share=share,
            ),
        )
