"""Gated delta net: a state that forgets and corrects what it holds (Yang et al. 2024, arXiv 2412.06464).

As Qwen3-Next and Qwen3.5 have it: `modeling_qwen3_next.py` of transformers, as of 2026-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    ConvolvedMixer,
    chunked_scan,
    convolution,
    gated_norm,
    recurrent_work,
)
from meshwright.specs.operators import column_product, row_product


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet(ConvolvedMixer):
    """Gated delta net: queries and keys of fewer heads than values, a gate, one decay and one rate per head."""

    units = "delta-net heads"
    kind: Literal["delta-net"] = "delta-net"
    heads: int
    """Value heads."""
    key_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    chunk: int = 64
    """Tokens of a chunk in the kernels of fla-org/flash-linear-attention."""
    apart: bool = False
    """The class has products of its own for the gate and for decays (Qwen3.5)."""
    keys_apart: bool = False
    """Whether queries, keys and values come from a product each (OLMo hybrid)."""

    def __post_init__(self) -> None:
        check = Check("delta net")
        if check.all_whole(self, "heads", "key_heads", "key_dim", "value_dim", "conv_kernel", "chunk"):
            check.divisor("key_heads", self.key_heads, ("heads", self.heads), "value heads")
        check.done()

    @property
    def key_width(self) -> int:
        """Columns of all key heads."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Columns of all value heads."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def replicated(self) -> tuple[tuple[str, int], ...]:
        """Heads of keys."""
        return (("delta-net key heads", self.key_heads),)

    @property
    def state_elements(self) -> int:
        """key_dim x value_dim per head."""
        return self.value_width * self.key_dim

    def parameters(self, hidden: int) -> int:
        """Products, convolution, decay and its bias per head, one norm for all heads."""
        products = hidden * (self.channels + self.value_width + 2 * self.heads) + self.value_width * hidden
        return products + self.channels * self.conv_kernel + 2 * self.heads + self.value_dim

    def describe(self) -> dict[str, object]:
        """Heads and their widths."""
        sizes = {"heads": self.heads, "key_heads": self.key_heads, "key_dim": self.key_dim}
        return {**sizes, "value_dim": self.value_dim, "chunk": self.chunk}

    def work(self, context: LayerContext) -> PartWork:
        """Source of what is kept: `chunk_gated_delta_rule` of fla-org/flash-linear-attention, as of 2026-11."""
        hidden, heads = context.hidden, self.heads
        values = ((heads, self.value_dim),) * 2 if self.apart else ((heads, 2 * self.value_dim),)
        keys = ((self.key_heads, self.key_dim),) * 2 if self.keys_apart else ((self.key_heads, 2 * self.key_dim),)
        rates = ((heads, 1),) * 2 if self.apart else ((heads, 2),)
        ops = (
            column_product("queries, keys, values and gate", hidden, (*keys, *values)),
            column_product("rates and decays", hidden, rates, gather=0),
            convolution(self.channels, self.conv_kernel, more=2 * heads),
            chunked_scan(
                "delta rule", heads=heads, keys=(1.0, self.key_dim, self.value_dim), chunk=self.chunk, rule="delta"
            ),
            gated_norm(self.value_width, parameters=self.value_dim),
            row_product("delta-net out", ((heads, self.value_dim),), hidden),
        )
        tensors = {
            "inputs of the convolution and gate": self.channels + self.value_width,
            "queries, keys and values": self.channels,
            "inverses of chunks": heads * self.chunk,
            "scan output": self.value_width,
        }
        wide = {"rates and decays": 2 * heads}
        return recurrent_work(context, ops, tensors, self.value_width, wide)
