"""Head-wise attention beside split matrices: tensor ranks exchange heads for tokens around core attention.

    attention   every rank holds all its weights and projects its own part of the sequence; an all-to-all gives it whole
                sequences of its heads, another takes the outputs back
    the rest    as 1D tensor parallelism with sequence parallelism

An all-to-all sends (t-1)/t of a rank's own tokens, so that forward a layer moves (t-1)/t^2 T (2 + 2 kv/q) h where 1D
gathers and reduces 2 (t-1)/t T h. The weights of attention cost more: gradients of their copies are summed over the
tensor ranks.
Source: Jin et al. 2025 (MegaScale-MoE, arXiv 2505.11432), section 3.1; Jacobs et al. 2023 (arXiv 2309.14509).
"""

from __future__ import annotations

import numpy as np

from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear
from meshwright.strategies.base import Call, DegreeRule, LocalGemm
from meshwright.strategies.columns import StrategyColumns, full_width, local_width
from meshwright.strategies.tensor_1d import OneDimension


class Heads(OneDimension):
    """Heads exchanged for tokens around attention, whose weights every rank holds; other matrices as 1D."""

    name = "heads"
    summary = "attention by exchanged heads with whole weights, the rest as 1d (MegaScale-MoE)"
    runs = False

    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """Projections of heads on the rank's own tokens; others as 1D."""
        if not op.of_heads and op.split != "replicated":
            return super().linear(op, columns, activation_bytes)
        width_in, width_out = full_width(op.inputs), full_width(op.outputs)
        parameters = width_in * width_out + op.bias
        calls: tuple[Call, ...] = ()
        if op.of_heads:
            # Key-value heads fewer than ranks go to several of them.
            heads = local_width(op.outputs if op.split == "column" else op.inputs, columns.tp)
            moved = columns.tokens * heads * activation_bytes * (columns.tp > 1)
            calls = tuple(
                Call(kind="all_to_all", category="tp", phase=phase, group="tp", payload_bytes=moved)
                for phase in ("forward", "backward")
            )
        return LocalGemm(
            m=columns.sequence_tokens,
            n=width_out,
            k=width_in,
            groups=1.0,
            parameters=parameters,
            expert=False,
            replicated=parameters * (columns.tp > 1),
            calls=calls,
        )

    def rules(self, model: ModelSpec, seq_len: int) -> tuple[DegreeRule, ...]:
        """Rules of 1D with sequence parallelism."""
        return (
            *super().rules(model, seq_len),
            DegreeRule(
                "heads tokens",
                lambda d: (d["tp"] == 1) | np.not_equal(d["sp"], 0),
                "ranks exchange heads for their own tokens, which sequence parallelism gives them",
                "turn sequence parallelism on",
                "sp",
            ),
        )
