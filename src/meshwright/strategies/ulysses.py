"""Ulysses: an all-to-all gives each rank the whole sequence of fewer heads, another returns the output.

Queries, keys and values leave, the output comes back. Source: Jacobs et al. 2023 (arXiv 2309.14509).
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Int
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy, StateBlock
from meshwright.strategies.columns import Column


class Ulysses(ContextStrategy):
    """Heads exchanged for sequence."""

    name = "a2a"
    summary = "all-to-all of heads for sequence"
    swaps_heads = True
    layout = ""
    runs = True

    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """Exchanges of all heads of the rank's own tokens, exposed."""
        return _exchanges(block.heads_bytes * (degree > 1))

    def state_calls(self, block: StateBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """The same exchanges of what a recurrence reads and writes: a rank scans whole sequences of fewer heads.

        Source: NVIDIA/Megatron-LM, `mamba_context_parallel.py`, as of 2026-11.
        """
        return _exchanges(block.heads_bytes * (degree > 1))


def _exchanges(exchanged: Column) -> tuple[Call, ...]:
    return (
        Call(kind="all_to_all", category="cp", phase="forward", group="cp_a2a", payload_bytes=exchanged),
        Call(kind="all_to_all", category="cp", phase="backward", group="cp_a2a", payload_bytes=exchanged),
    )
