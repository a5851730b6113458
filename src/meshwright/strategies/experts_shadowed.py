"""The hottest experts of a layer are computed where the tokens are, from copies of their weights.

Their owners broadcast the weights before forward, and gradients of the copies are summed back: two passes of s W bytes,
for tokens that then stay. The copies stay on the device until backward.
Source: He et al. 2022, FasterMoE (PPoPP), section 4.1; the rule that chooses how many is `kernels.moe_rules.shadows`.
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Float
from meshwright.specs.operators import Linear
from meshwright.strategies.base import Call, ExpertMethod, WeightBytes
from meshwright.strategies.columns import Column, StrategyColumns


class ShadowedExperts(ExpertMethod):
    """FasterMoE: copies of hot experts on every rank."""

    holds = True

    def visitors(self, op: Linear, columns: StrategyColumns) -> Float[np.ndarray, "rows"] | None:
        """The shadowed experts; a rank owns its share of them."""
        if columns.shadowed is None:
            return None
        return np.minimum(columns.shadowed, op.experts) * (1.0 - 1.0 / columns.ep)

    def calls(self, op: Linear, columns: StrategyColumns, one: Column, formats: WeightBytes) -> tuple[Call, ...]:
        """A broadcast of weights, and of as many gradients back to the owner."""
        assert columns.shadowed is not None
        elements = np.minimum(columns.shadowed, op.experts) * one * (columns.ep > 1)
        return (
            Call(
                kind="broadcast",
                category="ep",
                phase="forward",
                group="ep",
                payload_bytes=elements * formats.weights,
                beside="forward",
            ),
            Call(
                kind="broadcast",
                category="ep",
                phase="backward",
                group="ep",
                payload_bytes=elements * formats.gradients,
                beside="weight_gradient",
            ),
        )
