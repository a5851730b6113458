"""Gated short convolution (LFM2, arXiv 2511.23404): a mixer that sees the last few tokens only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import ChannelMixer, recurrent_work
from meshwright.specs.operators import Vector, column_product, row_product


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(ChannelMixer):
    """Two gates and values by one product, a convolution of each channel between the gates, a product out."""

    units = "convolution channels"
    kind: Literal["short-convolution"] = "short-convolution"
    width: int
    """Channels; LFM2 has as many as the residual stream."""
    kernel: int = 3
    bias: bool = False
    """Whether the products and the convolution have biases."""

    def __post_init__(self) -> None:
        check = Check("short convolution")
        check.all_whole(self, "width", "kernel")
        check.done()

    @property
    def window_elements(self) -> int:
        """The last tokens of every channel."""
        return (self.kernel - 1) * self.width

    def parameters(self, hidden: int) -> int:
        """Products and convolution."""
        bias = 4 * self.width + hidden if self.bias else 0
        return 4 * hidden * self.width + self.width * self.kernel + bias

    def describe(self) -> dict[str, object]:
        """Channels and tokens."""
        return {"channels": self.width, "kernel": self.kernel}

    def work(self, context: LayerContext) -> PartWork:
        """One pass gates, convolves and gates again."""
        width = self.width
        ops = (
            column_product("gates and values", context.hidden, ((width, 3),), bias=3 * width if self.bias else 0),
            Vector(
                name="gated convolution",
                module="",
                region="tensor",
                forward_elements=8 * width,
                backward_elements=14 * width,
                kernels=3.0,
                cut_parameters=width * (self.kernel + self.bias),
            ),
            row_product("convolution out", ((width, 1),), context.hidden, bias=self.bias),
        )
        tensors = {
            "gates and values": 3 * width,
            "convolution input and output": 2 * width,
        }
        return recurrent_work(context, ops, tensors, width)
