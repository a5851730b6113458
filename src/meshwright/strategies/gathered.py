"""Gathered keys and values: every rank has them all before attention; their gradients are reduce-scattered.

Handles any mask, at the price of keys and values of the whole sequence in memory. Source: Grattafiori et al. 2024
(Llama 3, section 3.3.2).
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Int
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy, StateBlock


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
