"""The dense MLP: two matrices, or three when gated (Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import FeedForward, LayerContext, PartWork
from meshwright.specs.operators import Kept, activation_pass, column_product, row_product


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp(FeedForward):
    """Two matrices, or three when gated."""

    kind: Literal["dense"] = "dense"
    ffn_hidden: int
    gated: bool
    bias: bool = False
    relu: bool = False
    """Whether its activation is a ReLU, whose gradient is told by its output: what goes into it is not kept."""

    def __post_init__(self) -> None:
        check = Check("MLP")
        check.whole("ffn_hidden", self.ffn_hidden)
        check.done()

    def parameters(self, hidden: int) -> int:
        """Weights and biases."""
        width = self.ffn_hidden * (2 if self.gated else 1)
        return hidden * width + self.ffn_hidden * hidden + (width + hidden if self.bias else 0)

    @property
    def tensor_width(self) -> int:
        """Hidden width of the MLP."""
        return self.ffn_hidden

    def describe(self) -> dict[str, object]:
        """Width and gate."""
        return {"ffn_hidden": self.ffn_hidden, "gated": self.gated}

    def work(self, context: LayerContext) -> PartWork:
        """Up, activation, down."""
        return self.named_work(context.hidden, "mlp", "mlp")

    def named_work(self, hidden: int, name: str, module: str) -> PartWork:
        """The same under another name, as a shared expert for example.

        Args:
            hidden: width of the residual stream.
            name: the name of its operators.
            module: the module that selective recompute may repeat.
        """
        columns = 2 if self.gated else 1
        bias = columns * self.ffn_hidden if self.bias else 0
        up = column_product(f"{name} up", hidden, ((self.ffn_hidden, columns),), module=module, bias=bias)
        down = row_product(f"{name} down", ((self.ffn_hidden, 1),), hidden, module=module, bias=self.bias)
        between = activation_pass(f"{name} activation", self.ffn_hidden, module=module, columns=columns)
        kept = [
            Kept(
                name=f"{name} input",
                elements=hidden,
                role="input",
                region="sequence",
                freed_by=("layernorm",),
                weights_of=(up.name,),
            ),
            Kept(
                name=f"{name} down input",
                elements=self.ffn_hidden,
                role="input",
                region="tensor",
                freed_by=(module,),
                weights_of=(down.name,),
            ),
        ]
        if self.gated or not self.relu:
            before = Kept(
                name=f"{name} up output",
                elements=columns * self.ffn_hidden,
                role="function",
                region="tensor",
                freed_by=(module,),
            )
            kept.insert(1, before)
        return PartWork(ops=(up, between, down), kept=tuple(kept))
