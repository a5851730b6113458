"""Kimi delta attention: a delta rule with a decay per key channel (Kimi Linear, arXiv 2510.26692, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    RecurrentMixer,
    chunked_scan,
    convolution,
    gated_norm,
    product_in,
    product_out,
    recurrent_work,
)
from meshwright.specs.operators import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta(RecurrentMixer):
    """Kimi delta attention: decays and output gate through products of low rank."""

    kind: Literal["kimi-delta"] = "kimi-delta"
    heads: int
    head_dim: int
    conv_kernel: int = 4
    chunk: int = 64
    """Of the kernels of fla-org/flash-linear-attention."""

    def __post_init__(self) -> None:
        check = Check("Kimi delta attention")
        for name in ("heads", "head_dim", "conv_kernel", "chunk"):
            check.whole(name, getattr(self, name))
        check.done()

    @property
    def width(self) -> int:
        """Of all heads."""
        return self.heads * self.head_dim

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """Heads."""
        return (("delta heads", self.heads),)

    @property
    def state_elements(self) -> int:
        """head_dim x head_dim per head."""
        return self.width * self.head_dim

    @property
    def window_elements(self) -> int:
        """The last tokens of queries, keys and values."""
        return 3 * (self.conv_kernel - 1) * self.width

    def parameters(self, hidden: int) -> int:
        """Products, two of low rank, convolutions, decays per head, their bias per channel, one norm for all heads."""
        products = 4 * hidden * self.width + hidden * self.heads
        low_rank = 2 * self.head_dim * (hidden + self.width)
        return products + low_rank + 3 * self.width * self.conv_kernel + self.heads + self.width + self.head_dim

    def describe(self) -> dict[str, object]:
        """Heads and their width."""
        return {"heads": self.heads, "head_dim": self.head_dim, "chunk": self.chunk}

    def work(self, context: LayerContext) -> PartWork:
        """Source of what is kept: `chunk_kda` of fla-org/flash-linear-attention, as of 2026-11."""
        hidden, heads, dim, width = context.hidden, self.heads, self.head_dim, self.width
        ops = (
            product_in("queries, keys and values", hidden, ((heads, 3 * dim),)),
            product_in("rates", hidden, ((heads, 1),), gather=False),
            Linear(name="low ranks", module="", inputs=((1, hidden),), outputs=((1, 2 * dim),), split="replicated"),
            Linear(
                name="decays and gate",
                module="",
                inputs=((1, dim),),
                outputs=((heads, 2 * dim),),
                split="column",
                gather=2 * dim,
            ),
            convolution(3 * width, self.conv_kernel, more=heads + width),
            chunked_scan("delta rule", heads=heads, keys=(1.0, dim, dim), chunk=self.chunk, rule="delta", decays=dim),
            gated_norm(width, parameters=dim),
            product_out("delta out", hidden, heads, dim),
        )
        tensors = {
            "inputs of the convolution": 3 * width,
            "queries, keys and values": 3 * width,
            "low ranks": 2 * dim,
            "gate": width,
            "inverses of chunks": 2 * heads * self.chunk,
            "scan output": width,
        }
        wide = {"decays": width, "rates": heads}
        return recurrent_work(context, ops, tensors, width, wide)
