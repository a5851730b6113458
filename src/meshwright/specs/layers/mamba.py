"""Mamba: a selective scan with a decay per channel and state (Gu and Dao 2023, arXiv 2312.00752)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import (
    ChannelMixer,
    ConvolvedMixer,
    convolution,
    gated_norm,
    recurrent_work,
)
from meshwright.specs.operators import Scan, column_product, norm_pass, row_product

# Of one state and token: step x A, its exponential, step x input x B, decay x state + it, times C and added up.
SCAN_FLOP = 7.0
# Tokens between states that the kernel writes for its backward pass. Source: state-spaces/mamba,
# selective_scan_fwd_kernel.cuh, as of 2026-11.
CHUNK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(ChannelMixer, ConvolvedMixer):
    """A selective state-space layer: every channel has `state` decays; no products in the scan."""

    units = "Mamba channels"
    kind: Literal["mamba"] = "mamba"
    width: int
    """Channels: expansion x hidden."""
    state: int
    step_rank: int
    """Width through which the steps of all channels are made."""
    conv_kernel: int = 4
    conv_bias: bool = True
    bias: bool = False
    """Whether the products in and out have biases."""
    norms: bool = False
    """Scales on steps, B and C (Jamba)."""

    def __post_init__(self) -> None:
        check = Check("Mamba")
        check.all_whole(self, "width", "state", "step_rank", "conv_kernel")
        check.done()

    @property
    def channels(self) -> int:
        """Channels of the convolution: the full width."""
        return self.width

    @property
    def state_elements(self) -> int:
        """`state` per channel."""
        return self.width * self.state

    def parameters(self, hidden: int) -> int:
        """Products, convolution, steps, A and D per channel."""
        products = hidden * 3 * self.width + (2 * self.width + hidden if self.bias else 0)
        selection = self.step_rank + 2 * self.state
        steps = self.width * selection + self.step_rank * self.width + self.width
        norms = selection if self.norms else 0
        return products + self.width * (self.conv_kernel + self.conv_bias + self.state + 1) + steps + norms

    def describe(self) -> dict[str, object]:
        """Channels and state."""
        return {"channels": self.width, "state": self.state, "step_rank": self.step_rank}

    def work(self, context: LayerContext) -> PartWork:
        """B, C and steps are sums over all channels, so that tensor ranks reduce them; steps are made again backward.

        Source of what is kept: `selective_scan_interface.py` of state-spaces/mamba, as of 2026-11.
        """
        width, selection = self.width, self.step_rank + 2 * self.state
        ops = (
            column_product("mamba in", context.hidden, ((width, 2),), bias=2 * width if self.bias else 0),
            convolution(width, self.conv_kernel, bias=self.conv_bias, more=width * (self.state + 1)),
            row_product("selection", ((width, 1),), selection),
            norm_pass("selection norms", selection, parameters=selection if self.norms else 0),
            column_product("steps", self.step_rank, ((width, 1),), gather=selection, bias=width),
            Scan(
                name="selective scan",
                module="",
                heads=width,
                state=self.state,
                chunk=CHUNK,
                recurrence_flop=SCAN_FLOP * self.state,
                forward_flop=0.0,
                backward_flop=0.0,
                forward_scalar_flop=SCAN_FLOP * self.state,
                backward_scalar_flop=3 * SCAN_FLOP * self.state,
                # Inputs, steps and gate read, the output written; B and C are shared by all channels.
                forward_elements=4.0,
                backward_elements=8.0,
                exchanged=4.0,
            ),
            gated_norm(width),
            row_product("mamba out", ((width, 1),), context.hidden, bias=self.bias),
        )
        tensors = {
            "inputs and gate": 2 * width,
            "scan output": width,
        }
        return recurrent_work(context, ops, tensors, width)
