"""The dense MLP: two matrices, or three when gated (Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import FeedForward, LayerContext, PartWork
from meshwright.specs.operators import Kept, Linear, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp(FeedForward):
    """Two matrices, or three when gated."""

    kind: Literal["dense"] = "dense"
    ffn_hidden: int
    gated: bool
    bias: bool = False

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
        """Its hidden width."""
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
            name: of its operators.
            module: that selective recompute may repeat.
        """
        columns = 2 if self.gated else 1
        bias_up, bias_down = (columns * self.ffn_hidden, hidden) if self.bias else (0, 0)
        up = Linear(
            name=f"{name} up",
            module=module,
            inputs=((1, hidden),),
            outputs=((self.ffn_hidden, columns),),
            split="column",
            gather=hidden,
            bias=bias_up,
        )
        down = Linear(
            name=f"{name} down",
            module=module,
            inputs=((self.ffn_hidden, 1),),
            outputs=((1, hidden),),
            split="row",
            reduce=hidden,
            bias=bias_down,
        )
        activation = Vector(
            name=f"{name} activation",
            module=module,
            region="tensor",
            forward_elements=(columns + 1) * self.ffn_hidden,
            backward_elements=(2 * columns + 1) * self.ffn_hidden,
        )
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
                name=f"{name} up output",
                elements=columns * self.ffn_hidden,
                role="function",
                region="tensor",
                freed_by=(module,),
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
        return PartWork(ops=(up, activation, down), kept=tuple(kept))
