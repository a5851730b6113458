"""Kimi delta attention: a delta rule with a decay per key channel (Kimi Linear, arXiv 2510.26692, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    ConvolvedMixer,
    SquareStateMixer,
    chunked_scan,
    convolution,
    gated_norm,
    recurrent_work,
)
from meshwright.specs.operators import Linear, Op, column_product, row_product, whole_product


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta(SquareStateMixer, ConvolvedMixer):
    """Kimi delta attention: decays and output gate through products of low rank, or each through one product."""

    units = "delta heads"
    kind: Literal["kimi-delta"] = "kimi-delta"
    heads: int
    head_dim: int
    conv_kernel: int = 4
    low_rank: bool = True
    """Whether decays and gate go through products as narrow as a head; otherwise each is one product (Ling 3)."""
    wide_gate: bool = False
    """Whether the gate is one product beside decays of low rank (Kimi K3, arXiv 2607.24653, section 2.1.1)."""
    chunk: int = 64
    """Tokens of a chunk in the kernels of fla-org/flash-linear-attention."""

    def __post_init__(self) -> None:
        check = Check("Kimi delta attention")
        check.all_whole(self, "heads", "head_dim", "conv_kernel", "chunk")
        check.that(self.low_rank or not self.wide_gate, "wide_gate", True, "decays in one product leave no other gate")
        check.done()

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 3 * self.width

    def parameters(self, hidden: int) -> int:
        """Products, two of low rank, convolutions, decays per head, their bias per channel, one norm for all heads."""
        products = 4 * hidden * self.width + hidden * self.heads
        low, wide = self.head_dim * (hidden + self.width), hidden * self.width
        made = (low if self.low_rank else wide) + (wide if self.wide_gate or not self.low_rank else low)
        return products + made + 3 * self.width * self.conv_kernel + self.heads + self.width + self.head_dim

    def work(self, context: LayerContext) -> PartWork:
        """Source of what is kept: `chunk_kda` of fla-org/flash-linear-attention, as of 2026-11."""
        hidden, heads, dim, width = context.hidden, self.heads, self.head_dim, self.width
        each = (heads, dim)
        ops: tuple[Op, ...] = (
            column_product("queries, keys and values", hidden, (each, each, each)),
            column_product("rates", hidden, ((heads, 1),), gather=0),
            *self._decays_and_gate(hidden),
            convolution(self.channels, self.conv_kernel, more=heads + width),
            chunked_scan("delta rule", heads=heads, keys=(1.0, dim, dim), chunk=self.chunk, rule="delta", decays=dim),
            gated_norm(width, parameters=dim),
            row_product("delta out", ((heads, dim),), hidden),
        )
        tensors = {
            "inputs of the convolution": 3 * width,
            "queries, keys and values": 3 * width,
            **({"low ranks": (1 if self.wide_gate else 2) * dim} if self.low_rank else {}),
            "gate": width,
            "inverses of chunks": 2 * heads * self.chunk,
            "scan output": width,
        }
        wide = {"decays": width, "rates": heads}
        return recurrent_work(context, ops, tensors, width, wide)

    def _decays_and_gate(self, hidden: int) -> tuple[Linear, ...]:
        """Products that make decays and the output gate of a token."""
        dim, each = self.head_dim, (self.heads, self.head_dim)
        if not self.low_rank:
            return (column_product("wide decays and gate", hidden, (each, each), gather=0),)
        if self.wide_gate:
            return (
                whole_product("low rank", hidden, dim),
                column_product("decays", dim, (each,), gather=dim),
                column_product("wide gate", hidden, (each,), gather=0),
            )
        return (
            replace(whole_product("low ranks", hidden, 2 * dim), outputs=((1, dim), (1, dim))),
            column_product("decays and gate", dim, (each, each), gather=2 * dim),
        )
