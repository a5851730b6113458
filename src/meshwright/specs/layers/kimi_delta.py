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
from meshwright.specs.operators import column_product, row_product, whole_product


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
    chunk: int = 64
    """Tokens of a chunk in the kernels of fla-org/flash-linear-attention."""

    def __post_init__(self) -> None:
        check = Check("Kimi delta attention")
        check.all_whole(self, "heads", "head_dim", "conv_kernel", "chunk")
        check.done()

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 3 * self.width

    def parameters(self, hidden: int) -> int:
        """Products, two of low rank, convolutions, decays per head, their bias per channel, one norm for all heads."""
        products = 4 * hidden * self.width + hidden * self.heads
        made = 2 * (self.head_dim * (hidden + self.width) if self.low_rank else hidden * self.width)
        return products + made + 3 * self.width * self.conv_kernel + self.heads + self.width + self.head_dim

    def work(self, context: LayerContext) -> PartWork:
        """Source of what is kept: `chunk_kda` of fla-org/flash-linear-attention, as of 2026-11."""
        hidden, heads, dim, width = context.hidden, self.heads, self.head_dim, self.width
        each = (heads, dim)
        decays = (
            (
                replace(whole_product("low ranks", hidden, 2 * dim), outputs=((1, dim), (1, dim))),
                column_product("decays and gate", dim, (each, each), gather=2 * dim),
            )
            if self.low_rank
            else (column_product("wide decays and gate", hidden, (each, each), gather=0),)
        )
        ops = (
            column_product("queries, keys and values", hidden, (each, each, each)),
            column_product("rates", hidden, ((heads, 1),), gather=0),
            *decays,
            convolution(self.channels, self.conv_kernel, more=heads + width),
            chunked_scan("delta rule", heads=heads, keys=(1.0, dim, dim), chunk=self.chunk, rule="delta", decays=dim),
            gated_norm(width, parameters=dim),
            row_product("delta out", ((heads, dim),), hidden),
        )
        tensors = {
            "inputs of the convolution": 3 * width,
            "queries, keys and values": 3 * width,
            **({"low ranks": 2 * dim} if self.low_rank else {}),
            "gate": width,
            "inverses of chunks": 2 * heads * self.chunk,
            "scan output": width,
        }
        wide = {"decays": width, "rates": heads}
        return recurrent_work(context, ops, tensors, width, wide)
