"""Experts move to the tokens instead of tokens to the experts.

Every rank gathers the weights of all experts of a layer for its own tokens, again for backward, and sends their
gradients home: three passes of E W bytes, whatever the tokens are. Level by level a domain gets each expert once. Ranks
compute their own tokens, so that none is fuller than another. Pulls run beside the experts that are there already.
Source: Liu et al. 2023, Janus (SIGCOMM), sections 3 to 5; its cache in host memory saves the second gather.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from meshwright.shapes import Float
from meshwright.specs.operators import Linear
from meshwright.strategies.base import Call, ExpertMethod, WeightBytes
from meshwright.strategies.columns import Column, StrategyColumns


class MovedExperts(ExpertMethod):
    """Janus: weights are gathered, tokens stay."""

    def visitors(self, op: Linear, columns: StrategyColumns) -> Float[np.ndarray, "rows"] | None:
        """All experts of other ranks, where they move."""
        moved = columns.dispatches("moves")
        return None if moved is None else moved * (op.experts - columns.local_experts(op.experts))

    def calls(self, op: Linear, columns: StrategyColumns, one: Column, formats: WeightBytes) -> tuple[Call, ...]:
        """Gathers before both passes; gradients are scattered after theirs."""
        moved = columns.dispatches("moves")
        assert moved is not None
        elements = op.experts * one * (moved & (columns.ep > 1))
        weights, gradients = elements * formats.weights, elements * formats.gradients
        call = partial(Call, category="ep", group="ep", head_share=1.0 / columns.ep)
        return (
            call(kind="all_gather", phase="forward", payload_bytes=weights, beside="forward"),
            call(kind="all_gather", phase="backward", payload_bytes=weights, beside="input_gradient"),
            call(kind="reduce_scatter", phase="backward", payload_bytes=gradients, beside="weight_gradient"),
        )
