"""Ulysses: an all-to-all gives each rank the whole sequence of fewer heads, another returns the output.

Queries, keys and values leave, the output comes back. Source: Jacobs et al. 2023 (arXiv 2309.14509).
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Int
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy


class Ulysses(ContextStrategy):
    """Heads exchanged for sequence."""

    name = "a2a"
    summary = "all-to-all of heads for sequence"
    swaps_heads = True
    runs = True

    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """Exchanges of all heads of the rank's own tokens, exposed."""
        exchanged = block.heads_bytes * (degree > 1)
        return (
            Call(kind="all_to_all", category="cp", phase="forward", group="cp_a2a", payload_bytes=exchanged),
            Call(kind="all_to_all", category="cp", phase="backward", group="cp_a2a", payload_bytes=exchanged),
        )
