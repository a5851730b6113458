"""Mamba-2: a state-space layer with one decay per head, computed by products of chunks (arXiv 2405.21060)."""

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
class Mamba2(ConvolvedMixer):
    """A state-space dual layer: gate, inputs, B, C and steps by one product, a convolution, a scan, a gated norm."""

    units = "Mamba heads"
    kind: Literal["mamba2"] = "mamba2"
    heads: int
    head_dim: int
    groups: int
    """Heads of B and C, each for an equal number of heads."""
    state: int
    """Width of B and C: the state of a head has state x head_dim elements."""
    conv_kernel: int = 4
    chunk: int = 256
    conv_bias: bool = True
    bias: bool = False
    """Whether the products in and out have biases."""
    norm: bool = True
    """A norm on the scan's output (Falcon-H1 has none)."""

    def __post_init__(self) -> None:
        check = Check("Mamba-2")
        if check.all_whole(self, "heads", "head_dim", "groups", "state", "conv_kernel", "chunk"):
            check.divisor("groups", self.groups, ("heads", self.heads), "heads")
        check.done()

    @property
    def width(self) -> int:
        """Columns of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: inputs, B and C."""
        return self.width + 2 * self.groups * self.state

    @property
    def replicated(self) -> tuple[tuple[str, int], ...]:
        """Groups of B and C."""
        return (("Mamba groups", self.groups),)

    @property
    def state_elements(self) -> int:
        """state x head_dim per head."""
        return self.width * self.state

    def parameters(self, hidden: int) -> int:
        """Products, convolution, A, D and step bias per head, norm."""
        into = self.width + self.channels + self.heads
        products = hidden * (into + self.width) + (into + hidden if self.bias else 0)
        return products + self._small + (self.width if self.norm else 0)

    @property
    def _small(self) -> int:
        return self.channels * (self.conv_kernel + self.conv_bias) + 3 * self.heads

    def describe(self) -> dict[str, object]:
        """Heads, groups and state."""
        sizes = {"heads": self.heads, "head_dim": self.head_dim, "groups": self.groups, "state": self.state}
        return {**sizes, "chunk": self.chunk}

    def work(self, context: LayerContext) -> PartWork:
        """Source of what is kept: the fused kernels of state-spaces/mamba, `ssd_combined.py`, as of 2026-11."""
        into = self.width + self.channels + self.heads
        outputs = ((self.heads, 2 * self.head_dim + 1), (self.groups, 2 * self.state))
        ops = (
            column_product("mamba in", context.hidden, outputs, bias=into if self.bias else 0),
            convolution(self.channels, self.conv_kernel, bias=self.conv_bias, more=3 * self.heads),
            chunked_scan(
                "scan",
                heads=self.heads,
                keys=(self.groups / self.heads, self.state, self.head_dim),
                chunk=self.chunk,
            ),
            gated_norm(self.width, cut_parameters=self.width if self.norm else 0),
            row_product("mamba out", ((self.heads, self.head_dim),), context.hidden, bias=self.bias),
        )
        tensors = {
            "gate, inputs, B, C and steps": into,
            "scan output": self.width,
        }
        return recurrent_work(context, ops, tensors, self.width)
